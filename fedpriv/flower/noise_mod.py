"""A mod with which the clients of any Flower app clip and noise what they return, before it leaves them.

The ClientApp trains its model as before. :data:`private_mod` takes the change of the model (what was sent
minus what the app returns), clips it as the strategy's optimizer asks, adds the client's noise, and returns
the noisy vector in place of the model. The strategy is ``PrivateStrategy(placement="local", ...)`` or
``"distributed"``, which adds no noise for a client that answers.

A node makes the plan itself from the run's public settings, as the nodes of fedpriv's own apps do
(:mod:`fedpriv.node.ledger`): it takes the noise from the plan, not from the request, charges its own ledger
before the app computes, answers each release once, and keeps to its owner's limit. An app's metrics do not
leave the node, nor does any answer to another message. An error leaves as the name of its type.

>>> from flwr.clientapp import ClientApp
>>> app = ClientApp(mods=[private_mod])
>>> stricter = PrivateMod(ledger="ledger.jsonl", epsilon_limit=8, delta_limit=1e-5, min_noise_multiplier=1)
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting import LedgerError
from fedpriv.clipping import sum_rows
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum
from fedpriv.federated.worker import with_party_noise
from fedpriv.flower.app_config import DATA, MODEL, planned
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.noise_messages import NoiseRequest, asks_for_noise, noisy_reply, read_noise_request
from fedpriv.flower.serialization import MessageError
from fedpriv.node.ledger import NodeLedger, open_node_ledger
from fedpriv.node.own_events import enforce_plan
from fedpriv.node.policy import RefusedError, as_taken, owns_data
from fedpriv.rng import Key

ClientApp = Callable[[Message, Context], Message]

# The owner's settings that have a meaning for a mod.
SETTINGS = (
    "ledger-file", "epsilon-limit", "delta-limit", "min-noise-multiplier", "accept-seed", "accept-code",
)  # fmt: skip
NOT_ASKED = (
    "private_mod lets nothing leave this node but answers to the train messages of fedpriv's PrivateStrategy "
    "with placement local or distributed."
)
_SETTINGS_OF_RUN, _LEDGER = "fedpriv-settings", "fedpriv-ledger"  # what the node's Context keeps

_LIKE = 0.85  # an app's own key is less like one of SETTINGS than this; 1 is equal

_log = logging.getLogger(__name__)


class PrivateMod:
    """A mod that clips and noises an app's replies. :data:`private_mod` is one without settings of its own.

    The owner of a node sets the same in ``--node-config``, which comes before these arguments:
    ``ledger-file``, ``epsilon-limit``, ``delta-limit``, ``min-noise-multiplier``, ``accept-seed`` and
    ``accept-code``.

    Args:
        ledger: the file of this node's ledger, which all runs on its data must share. Without one the charges
            are in Flower's Context and hold for one run, as is enough for a simulation.
        epsilon_limit, delta_limit: the owner's limit over all runs in the ledger; both or neither.
        min_noise_multiplier: the least noise multiplier of this node's own noise; less is refused.
        accept_seed: whether a run may choose the seed of the noise, as in a simulation that is to be
            repeated. Whoever knows the seed can subtract the noise.

    Raises ArgumentError for a limit that cannot be kept.
    """

    def __init__(
        self,
        *,
        ledger: str | Path | None = None,
        epsilon_limit: float | None = None,
        delta_limit: float | None = None,
        min_noise_multiplier: float = 0.0,
        accept_seed: bool = False,
    ) -> None:
        given = {
            "ledger-file": None if ledger is None else str(ledger),
            "epsilon-limit": epsilon_limit,
            "delta-limit": delta_limit,
            "min-noise-multiplier": min_noise_multiplier or None,
            "accept-seed": accept_seed or None,
        }
        self._given = {name: value for name, value in given.items() if value is not None}
        _require_ledger(self._given)

    def __call__(self, message: Message, context: Context, call_next: ClientApp) -> Message:
        """The reply to a message: noisy sums, or an error."""
        if message.metadata.message_type.split(".")[0] != "train" or not asks_for_noise(message.content):
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, NOT_ASKED), reply_to=message)

        @guarded
        def private_mod(message: Message, context: Context) -> Message:
            try:
                return self._answer(message, context, call_next)
            except (validation.ArgumentError, LedgerError, MessageError, RefusedError) as error:
                # guarded() logs this for owners whose settings are in the node's configuration
                if owns_data(self._given) and not owns_data(context.node_config):
                    _log.warning("private_mod failed with %s: %s", type(error).__name__, error)
                raise

        return private_mod(message, context)

    def _answer(self, message: Message, context: Context, call_next: ClientApp) -> Message:
        asked = read_noise_request(message.content)
        node = _owners_settings({**self._given, **context.node_config})
        plan = _plan(json.dumps(asked.settings), asked.arrays.layout.dimension, tuple(sorted(node.items())))
        settings = _settings_of_run(context.state, asked.settings)
        request, event = enforce_plan(plan, asked.request)
        with _ledger(plan, node, context) as gate:
            begins = _SETTINGS_OF_RUN not in context.state
            if begins and (warning := gate.look_ahead()):
                _log.warning("%s", warning)
            gate.charge(request.release, [event])  # on disk before the app computes
        context.state[_SETTINGS_OF_RUN] = settings
        rows = [self._row(asked, point, message, context, call_next) for point in range(len(asked.models))]
        exact = plan.config.exact_noise
        dtype = torch.float64 if exact else torch.float32
        sums = sum_rows(rows, request.query.blocks, asked.arrays.layout.layer_sizes, dtype)
        seed = plan.config.asked_seed if node.get("accept-seed") is True else None
        noisy = with_party_noise(sums, request, request.shards[0], Key.of(seed), exact)
        return noisy_reply(message, request, PartialSum(noisy, parties=1))

    def _row(
        self, asked: NoiseRequest, point: int, message: Message, context: Context, call_next: ClientApp
    ) -> Tensor:
        """theta - theta_K (1, d) of what the app returns for the model at a point."""
        reply = call_next(make_message(message.metadata, asked.for_app(point)), context)
        if reply.has_error():
            raise MessageError("the app answered with an error")
        found: list[ArrayRecord] = list(reply.content.array_records.values())
        if len(found) != 1:
            raise MessageError(f"the app's reply has {len(found)} ArrayRecords; it must have exactly one")
        return asked.arrays.change(asked.request.query.points[point], found[0])[None]


def _owners_settings(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the node's configuration that are the mod's; the others are the app's own.

    Raises ArgumentError for one that is misspelt, since a misspelt limit would have no effect.
    """
    for name in node:
        close = difflib.get_close_matches(validation.normalised(name), SETTINGS, n=1, cutoff=_LIKE)
        if name not in SETTINGS and close:
            hint = validation.meant(close[0])
            raise validation.ArgumentError(f"a key of this node's --node-config is {name!r}; {hint}")
    found = {name: node[name] for name in SETTINGS if name in node}
    _require_ledger(found)
    return found


