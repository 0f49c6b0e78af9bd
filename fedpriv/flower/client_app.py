"""The ClientApp: one message in, one bounded sum out, for all virtual clients of the node.

The same app runs in our grids, in Flower's simulation engine and on SuperNodes. It builds the client
side of the plan (task, data, work) from the run's public configuration, once a process, and keeps nothing
else between messages.

A failing node answers with the name of the exception's type and nothing else (:mod:`fedpriv.flower.guard`).
"""

from __future__ import annotations

import functools
import math

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.user_config import UserConfigValue
from flwr.clientapp import ClientApp

from fedpriv.flower.guard import guarded
from fedpriv.flower.messages import MessageError, read_ask, reply_content
from fedpriv.node import ClientSide, client_side
from fedpriv.round import Ask

app = ClientApp()

_Items = tuple[tuple[str, UserConfigValue], ...]


@app.query()  # type: ignore[untyped-decorator]
@guarded
def place(message: Message, context: Context) -> Message:
    """Say which partition this node is, and of how many: ``partition-id`` and ``num-partitions``."""
    names = ("partition-id", "num-partitions")
    fields = {name: context.node_config[name] for name in names if name in context.node_config}
    return Message(RecordDict({"node": ConfigRecord(dict(fields))}), reply_to=message)


@app.train()  # type: ignore[untyped-decorator]
@guarded
def answer(message: Message, context: Context) -> Message:
    """Answer an Ask with ONE bounded sum a block over all of its chunks, noisy where the plan says so."""
    side = _side(tuple(sorted(context.run_config.items())), tuple(sorted(context.node_config.items())))
    ask = read_ask(message.content)
    _check_noise(ask, str(context.run_config.get("placement", "")))
    return Message(reply_content(side.answer(ask)), reply_to=message)


@functools.lru_cache(maxsize=16)
def _side(run_config: _Items, node_config: _Items) -> ClientSide:
    """The client side of the plan; cached, since data and model follow from the configurations alone."""
    return client_side(dict(run_config), dict(node_config))


def _check_noise(ask: Ask, placement: str) -> None:
    """A node that owes noise never answers without it, or without a clip, whatever the ask says."""
    if placement not in ("local", "distributed"):
        return
    if not (ask.party_stds and all(std > 0 for std in ask.party_stds)):
        raise MessageError("this run's parties add noise, and the ask names none")
    if not all(math.isfinite(block.sensitivity) for block in ask.query.blocks):
        raise MessageError("this run's parties add noise, and the ask leaves out the clip")
