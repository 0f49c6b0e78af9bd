"""The loop of every run: query, sample, charge, gather, release, update.

It does not depend on Ray or Flower. An :class:`Engine` answers a :class:`SumRequest` with one bounded sum: in
this process, over Ray actors, over Flower's simulation or over a deployment. The charge is made before any
unit's data is read. If the budget does not afford a release, the run ends before it. If gathering fails after
the charge, the charge remains, and the next release has new noise, because its number is new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting.accountant import BudgetGate
from fedpriv.accounting.events import Event
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.federated.stop_reason import StopReason
from fedpriv.federated.worker import zeros
from fedpriv.mechanism import release as releases
from fedpriv.mechanism.correlated import NoiseRecursion
from fedpriv.mechanism.placement import Placement
from fedpriv.mechanism.query import Query, SumBlock
from fedpriv.mechanism.sampling import Sampler
from fedpriv.optimizers.base import PlannedRelease, PrivateOptimizer, State
from fedpriv.rng import Key

Made = TypeVar("Made")

MAX_EMPTY_RELEASES = 10  # consecutive releases with too few replies, after which a run ends


@dataclass(frozen=True)
class Mechanism:
    """All parts of a run except its key and its data; they are public.

    Attributes:
        optimizer: makes the queries and uses the noisy answers.
        sampler: samples the cohorts.
        placement: who adds the noise.
        scale: the calibrated factor; release t has noise multiplier scale * r_t.
        rounds: the largest number of releases.
    """

    optimizer: PrivateOptimizer
    sampler: Sampler
    placement: Placement
    scale: float
    rounds: int

    def event(self, noise_multiplier: float, rate_factor: float = 1.0, release: int = 0) -> Event:
        """The event that is charged to the budget, for the adversary that the placement defends against.

        ``release`` is the number of the release, by which a sampler may ask another group of units. Raises
        ArgumentError if the sampler cannot sample cohorts with this factor.
        """
        sampler = self.sampler.resized(rate_factor).at(release)
        return self.placement.resized(rate_factor).enforced_event(sampler, noise_multiplier)

    def observer_event(self, noise_multiplier: float, rate_factor: float = 1.0) -> Event:
        """The event for an adversary who sees only the models (:meth:`Placement.observer_event`)."""
        sampler = self.sampler.resized(rate_factor)
        return self.placement.resized(rate_factor).observer_event(sampler, noise_multiplier)

    def message_event(self, noise_multiplier: float, rate_factor: float = 1.0) -> Event | None:
        """The event for a server that sees each message (:meth:`Placement.message_event`)."""
        sampler = self.sampler.resized(rate_factor)
        return self.placement.resized(rate_factor).message_event(sampler, noise_multiplier)

    @cached_property
    def planned(self) -> tuple[PlannedRelease, ...]:
        """The optimizer's planned releases."""
        planned = self.optimizer.planned(self.rounds)
        return tuple(_of_type(PlannedRelease, one, self.optimizer, "planned") for one in planned)

    def planned_events(self, lost: int = 0) -> tuple[Event, ...]:
        """The charged events of the whole run, from public settings alone.

        ``lost`` releases were charged whose answers no step has; they shift the numbers of the others.
        """
        return tuple(
            self.event(self.scale * p.relative_noise, p.rate_factor, number)
            for number, p in enumerate(self.planned, lost)
        )


@dataclass(frozen=True)
class Progress:
    """The public state after a round: round number, number of releases, noisy state."""

    round: int
    releases: int
    state: State


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the last state, the number of releases charged, and why it stopped."""

    state: State
    releases: int
    stopped: StopReason


def run(
    mechanism: Mechanism,
    params: Tensor,
    engine: Engine,
    budget_gate: BudgetGate,
    key: Key,
    cohorts: CohortSampler,
    observe: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run the loop from ``params`` (d,) until the rounds or the budget end, or until Ctrl-C.

    ``budget_gate`` is an :class:`~fedpriv.accounting.Accountant`, a :class:`~fedpriv.accounting.Filter`, or
    another object with their ``adaptive``, ``affords`` and ``charge``. A release with too few replies is
    charged but does not count as a round; ``MAX_EMPTY_RELEASES`` of them in a row end the run.

    Returns:
        the outcome; ``stopped`` is ROUNDS, BUDGET, INTERRUPTED or UNANSWERED.

    Raises:
        ArgumentError: before the release is charged, if ``cohorts`` has another sampler than ``mechanism``,
            an unseeded ``key`` was used by another run, or the optimizer requests other noise than it planned
            and ``budget_gate`` is not adaptive.
    """
    state = mechanism.optimizer.init(params)
    return advance(mechanism, state, mechanism.rounds, engine, budget_gate, key, cohorts, observe)