def _require_ledger(node: Mapping[str, Any]) -> None:
    if "epsilon-limit" in node and not node.get("ledger-file"):
        hint = "the limit holds over all runs in it"
        raise validation.fail("ledger-file", node.get("ledger-file"), "name a file with epsilon-limit", hint)


@functools.lru_cache(maxsize=16)
def _plan(settings: str, dimension: int, node: tuple[tuple[str, Any], ...]) -> Plan:
    """The plan that the node makes of the run's public settings.

    Raises RefusedError for what the owner does not allow: code that a run names, and files.
    """
    run = {**json.loads(settings)}
    app = run.pop("model", None), run.pop("dataset", None)
    if app != (MODEL, DATA):
        raise RefusedError("the run's settings are not those of a Flower app")
    used = as_taken(run, {"ledger-file": "", **dict(node)})  # every node of an app owns its data
    return planned(Config.parse({**used, "model": MODEL, "dataset": DATA}), dimension)


def _settings_of_run(state: RecordDict, settings: Mapping[str, Any]) -> ConfigRecord:
    """What identifies the run's settings. Raises RefusedError if they changed since its first answer."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    kept = state.get(_SETTINGS_OF_RUN)
    if isinstance(kept, ConfigRecord) and kept["sha256"] != digest:
        raise RefusedError("the run's settings are not those that this node answered first")
    return ConfigRecord({"sha256": digest})


@contextmanager
def _ledger(plan: Plan, node: Mapping[str, Any], context: Context) -> Iterator[NodeLedger]:
    """The node's ledger: its owner's file, or one that Flower's Context keeps during the run."""
    if node.get("ledger-file"):
        yield _opened(plan, node, context.run_id)
        return
    state = context.state
    with tempfile.TemporaryDirectory() as folder:
        kept = state.get(_LEDGER, {})
        for name, content in kept.items():
            (Path(folder) / name).write_bytes(content)
        yield _opened(plan, {**node, "ledger-file": f"{folder}/ledger.jsonl"}, context.run_id)
        state[_LEDGER] = ConfigRecord({file.name: file.read_bytes() for file in Path(folder).iterdir()})


def _opened(plan: Plan, node: Mapping[str, Any], run: int) -> NodeLedger:
    found = open_node_ledger(plan, node, run)
    if found is None:
        raise RefusedError("the clients of this run add no noise")
    return found


private_mod = PrivateMod()
