"""Silos that take private steps themselves: the client level, ``level=client``.

In each round the server sends its model theta. Every silo runs K private steps (``silo-steps``) of the
configured optimizer over its own examples and returns the change theta_K - theta. The server adds the mean of
the changes. A silo runs the loop of :mod:`fedpriv.federated.loop` with the same optimizers and samplers, over
its own examples and with central noise that it draws itself. So the change is private before it leaves the
silo, and everything that the server and other silos compute from it is post-processing.

Guarantee: epsilon protects each example against everyone outside its own silo, including the server and the
other silos, over all rounds. Sampling amplifies against all of them, since a silo draws its cohorts in
secret. A silo sees its own examples. If an example is in several silos, their epsilons add up.

Charges: a silo makes rounds * K releases, numbered consecutively (round r has r K to r K + K - 1), with noise
calibrated to ``planned(rounds * K)`` over its own examples. All silos are requested in every round and
charged with all K events before the request is sent. A silo that fails stays charged. (Requesting only some
silos would not amplify, since the server knows which ones.) Silos are disjoint, so they compose in parallel
(:mod:`fedpriv.accounting.parallel_composition`): the total cost is that of the costliest silo. Under
replace-one this holds if the replacement is in the same silo. Silos have public sizes. All have one noise
multiplier. Where their sampling rates differ, it is calibrated to the silo with the largest rate, and every
silo is charged with its own events. Their changes have equal weights in the mean.

State: the optimizer's slots (moments, clip norm, preconditioner, DP-SRM's estimate and its point) stay on the
silo's node from round to round, on its disk if the node owns its data (:mod:`fedpriv.node.silo_state`), while
the parameters are replaced by the server's theta. The step number, and
with it schedules and events, depends only on the round number. A silo that missed rounds continues with its
old slots; one that lost its slots continues with those of ``init``; both at the planned step. Slots are
computed from noisy answers only, so for any theta the sensitivity and the noise of a query are as charged.

Checks: a node makes the plan from the run's public configuration and takes K, z and the clip norms from it. A
request carries theta, the round number and the events that the server charged. The node refuses it if the
events differ from the plan, if the silo is not on this node, or if the round was answered before. A node that
owns its data also keeps a ledger (:mod:`fedpriv.node.ledger`).

Continued runs: a round that was charged and has no answers, since the run was killed, leaves the model as it
is, as a round that no silo answered. The run goes on with the next round, so no silo is asked twice for a
round, each round is charged once, and the run costs what was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting.accountant import BudgetGate
from fedpriv.accounting.events import Event
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine
from fedpriv.federated.loop import Outcome, Progress, advance
from fedpriv.federated.stop_reason import StopReason
from fedpriv.federated.worker import Worker
from fedpriv.node.audited_steps import NotedSteps, StepNotes
from fedpriv.node.factory import make_worker
from fedpriv.node.ledger import NodeLedger, open_node_ledger
from fedpriv.node.own_events import same_events
from fedpriv.node.policy import RefusedError
from fedpriv.node.silo_state import SiloState, SiloStateFile
from fedpriv.optimizers.base import State
from fedpriv.rng import Key


@dataclass(frozen=True)
class TrainRequest:
    """The request of one round to silos.

    Attributes:
        params: theta (d,), the server's model.
        round: the round's number, from 0.
        events: the events that the silo with the largest sampling rate was charged with, one per step. The
            plan has those of the other silos.
        silos: the numbers of the requested silos.
    """

    params: Tensor
    round: int
    events: tuple[Event, ...]
    silos: tuple[int, ...]


@dataclass(frozen=True)
class ModelDelta:
    """A silo's answer: theta_K - theta, float64 (d,), so that theta plus it is theta_K exactly."""

    silo: int
    delta: Tensor


class SiloEngine(Protocol):
    """Has silos train, in this process, over Ray actors or over Flower."""

    def train(self, request: TrainRequest) -> Sequence[ModelDelta]:
        """The changes of all silos that answered, in the order of their numbers."""

    def close(self) -> None:
        """Releases the engine's resources. It is called once, also after errors."""


