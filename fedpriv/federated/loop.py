"""The loop that every run is: query, sample, charge, gather, release, update.

It knows no Ray and no Flower. An :class:`Engine` turns an :class:`SumRequest` into one bounded sum: in this
process, over Ray actors, over Flower's simulation or over a deployment. Charging comes before any unit
is touched; a release that the budget does not afford is not made, and the run ends there with what it
has. A gathering that fails after the charge leaves the charge standing, and the next release draws
fresh noise, because its number is new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting.accountant import BudgetGate
from fedpriv.accounting.events import Event
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import Engine, SumRequest
from fedpriv.federated.stop_reason import StopReason
from fedpriv.mechanism import release as releases
from fedpriv.mechanism.placement import Placement
from fedpriv.mechanism.query import Query
from fedpriv.mechanism.sampling import Sampler
from fedpriv.optimizers.base import PlannedRelease, PrivateOptimizer, State
from fedpriv.rng import Key

MAX_EMPTY_RELEASES = 10  # releases in a row that too few parties may answer


@dataclass(frozen=True)
class Mechanism:
    """Everything one run is made of but its key and its data; all of it public.

    Attributes:
        optimizer: what is asked and how answers are used.
        sampler: how cohorts are drawn.
        placement: who adds the noise.
        scale: the calibrated factor; release t has multiplier scale * r_t.
        rounds: how many releases at most.
    """

    optimizer: PrivateOptimizer
    sampler: Sampler
    placement: Placement
    scale: float
    rounds: int

    def event(self, noise_multiplier: float, rate_factor: float = 1.0) -> Event:
        """The event that the budget is held to, for the adversary that the placement defends against.

        Raises ArgumentError where the sampler draws no cohort of this factor, whoever the adversary is.
        """
        sampler = self.sampler.resized(rate_factor)
        return self.placement.resized(rate_factor).enforced_event(sampler, noise_multiplier)

    def observer_event(self, noise_multiplier: float, rate_factor: float = 1.0) -> Event:
        """The event as who sees only the models has it (:meth:`Placement.observer_event`)."""
        sampler = self.sampler.resized(rate_factor)
        return self.placement.resized(rate_factor).observer_event(sampler, noise_multiplier)

    @cached_property
    def planned(self) -> tuple[PlannedRelease, ...]:
        """What the optimizer said that it will ask, release by release."""
        return tuple(self.optimizer.planned(self.rounds))

    def planned_events(self, scale: float | None = None) -> tuple[Event, ...]:
        """The gate's events of the whole run, from public settings alone."""
        s = self.scale if scale is None else scale
        return tuple(self.event(s * p.relative_noise, p.rate_factor) for p in self.planned)


@dataclass(frozen=True)
class Progress:
    """What an observer sees after each round: the noisy state, and public counts."""

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
    """Run the loop from ``params`` (d,) until the rounds or the budget end, or Ctrl-C.

    ``budget_gate`` is an :class:`~fedpriv.accounting.Accountant`, a privacy
    :class:`~fedpriv.accounting.Filter`, or anything else with their ``adaptive``, ``affords`` and ``charge``.

    Returns the outcome with ``stopped`` being ROUNDS, BUDGET, INTERRUPTED or UNANSWERED.
    Rounds whose gathering released nothing (too few replies) are charged and do not count as rounds;
    ``MAX_EMPTY_RELEASES`` of them in a row end the run.

    Raises ArgumentError, before anything of that release is charged, where ``cohorts`` are of another sampler
    than the one that is accounted for, where an unseeded ``key`` was used by another run, and where the
    optimizer asks for other noise than it planned and ``budget_gate`` is not adaptive.
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
) -> Outcome:
    """As :func:`run`, from a state after any number of steps until it has made ``until``.

    Releases are numbered on from ``first``, by default ``state.step``: no number may have been used before.
    An unseeded key does not go on after a release that was interrupted before its charge: give a fresh one.
    """
    if cohorts.sampler != mechanism.sampler:
        raise validation.fail(
            "cohorts", cohorts.sampler, f"be drawn by the setup's sampler, {mechanism.sampler}"
        )
    done = state.step
    charged = done if first is None else first
    unanswered = 0
    try:
        while done < until:
            query = mechanism.optimizer.query(state)  # 1. what is asked, from noisy answers only
            if done + query.releases > until:
                break  # a step is begun only where it can be finished
            if not budget_gate.adaptive:
                _check_planned(mechanism, done, query)
            multiplier = mechanism.scale * query.relative_noise
            event = mechanism.event(multiplier, query.rate_factor)
            if not budget_gate.affords([event] * query.releases):
                return Outcome(state, charged, StopReason.BUDGET)
            key.once("release", charged)
            shards = cohorts.draw(charged, query.rate_factor)  # 2. who is asked
            placement = mechanism.placement.resized(query.rate_factor)
            ahead = releases.draw_ahead(query, placement, key, charged)  # while the disk is awaited
            budget_gate.charge([event])  # 3. paid for, on disk, before anyone is asked
            charged += 1
            request = SumRequest(
                query, charged - 1, shards, placement.party_stds(query.noise_stds(multiplier))
            )
            reply = engine.gather(request)  # 4. answered
            size = mechanism.sampler.resized(query.rate_factor).expected_size
            answer = releases.release(  # 5. and made noisy
                reply.sums, reply.parties, query, multiplier, placement, size, key, request.release, ahead
            )
            if answer is None:
                unanswered += 1
                if unanswered == MAX_EMPTY_RELEASES:
                    return Outcome(state, charged, StopReason.UNANSWERED)
                continue
            unanswered = 0
            state = mechanism.optimizer.update(state, answer)  # 6. post-processing: free
            done += 1
            observe(Progress(done, charged, state))
    except KeyboardInterrupt:
        return Outcome(state, charged, StopReason.INTERRUPTED)
    return Outcome(state, charged, StopReason.ROUNDS)


def _check_planned(mechanism: Mechanism, step: int, query: Query) -> None:
    """Refuse noise, or a cohort, that was not known before the run: no accountant bounds the sum of such."""
    plan = mechanism.planned[step] if step < len(mechanism.planned) else None
    asked = (query.relative_noise, query.rate_factor)
    if plan is None or asked != (plan.relative_noise, plan.rate_factor):
        name, said = type(mechanism.optimizer).__name__, plan and (plan.relative_noise, plan.rate_factor)
        raise validation.fail(
            f"relative noise and rate factor of {name} at step {step}",
            asked,
            f"be {said}, as planned" if said else f"be planned; it planned {len(mechanism.planned)} releases",
            "noise that is chosen from earlier answers needs a privacy filter (fedpriv.accounting.Filter)",
        )
