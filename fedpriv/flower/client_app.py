"""The ClientApp: one message in, one bounded sum out, for all virtual clients of the node.

The same app runs in our grids, in Flower's simulation engine and on SuperNodes. It builds the client
side of the plan (task, data, work) from the run's public configuration, once a process. At the client level
it answers with its silos' model changes, and the node's Context keeps what they remember of their optimizers.

A node that owns its data takes the noise it adds from its own plan and keeps a ledger
(:mod:`fedpriv.node.ledger`).

A failing node answers with the name of the exception's type and nothing else
(:mod:`fedpriv.flower.error_masking`).
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import replace

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.user_config import UserConfig, UserConfigValue
from flwr.clientapp import ClientApp

from fedpriv._internal.allocator import tune_allocator
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data.client_files import FileView
from fedpriv.federated.engine import SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.serialization import MessageError, read_ask, reply_content
from fedpriv.flower.silo_serialization import changes_content, read_memories, read_training, write_memories
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.node.factory import SiloFile, make_worker
from fedpriv.node.ledger import NodeLedger, held, open_node_ledger
from fedpriv.node.policy import as_taken
from fedpriv.node.silo import SiloWorker, make_silo_worker

tune_allocator()  # this module is the program that a node's process runs

app = ClientApp()

_log = logging.getLogger("fedpriv.config.builders")

_Items = tuple[tuple[str, UserConfigValue], ...]


@app.query()  # type: ignore[untyped-decorator]
@guarded
def place(message: Message, context: Context) -> Message:
    """Say which partition this node is, and of how many: ``partition-id`` and ``num-partitions``.

    A node that could not answer to the end (its data cannot be read, its owner allows no such run, or too
    little of the limit is left) fails here, before anything is sampled or charged.
    """
    run_config, node_config = _configs(context)
    if dict(run_config).get("level") == "client":
        silo = _silo_side(run_config, node_config, context.run_id)
        side, budget_gate = silo.side, silo.budget_gate
    else:
        side = _side(run_config, node_config)
        budget_gate = None if side.own is None else _books(run_config, node_config, context.run_id)
    if budget_gate is not None and (refused := budget_gate.look_ahead()):
        _log.warning("%s", refused)
    _say_what_is_used(side)
    names = ("partition-id", "num-partitions")
    fields = {name: context.node_config[name] for name in names if name in context.node_config}
    return Message(RecordDict({"node": ConfigRecord(dict(fields))}), reply_to=message)


@app.train()  # type: ignore[untyped-decorator]
@guarded
def answer(message: Message, context: Context) -> Message:
    """Answer an Ask with ONE bounded sum a block over all of its chunks, noisy where the plan says so."""
    run_config, node_config = _configs(context)
    side = _side(run_config, node_config)
    request = read_ask(message.content)
    _check_noise(request, context.run_config)
    if side.own is not None:
        request = _charged(request, run_config, node_config, context.run_id)
    return Message(reply_content(side.answer(request)), reply_to=message)


@app.train("silos")  # type: ignore[untyped-decorator]
@guarded
def train(message: Message, context: Context) -> Message:
    """Answer a Training with the change of each of its silos, private already."""
    side = _silo_side(*_configs(context), context.run_id)
    request = read_training(message.content)
    memories = read_memories(context.state, request.silos)
    try:
        changes = replace(side, memories=memories).train(request)
    finally:  # that a round was begun is remembered, too
        write_memories(context.state, memories)
    return Message(changes_content(changes), reply_to=message)


def _configs(context: Context) -> tuple[_Items, _Items]:
    """The run's configuration, as far as this node takes it from a server, and the node's own."""
    run = as_taken(context.run_config, context.node_config)
    return tuple(sorted(run.items())), tuple(sorted(context.node_config.items()))


@functools.lru_cache(maxsize=16)
def _side(run_config: _Items, node_config: _Items) -> Worker:
    """The client side of the plan; cached, since data and model follow from the configurations alone."""
    return make_worker(dict(run_config), dict(node_config))


@functools.lru_cache(maxsize=16)
def _silo_side(run_config: _Items, node_config: _Items, run_id: int) -> SiloWorker:
    """As :func:`_side`, at the client level: without the memories, which belong to a node."""
    return make_silo_worker(dict(run_config), dict(node_config), run_id)


def _say_what_is_used(side: Worker) -> None:
    """Tell the owner, in the node's own log, which examples of the file the run does not use, and where a
    silo's file is not of the size that the run says."""
    view = side.view.file if isinstance(side.view, SiloFile) else side.view
    if isinstance(view, FileView) and (outside := int((~view.file.held).sum())):
        what = f"{outside:,} of this file's {view.file.size:,} examples add nothing"
        why = "a label, value, tag, token or number of theirs is out of the ranges of the run's data set"
        _log.warning("data-file: %s: %s", what, why)
    if not isinstance(side.view, SiloFile):
        return
    there, places = side.view.file.file.size, side.view.silos.examples_per_silo
    if there > places:
        what = f"{places:,} of this file's {there:,} examples are used"
    elif there < places:
        what = f"{places - there:,} of {places:,} places are empty"
    else:
        return
    _log.warning("data-file: %s (the run's examples-per-client is %d)", what, places)


@functools.lru_cache(maxsize=16)
def _books(run_config: _Items, node_config: _Items, run_id: int) -> NodeLedger | None:
    return open_node_ledger(make_plan(Config.parse(dict(run_config))), dict(node_config), run_id)


def _charged(request: SumRequest, run_config: _Items, node_config: _Items, run_id: int) -> SumRequest:
    """The ask with the noise that this node owes by its own plan, charged to its own ledger."""
    budget_gate = _books(run_config, node_config, run_id)
    if budget_gate is None:
        return request
    request, event = held(budget_gate.plan, request)
    budget_gate.charge(request.release, [event])
    return request


def _check_noise(request: SumRequest, run_config: UserConfig) -> None:
    """A node that owes noise never answers without it, or without a clip, whatever the ask says."""
    if run_config.get("level") == "client":
        raise MessageError("this run's silos train by themselves, and answer for no sums")
    placement = PLACEMENTS.get(str(run_config.get("placement")))
    if placement is None or not placement.at_parties:
        return
    if not (request.party_stds and all(std > 0 for std in request.party_stds)):
        raise MessageError("this run's parties add noise, and the ask names none")
    if not all(math.isfinite(block.sensitivity) for block in request.query.blocks):
        raise MessageError("this run's parties add noise, and the ask leaves out the clip")