def advance(
    mechanism: Mechanism,
    state: State,
    until: int,
    engine: Engine,
    budget_gate: BudgetGate,
    key: Key,
    cohorts: CohortSampler,
    observe: Callable[[Progress], None] = lambda progress: None,
    first: int | None = None,
    unanswered: int = 0,
) -> Outcome:
    """As :func:`run`, from ``state`` until step ``until``.

    Releases are numbered from ``first`` (default: ``state.step``); no number may have been used before. If a
    release was interrupted before its charge, an unseeded key cannot continue: pass a fresh one. The last
    ``unanswered`` numbers before ``first`` are releases that were charged and have no answer: each is made
    first, as one that nobody answers.
    """
    if cohorts.sampler != mechanism.sampler:
        raise validation.fail(
            "cohorts", cohorts.sampler, f"be drawn by the mechanism's sampler, {mechanism.sampler}"
        )
    done = state.step
    paid = done if first is None else first
    charged, empty = paid - unanswered, 0
    # In memory only, so that a resumed run begins a new recursion: who reads past noise reads past sums.
    bands = mechanism.sampler.bands
    recursion = NoiseRecursion(bands) if bands > 1 else None
    try:
        while done < until:
            # 1. query: depends on noisy answers only
            query = _of_type(Query, mechanism.optimizer.query(state), mechanism.optimizer, "query")
            if done + query.releases > until:
                break  # there are not enough rounds for the whole step
            if not budget_gate.adaptive:
                _check_planned(mechanism, done, query)
            multiplier = mechanism.scale * query.relative_noise
            if recursion is not None:
                _check_correlated(mechanism, query)
            event = mechanism.event(multiplier, query.rate_factor, charged)
            asked = charged >= paid
            if asked and not budget_gate.affords([event] * query.releases):
                return Outcome(state, charged, StopReason.BUDGET)
            key.once("release", charged)
            shards = cohorts.draw(charged, query.rate_factor) if asked else ()  # 2. sample
            placement = mechanism.placement.resized(query.rate_factor)
            # in parallel with the disk and the parties
            ahead = releases.draw_ahead(query, multiplier, placement, key, charged, recursion)
            if asked:
                budget_gate.charge([event])  # 3. charge: on disk before any request
            charged += 1
            request = SumRequest(
                query, charged - 1, shards, placement.party_stds(query.noise_stds(multiplier))
            )
            reply = engine.gather(request) if asked else PartialSum(zeros(query), 0)  # 4. gather
            size = mechanism.sampler.resized(query.rate_factor).expected_size
            answer = releases.release(  # 5. release: add noise
                reply.sums,
                reply.parties,
                query,
                multiplier,
                placement,
                size,
                key,
                request.release,
                ahead,
                recursion,
            )
            if answer is None:
                empty += 1
                if empty == MAX_EMPTY_RELEASES:
                    return Outcome(state, charged, StopReason.UNANSWERED)
                continue
            empty = 0
            # 6. update: post-processing costs no privacy
            state = _of_type(State, mechanism.optimizer.update(state, answer), mechanism.optimizer, "update")
            done += 1
            observe(Progress(done, charged, state))
    except KeyboardInterrupt:
        return Outcome(state, charged, StopReason.INTERRUPTED)
    return Outcome(state, charged, StopReason.ROUNDS)


def _of_type(wanted: type[Made], value: Made, optimizer: PrivateOptimizer, method: str) -> Made:
    """What a method of the optimizer returned. Raises ArgumentError if it is of another type."""
    if not isinstance(value, wanted):
        name = f"{type(optimizer).__name__}.{method}"
        raise validation.ArgumentError(
            f"{name} returned a {type(value).__name__}; it must return a {wanted.__name__}"
        )
    return value


def _check_correlated(mechanism: Mechanism, query: Query) -> None:
    """Raises ArgumentError for what correlated noise is not proved for."""
    steady = query.relative_noise == 1 and query.rate_factor == 1 and query.releases == 1
    terms = [len(block.terms) if isinstance(block, SumBlock) else 0 for block in query.blocks]
    # A release without an answer would bring two participations of a unit closer together than b releases.
    central = not mechanism.placement.at_parties and mechanism.placement.releases(0)
    if not steady or len(query.points) != 1 or terms != [1] or not central:
        raise validation.fail(
            "noise-bands",
            mechanism.sampler.bands,
            f"be 1 with {type(mechanism.optimizer).__name__} and {mechanism.placement.name} noise",
            "correlated noise is for one clipped gradient a step, one noise multiplier and central noise",
        )


def _check_planned(mechanism: Mechanism, step: int, query: Query) -> None:
    """Raises ArgumentError for an unplanned noise or cohort: an accountant cannot bound adaptive choices."""
    plan = mechanism.planned[step] if step < len(mechanism.planned) else None
    requested = (query.relative_noise, query.rate_factor)
    if plan is None or requested != (plan.relative_noise, plan.rate_factor):
        planned = plan and (plan.relative_noise, plan.rate_factor)
        number = len(mechanism.planned)
        raise validation.fail(
            f"relative noise and rate factor of {type(mechanism.optimizer).__name__} at step {step}",
            requested,
            f"be {planned}, as planned" if planned else f"be planned; it planned {number} releases",
            "noise that is chosen from earlier answers needs a privacy filter (fedpriv.accounting.Filter)",
        )
