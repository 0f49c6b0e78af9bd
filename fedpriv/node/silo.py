"""Silos that train by themselves: the client level, ``level=client``.

In each round the server sends its model theta; every silo runs K private steps (``silo-steps``) of the
configured optimizer over its own examples and returns its change theta_K - theta; the server adds the mean of
the changes. A silo's run is the loop of :mod:`fedpriv.federated.loop` with the same optimizers and samplers,
over the
silo alone and with central noise that the silo draws itself, so the change is private before it leaves: the
server's sum is post-processing, as is all that silos make of each other's changes.

What is promised: epsilon protects each example against everyone outside its own silo, the server and the
other silos included, over all rounds. Sampling amplifies against them all, since a silo draws its own secret
cohorts. A silo sees its own examples; and where an example lies in several silos, their epsilons add.

What is charged: a silo makes rounds * K releases, numbered through (round r holds r K to r K + K - 1), with
noise calibrated to ``planned(rounds * K)`` over its own examples. All silos are asked in every round, and
charged with all K events before the ask goes out; a silo that fails stays charged. (Asking some of them would
amplify nothing: the server knows whom it asked.) Silos are disjoint, so they compose in parallel
(:mod:`fedpriv.accounting.parallel_composition`): all together cost what the costliest does. Their public
sizes are equal, so their schedules and their weights in the mean are. Under replace-one that holds while the
other example takes its place in the same silo.

What a silo remembers: its optimizer's slots (moments, clip norm, preconditioner, DP-SRM's estimate and the
point it was made at) stay on its node from round to round, while the parameters become the server's theta.
The step's number, and with it schedules and events, follows from the round's number alone: a silo that missed
rounds goes on with old slots, one that lost them with those of ``init``, both at the planned step. Slots
follow from noisy answers, so whatever theta is, a query's sensitivity and noise are as charged.

What a node checks: it makes the plan from the run's public configuration and takes K, z and clip norms from
there; an ask brings theta, the round's number and the events that the server charged, and is refused where
these are not the plan's, where the silo is another's, or where the round was answered before. A node that
owns its data keeps a ledger beside it (:mod:`fedpriv.node.ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting.accountant import BudgetGate
from fedpriv.accounting.events import Event
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.loop import Outcome, Progress, advance
from fedpriv.federated.stop_reason import StopReason
from fedpriv.federated.worker import Worker
from fedpriv.node.factory import make_worker
from fedpriv.node.ledger import NodeLedger, open_node_ledger, same_events
from fedpriv.node.policy import RefusedError
from fedpriv.optimizers.base import State
from fedpriv.rng import Key


@dataclass(frozen=True)
class TrainRequest:
    """One round's question to silos.

    Attributes:
        params: theta (d,), the server's model.
        round: the round's number, from 0.
        events: what each of the silos was charged with, one a step.
        silos: the numbers of the silos that are asked.
    """

    params: Tensor
    round: int
    events: tuple[Event, ...]
    silos: tuple[int, ...]


@dataclass(frozen=True)
class ModelDelta:
    """What a silo answers: theta_K - theta, float64 (d,), so that adding it gives theta_K again."""

    silo: int
    delta: Tensor


class SiloEngine(Protocol):
    """Whatever has silos train: in this process, over Ray actors, over Flower."""

    def train(self, request: TrainRequest) -> Sequence[ModelDelta]:
        """The changes of all silos that could answer, in the order of their numbers."""

    def close(self) -> None:
        """Release what the trainer holds. Called once, also after errors."""


class SiloBudgetGate(BudgetGate, Protocol):
    """A budget gate for one silo's schedule, whose ledger names all silos that follow it."""

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        """Charge what each of the silos releases. They compose in parallel, so this costs what one does."""


def round_events(plan: Plan, number: int) -> tuple[Event, ...]:
    """The K events of a silo in round ``number``."""
    steps = plan.config.silo_steps
    return plan.events[number * steps : (number + 1) * steps]