class SiloBudgetGate(BudgetGate, Protocol):
    """A budget gate for the costliest silo's schedule, whose ledger names all silos and has their events."""

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        """Charges the releases of each of the silos. They compose in parallel, so the cost is that of one."""

    def record(self, events: Sequence[Event], silos: Sequence[int], costliest: Sequence[Event]) -> None:
        """Records the releases of silos that lose no more than by the ``costliest`` silo's events."""


def round_events(plan: Plan, number: int, events: Sequence[Event] | None = None) -> tuple[Event, ...]:
    """The K events of a silo in round ``number``: of its ``events`` of the whole run, by default of those of
    the silo that loses most."""
    steps, events = plan.config.silo_steps, plan.events if events is None else events
    return tuple(events[number * steps : (number + 1) * steps])


def run(
    plan: Plan,
    params: Tensor,
    trainer: SiloEngine,
    budget_gate: SiloBudgetGate,
    observe: Callable[[Progress], None] = lambda progress: None,
    first: int = 0,
    unanswered: int = 0,
    charged: int = 0,
) -> Outcome:
    """Runs the rounds of a plan from theta ``params`` (d,) until the rounds or the budget end, or Ctrl-C.

    A continued run begins with round ``first``. The ``unanswered`` rounds from there on have charges and no
    answers. ``charged`` releases were charged to each silo before.

    Returns the outcome. Its state has the server's model and counts rounds; its releases are those charged to
    each silo; ``stopped`` is ROUNDS, BUDGET or INTERRUPTED.
    """
    state = State(params, first)
    silos = tuple(range(plan.config.clients))
    try:
        for number in range(first, plan.rounds):
            if number < first + unanswered:
                state = state.advanced(state.params, {})
                observe(Progress(number + 1, charged, state))
                continue
            events = round_events(plan, number)
            if not budget_gate.affords(events):
                return Outcome(state, charged, StopReason.BUDGET)
            worst, *others = plan.schedules
            for schedule in others:  # all are on disk before any request is sent
                budget_gate.record(round_events(plan, number, schedule.events), schedule.silos, events)
            budget_gate.charge(events, worst.silos)
            charged += len(events)
            changes = trainer.train(TrainRequest(state.params, number, events, silos))
            state = state.advanced(averaged(state.params, changes), {})
            observe(Progress(number + 1, charged, state))
    except KeyboardInterrupt:
        return Outcome(state, charged, StopReason.INTERRUPTED)
    return Outcome(state, charged, StopReason.ROUNDS)


def averaged(params: Tensor, changes: Sequence[ModelDelta]) -> Tensor:
    """theta (d,) plus the mean of the received changes; theta if there are none."""
    if not changes:
        return params
    mean = torch.stack([change.delta for change in changes]).mean(0)
    return (params.double() + mean).to(params.dtype)


