"""The ClientApp: it answers a message with one bounded sum for all virtual clients of the node.

The same app runs in fedpriv's grids, in Flower's simulation engine and on SuperNodes. It builds the worker
(task, data, work) from the run's public configuration, once per process. At the client level it answers with
its silos' model changes, and the node's disk or Context keeps the state of their optimizers.

A node that owns its data takes the noise from its own plan and keeps a ledger (:mod:`fedpriv.node.ledger`).

A failing node answers only with the name of the exception's type (:mod:`fedpriv.flower.error_masking`).
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.user_config import UserConfig, UserConfigValue
from flwr.clientapp import ClientApp

from fedpriv._internal.allocator import tune_allocator
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data.client_files import ClientFile, FileView
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.secure_serialization import keys_content, read_identities, read_shown, replies_content
from fedpriv.flower.serialization import MessageError, read_request, reply_content
from fedpriv.flower.silo_serialization import changes_content, read_memories, read_training, write_memories
from fedpriv.flower.topology import LEDGER, head_record, read_head
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.units import Level
from fedpriv.node.factory import SiloFile, make_worker
from fedpriv.node.ledger import NodeLedger, open_node_ledger
from fedpriv.node.own_events import adds_noise, enforce_plan
from fedpriv.node.policy import as_taken, require_clip
from fedpriv.node.secure_parties import NodeParties, pinned
from fedpriv.node.silo import SiloWorker, make_silo_worker

tune_allocator()  # this module is the program that a node's process runs

app = ClientApp()

_log = logging.getLogger(__name__)

_Items = tuple[tuple[str, UserConfigValue], ...]

_PROCESS = secrets.token_hex(8)  # by which the server sees whether one process answers all messages


@app.query()  # type: ignore[untyped-decorator]
@guarded
def describe_node(message: Message, context: Context) -> Message:
    """Replies with this node's ``partition-id`` and ``num-partitions``.

    A node that could not take part until the end fails here, before anything is sampled or charged: if its
    data cannot be read, its owner does not allow the run, the owner's limit does not suffice, or its ledger
    does not reach what the server keeps of it (:mod:`fedpriv.flower.enrolment`).
    """
    run_config, node_config = _configs(context)
    if Level.of(dict(run_config)).by_silo:
        silo = _silo_side(run_config, node_config, context.run_id)
        side, warning, budget_gate = silo.side, silo.look_ahead(), silo.budget_gate
    else:
        side = _side(run_config, node_config)
        budget_gate = None if side.own is None else _node_ledger(run_config, node_config, context.run_id)
        warning = "" if budget_gate is None else budget_gate.look_ahead()
    if warning:
        _log.warning("%s", warning)
    _log_unused_examples(side)
    names = ("partition-id", "num-partitions")
    fields = {name: context.node_config[name] for name in names if name in context.node_config}
    content = RecordDict({"node": ConfigRecord(dict(fields))})
    head = budget_gate.head(read_head(message.content)) if isinstance(budget_gate, NodeLedger) else None
    if head is not None:
        content[LEDGER] = head_record(head)
    return Message(content, reply_to=message)


@app.train()  # type: ignore[untyped-decorator]
@guarded
def answer(message: Message, context: Context) -> Message:
    """Answers a SumRequest with ONE bounded sum per block over all of its shards, with noise if planned."""
    run_config, node_config = _configs(context)
    if _aggregates_securely(run_config):
        raise MessageError("this run aggregates securely, so no message leaves a node without its masks")
    side = _side(run_config, node_config)
    request = read_request(message.content)
    _require_noise(request, context.run_config)
    require_clip(request.query, context.node_config)
    if side.own is not None:
        request = _charged(request, run_config, node_config, context.run_id)
    return Message(reply_content(side.answer(request), request.release), reply_to=message)


@app.train("silos")  # type: ignore[untyped-decorator]
@guarded
def train(message: Message, context: Context) -> Message:
    """Answers a TrainRequest with the change of each of its silos, which is already private."""
    side = _silo_side(*_configs(context), context.run_id)
    request = read_training(message.content)
    if side.state_file is not None:
        return Message(changes_content(side.train(request), request.round), reply_to=message)
    memories = read_memories(context.state, request.silos)
    try:
        changes = replace(side, memories=memories).train(request)
    finally:  # the state also records a round that was begun but failed
        write_memories(context.state, memories)
    return Message(changes_content(changes, request.round), reply_to=message)


@app.query("identities")  # type: ignore[untyped-decorator]
@guarded
def identify(message: Message, context: Context) -> Message:
    """Replies with the public identity keys of this node's parties in secure aggregation."""
    parties = _secure_parties(*_configs(context), context.run_id)
    keys = parties.keys(read_identities(message.content))
    return Message(keys_content(keys, _PROCESS), reply_to=message)


@app.train("secure")  # type: ignore[untyped-decorator]
@guarded
def answer_securely(message: Message, context: Context) -> Message:
    """Answers one exchange of secure aggregation for each of this node's parties."""
    parties = _secure_parties(*_configs(context), context.run_id)
    shown = read_shown(message.content)
    if shown.request is not None:
        _require_noise(shown.request, context.run_config)
        require_clip(shown.request.query, context.node_config)
    replies = parties.answer(shown.exchange, shown.session, shown.parties, shown.request)
    return Message(replies_content(replies), reply_to=message)