def run(
    plan: Plan,
    params: Tensor,
    trainer: SiloEngine,
    budget_gate: SiloBudgetGate,
    observe: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run the rounds of a plan from theta ``params`` (d,) until they or the budget end, or Ctrl-C.

    Returns the outcome, whose state holds the server's model and counts rounds, and whose releases are those
    charged to each silo; ``stopped`` is ROUNDS, BUDGET or INTERRUPTED.
    """
    state, charged = State(params), 0
    silos = tuple(range(plan.config.clients))
    try:
        for number in range(plan.rounds):
            events = round_events(plan, number)
            if not budget_gate.affords(events):
                return Outcome(state, charged, StopReason.BUDGET)
            budget_gate.charge(events, silos)  # paid for, on disk, before anyone is asked
            charged += len(events)
            changes = trainer.train(TrainRequest(state.params, number, events, silos))
            state = state.advanced(averaged(state.params, changes), {})
            observe(Progress(number + 1, charged, state))
    except KeyboardInterrupt:
        return Outcome(state, charged, StopReason.INTERRUPTED)
    return Outcome(state, charged, StopReason.ROUNDS)


def averaged(params: Tensor, changes: Sequence[ModelDelta]) -> Tensor:
    """theta (d,) plus the mean of the changes that came; theta where none did."""
    if not changes:
        return params
    mean = torch.stack([change.delta for change in changes]).mean(0)
    return (params.double() + mean).to(params.dtype)


@dataclass
class SiloState:
    """What a node remembers of a silo between rounds; none of it is data.

    Attributes:
        round: the first round that may still be answered.
        slots: the optimizer's tensors, or None before the first round.
    """

    round: int = 0
    slots: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class SiloWorker:
    """A node's side of a run of silos: has those it hosts train.

    Attributes:
        plan: made by the node itself from the run's public configuration.
        side: what computes bounded sums over the silos' examples.
        memories: by silo.
        books: the node's own ledger, where it owns its data.
    """

    plan: Plan
    side: Worker
    memories: dict[int, SiloState] = field(default_factory=dict)
    budget_gate: NodeLedger | None = None

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """The change of each silo that is asked. Raises RefusedError where the ask is not the plan's."""
        if len(set(request.silos)) < len(request.silos):
            raise RefusedError("a silo is asked twice in one round")
        for silo in request.silos:
            self._check(request, silo)
        return tuple(ModelDelta(silo, self._change(request, silo)) for silo in request.silos)

    def close(self) -> None:
        """Nothing to release."""

    def _check(self, request: TrainRequest, silo: int) -> None:
        if not 0 <= request.round < self.plan.rounds:
            raise RefusedError(f"round {request.round} is none of the plan's {self.plan.rounds}")
        if not same_events(request.events, round_events(self.plan, request.round)):
            raise RefusedError(f"round {request.round} was not charged with what the plan releases in it")
        if not 0 <= silo < self.plan.config.clients or self.side.own not in (None, silo):
            raise RefusedError(f"silo {silo} is not here")
        if request.round < self.memories.setdefault(silo, SiloState()).round:
            raise RefusedError(f"round {request.round} was answered before")

    def _change(self, request: TrainRequest, silo: int) -> Tensor:
        """theta_K - theta of one silo, after its K steps."""
        mechanism, memory = self.plan.mechanism, self.memories[silo]
        events = round_events(self.plan, request.round)
        if self.budget_gate is not None:
            self.budget_gate.charge(request.round, events)
        memory.round = request.round + 1  # whatever happens from here on
        steps = self.plan.config.silo_steps
        start = State(
            request.params,
            request.round * steps,
            memory.slots or mechanism.optimizer.init(request.params).slots,
        )
        # Without a seed no two answers share noise, not even of one round.
        key = self.side.key.child("silo", silo) if self.side.key.reproducible else Key.fresh()
        cohorts = self.plan.cohorts(key, silo)
        end = advance(mechanism, start, start.step + steps, self.side, _Prepaid(events), key, cohorts)
        if end.stopped == StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if end.state.step != start.step + steps:
            raise RefusedError(f"round {request.round} has no room for whole steps")
        memory.slots = end.state.slots
        return end.state.params.double() - request.params.double()


@dataclass
class _Prepaid:
    """The budget gate of releases that were charged ahead: they may be made in order, and no others."""

    events: tuple[Event, ...]
    made: int = 0
    adaptive = False

    def affords(self, events: Sequence[Event]) -> bool:
        return True

    def charge(self, events: Sequence[Event]) -> None:
        end = self.made + len(events)
        if self.events[self.made : end] != tuple(events):
            raise RefusedError("a release is not the one that was charged for this step")
        self.made = end


def make_silo_worker(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any] | None = None, run_id: int = 0
) -> SiloWorker:
    """The side of a node at the client level; arguments as for :func:`fedpriv.node.factory.make_worker`.

    Raises ArgumentError where the run is of another level.
    """
    config = Config.parse(dict(run_config))
    if config.level != "client":
        raise validation.fail("level", config.level, "be client where silos are to train by themselves")
    plan = make_plan(config)
    side = make_worker(run_config, node_config)
    return SiloWorker(plan, side, budget_gate=open_node_ledger(plan, node_config or {}, run_id))