@dataclass(frozen=True)
class SiloWorker:
    """The node's side of a run at the client level: trains the silos that it hosts.

    Attributes:
        plan: made by the node itself from the run's public configuration.
        side: computes bounded sums over the silos' examples.
        memories: the state of each silo, by number.
        budget_gate: the node's own ledger, if it owns its data.
        state_file: the file of the state of this node's only silo, if the node owns its data.
        notes: where the steps are noted, if this is an audit that the node's owner allows.
    """

    plan: Plan
    side: Worker
    memories: dict[int, SiloState] = field(default_factory=dict)
    budget_gate: NodeLedger | None = None
    state_file: SiloStateFile | None = None
    notes: StepNotes | None = None

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """The change of each requested silo. Raises RefusedError if the request differs from the plan, and
        LedgerError if the node's ledger or its silo's state cannot be used."""
        if self.state_file is not None and self.side.own is not None:
            self.memories[self.side.own] = self.state_file.read()
        if len(set(request.silos)) < len(request.silos):
            raise RefusedError("a request names a silo twice in one round")
        for silo in request.silos:
            self._check(request, silo)
        return tuple(ModelDelta(silo, self._change(request, silo)) for silo in request.silos)

    def look_ahead(self) -> str:
        """As :meth:`NodeLedger.look_ahead`, and a warning if the state of a run that has begun is lost.

        Raises LedgerError also if the state of the node's silo is damaged, or newer than its ledger.
        """
        if self.budget_gate is None:
            return ""
        state = SiloState() if self.state_file is None else self.state_file.read()
        warning = self.budget_gate.look_ahead(state.charged)
        if self.state_file is not None and state.charged is None and self.budget_gate.has_begun():
            return (
                f"this node has charged rounds of run {self.state_file.run}, and no {self.state_file.path}: "
                "its silo's optimizer begins afresh, under what is left of the budget"
            )
        return warning

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

    def _check(self, request: TrainRequest, silo: int) -> None:
        if not 0 <= request.round < self.plan.rounds:
            raise RefusedError(f"round {request.round} is not in the plan of {self.plan.rounds} rounds")
        if not same_events(request.events, round_events(self.plan, request.round)):
            raise RefusedError(f"the events charged for round {request.round} differ from the plan's")
        if not 0 <= silo < self.plan.config.clients or self.side.own not in (None, silo):
            raise RefusedError(f"silo {silo} is not on this node")
        if request.round < self.memories.setdefault(silo, SiloState()).round:
            raise RefusedError(f"round {request.round} was answered before")

    def _change(self, request: TrainRequest, silo: int) -> Tensor:
        """theta_K - theta of one silo after its K steps."""
        schedule, memory = self.plan.schedule_of(silo), self.memories[silo]
        mechanism, events = schedule.mechanism, round_events(self.plan, request.round, schedule.events)
        initial = mechanism.optimizer.init(request.params).slots
        if memory.slots is not None and _kinds(memory.slots) != _kinds(initial):
            raise RefusedError(f"the state of silo {silo} is of another model or optimizer than the run's")
        if self.budget_gate is not None:
            memory.charged = self.budget_gate.charge(request.round, events, memory.charged)
        memory.round = request.round + 1  # also if an error follows
        steps = self.plan.config.silo_steps
        start = State(request.params, request.round * steps, memory.slots or initial)
        # Without a seed no two answers share noise, not even for the same round.
        key = self.side.key.child("silo", silo) if self.side.key.reproducible else Key.fresh()
        cohorts = self.plan.cohorts(key, silo)
        engine: Engine = self.side
        noted = NotedSteps(mechanism.optimizer, engine)
        if self.notes is not None:
            mechanism, engine = replace(mechanism, optimizer=noted), noted
        end = advance(mechanism, start, start.step + steps, engine, _Prepaid(events), key, cohorts)
        if end.stopped == StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if end.state.step != start.step + steps:
            raise RefusedError(f"round {request.round} could not complete all of its steps")
        if self.notes is not None:
            self.notes.write(request.round, noted.steps)
        memory.slots = end.state.slots
        self._keep(memory)
        return end.state.params.double() - request.params.double()

    def _keep(self, memory: SiloState) -> None:
        """Writes the state before the round is answered, so that an answer that was sent has its state."""
        if self.state_file is None:
            return
        if memory.round == self.plan.rounds:
            self.state_file.delete()
        else:
            self.state_file.write(memory)


def _kinds(slots: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The shape and type of each tensor."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in slots.items()}


@dataclass
class _Prepaid:
    """The budget gate for events that are already charged: exactly these releases may be made, in order."""

    events: tuple[Event, ...]
    made: int = 0
    adaptive = False

    def affords(self, events: Sequence[Event]) -> bool:
        return True

    def charge(self, events: Sequence[Event]) -> None:
        end = self.made + len(events)
        if self.events[self.made : end] != tuple(events):
            raise RefusedError("a release differs from the event that was charged for this step")
        self.made = end


def make_silo_worker(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any] | None = None, run_id: int = 0
) -> SiloWorker:
    """The worker of a node at the client level. Arguments are as for
    :func:`fedpriv.node.factory.make_worker`.

    Raises ArgumentError if the run has another level.
    """
    config = Config.parse(dict(run_config))
    if not config.by_silo:
        raise validation.fail("level", config.level, "be client for silos that take private steps")
    plan = make_plan(config)
    side = make_worker(run_config, node_config)
    ledger = open_node_ledger(plan, node_config or {}, run_id)
    file = None if ledger is None else SiloStateFile(ledger.path, ledger.run)
    notes = StepNotes.of(config.audit, node_config or {})
    return SiloWorker(plan, side, budget_gate=ledger, state_file=file, notes=notes)