def _configs(context: Context) -> tuple[_Items, _Items]:
    """(the run's configuration as this node uses it, the node's own configuration)."""
    run = as_taken(context.run_config, context.node_config)
    return tuple(sorted(run.items())), tuple(sorted(context.node_config.items()))


@functools.lru_cache(maxsize=16)
def _side(run_config: _Items, node_config: _Items) -> Worker:
    """The worker; cached, since data and model depend only on the configurations."""
    return make_worker(dict(run_config), dict(node_config))


@functools.lru_cache(maxsize=16)
def _silo_side(run_config: _Items, node_config: _Items, run_id: int) -> SiloWorker:
    """The worker at the client level, cached without the silos' state, which belongs to a node."""
    return make_silo_worker(dict(run_config), dict(node_config), run_id)


@functools.lru_cache(maxsize=16)
def _aggregates_securely(run_config: _Items) -> bool:
    return Config.parse(dict(run_config)).aggregates_securely


@functools.lru_cache(maxsize=16)
def _secure_parties(run_config: _Items, node_config: _Items, run_id: int) -> NodeParties:
    """This node's parties in a run, whose keys live in this process alone."""
    plan = make_plan(Config.parse(dict(run_config)))
    if not plan.config.aggregates_securely:
        raise MessageError("this run does not aggregate securely")
    threshold, silos = plan.mechanism.placement.min_replies, _Silos(run_config, node_config, run_id)
    if _side(run_config, node_config).own is None:
        return NodeParties(silos, str(run_id), threshold)
    return NodeParties(silos, str(run_id), *pinned(dict(node_config), threshold, plan.config.clients))


@dataclass(frozen=True)
class _Silos:
    """Answers for this node's silos. It holds no data, so that :func:`forget_runs` drops them."""

    run_config: _Items
    node_config: _Items
    run_id: int

    def answer(self, request: SumRequest) -> PartialSum:
        """The sum of a silo with a ledger has the noise of the node's own plan, and is charged first."""
        side = _side(self.run_config, self.node_config)
        if side.own is not None:
            request = _charged(request, self.run_config, self.node_config, self.run_id)
        return side.answer(request)


def _log_unused_examples(side: Worker) -> None:
    """Logs, in the node's own log, how many of the file's examples the run ignores, and a wrong file size."""
    view = side.view.file if isinstance(side.view, SiloFile) else side.view
    if not isinstance(view, FileView) or not isinstance(view.file, ClientFile):
        return  # simulated, or an audit's, whose owner left examples out
    if outside := int((~view.file.valid).sum()):
        what = f"{outside:,} of this file's {view.file.size:,} examples are ignored"
        why = "they have a label, value, tag, token or number outside the ranges of the run's data set"
        _log.warning("data-file: %s: %s", what, why)
    if not isinstance(side.view, SiloFile):
        return
    size, places = side.view.file.file.size, side.view.silos.examples_per_silo
    if size > places:
        what = f"{places:,} of this file's {size:,} examples are used"
    elif size < places:
        what = f"{places - size:,} of {places:,} places are empty"
    else:
        return
    _log.warning("data-file: %s (the run's examples-per-client is %d)", what, places)


def forget_runs() -> None:
    """Drops the cached data and models of earlier runs. A long-lived node calls it before a new run.

    The keys of secure aggregation stay: a run that goes on needs them.
    """
    for cache in (_side, _silo_side):
        cache.cache_clear()


@functools.lru_cache(maxsize=16)
def _node_ledger(run_config: _Items, node_config: _Items, run_id: int) -> NodeLedger | None:
    return open_node_ledger(make_plan(Config.parse(dict(run_config))), dict(node_config), run_id)


def _charged(request: SumRequest, run_config: _Items, node_config: _Items, run_id: int) -> SumRequest:
    """The request with the noise of this node's own plan, after charging this node's ledger."""
    budget_gate = _node_ledger(run_config, node_config, run_id)
    if budget_gate is None:
        return request
    if not adds_noise(budget_gate.plan):
        budget_gate.charge_run(request.release)
        return request
    request, event = enforce_plan(budget_gate.plan, request, budget_gate.colluders)
    budget_gate.charge(request.release, [event])
    return request


def _require_noise(request: SumRequest, run_config: UserConfig) -> None:
    """Raises MessageError for a request without noise or clipping, if this run's parties must add noise."""
    if Level.of(run_config).by_silo:
        raise MessageError("at level=client silos answer training requests only, not requests for sums")
    placement = PLACEMENTS.get(str(run_config.get("placement")))
    if placement is None or not placement.at_parties:
        return
    if not (request.party_stds and all(std > 0 for std in request.party_stds)):
        raise MessageError("this run's parties add noise, but the request names none")
    if not all(math.isfinite(block.sensitivity) for block in request.query.blocks):
        raise MessageError("this run's parties add noise, but the request has no finite clip norm")
