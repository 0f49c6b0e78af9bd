"""A release on neighbouring data: what changes if one canary is removed or replaced, and all else is equal?

One step of the run is repeated with the same state, cohort and noise, without one canary. The repeated step
goes through the run's own loop, engine, release and optimizer. Canaries share their parameters here, so that
a fault can let one of them change what another adds. A run's own units (:mod:`fedpriv.auditing.own_units`) do
so by themselves. Then

- the sums may differ by the public bound S of each block, and by the canary's own contribution alone;
- what is released may differ by this difference over the public denominator, and by nothing else;
- the optimizer's queries, and its updates on given answers, may not differ at all.

This holds each contribution against S directly, without statistics, so one canary is enough. It is done for a
few of them. The contributions of all canaries of these cohorts are compared with their closed forms, in
parameters that no other canary has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fedpriv.accounting.events import Event
from fedpriv.auditing import claims
from fedpriv.auditing.audited_units import AuditedUnits, numbers
from fedpriv.auditing.canaries import Canaries
from fedpriv.auditing.subject import Subject
from fedpriv.config.plan import Plan
from fedpriv.data import Indices
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.loop import advance
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.placement import AtParties
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.optimizers.base import OptimizerWrapper, PrivateOptimizer, State
from fedpriv.rng import Key

# Relative to S: rounding of float32 sums and of the grid. Relative to a released number: of float32.
_OF_SUMS, _OF_RELEASED = 1e-3, 1e-6
_PROBED = 3  # canaries that are left out, one at a time


@dataclass
class _Cohorts(CohortSampler):
    """The run's cohorts without one unit, or with the fewest parties."""

    left_out: int = -1
    most_parties: int = 0

    def draw(self, release: int, rate_factor: float = 1.0) -> tuple[Shard, ...]:
        """See :class:`CohortSampler`."""
        shards, left, kept = super().draw(release, rate_factor), self.most_parties, list[Shard]()
        for shard in shards:
            ids = shard.ids[shard.ids != self.left_out]
            gone = len(shard.ids) - len(ids) if self.silo_starts is None else 0
            if self.most_parties:
                gone = shard.parties - min(shard.parties, left)
                ids = ids[: shard.parties - gone]
                left -= shard.parties - gone
            if shard.parties > gone:
                kept.append(replace(shard, ids=ids, parties=shard.parties - gone))
        return tuple(kept)


@dataclass(frozen=True)
class _Recorder(OptimizerWrapper):
    """The optimizer, and the engine, of one repetition. It records everything that they exchange.

    Attributes:
        inner: the run's optimizer.
        gathers: the engine.
        side: the worker that computes exact sums.
        forced: the answers that the optimizer gets in place of its own, or ().
    """

    inner: PrivateOptimizer
    gathers: Callable[[SumRequest], PartialSum]
    side: Worker
    forced: Sequence[NoisyAnswer] = ()
    queries: list[Query] = field(default_factory=list)
    requests: list[SumRequest] = field(default_factory=list)
    answers: list[NoisyAnswer] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def query(self, state: State) -> Query:
        """See :class:`PrivateOptimizer`."""
        self.queries.append(self.inner.query(state))
        return self.queries[-1]

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """See :class:`PrivateOptimizer`."""
        self.answers.append(tuple(part.clone() for part in answer))
        given = self.forced[len(self.answers) - 1] if self.forced else answer
        self.states.append(self.inner.update(state, given))
        return self.states[-1]

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`."""
        self.requests.append(request)
        return self.gathers(request)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

    def has(self, number: int, canary: int) -> bool:
        """Whether the canary is in the cohort of a request."""
        return any(canary in shard.ids for shard in self.requests[number].shards)

    def sums(self, number: int, ids: Indices | None = None) -> list[Tensor]:
        """The exact sums of a request, or those over ``ids`` alone."""
        request = replace(self.requests[number], party_stds=None)
        if ids is not None:
            request = replace(request, shards=(Shard(0, ids, parties=1),))
        return [total.double() for total in self.side.answer(request).sums]


class _Free:
    """A budget gate that allows everything: repeated steps are not released."""

    adaptive = True

    def affords(self, events: Sequence[Event]) -> bool:
        return True

    def charge(self, events: Sequence[Event]) -> None:
        return None


@dataclass(frozen=True)
class Neighbours:
    """Repeats steps of a run on neighbouring data.

    Attributes:
        subject: what is audited.
        units: its units, in steps; the key must be seeded, since noise is repeated.
        key: the run's, or the silo's.
        optimizer: the run's optimizer.
        silo: the silo that trains apart, or None.
    """

    subject: Subject
    units: AuditedUnits
    key: Key
    optimizer: PrivateOptimizer
    silo: int | None = None

    @property
    def plan(self) -> Plan:
        """The run's public plan."""
        return self.subject.plan

    def faults(self, state: State, releases: int) -> Iterator[str]:
        """What is wrong with the next ``releases`` releases from ``state``, in a few words each."""
        original = self._repeated(state, releases)
        for number, canary in enumerate(self._chosen(original)):
            yield from self._compared(original, int(canary), state, releases, number == 0)
        if isinstance(self.subject.units, Canaries):
            yield from self._each(original, self.subject.units)

    def _each(self, original: _Recorder, canaries: Canaries) -> Iterator[str]:
        """What is wrong with any canary's contribution in the cohorts, each in its own parameters."""
        side = replace(self.subject.side, view=canaries)
        for query, request in zip(original.queries, original.requests, strict=False):
            ids = np.concatenate([*(shard.ids for shard in request.shards), np.zeros(0, np.int64)])
            sums = [numbers(part) for part in side.answer(replace(request, party_stds=None)).sums]
            wanted = canaries.total(query, request.release, ids)
            for part, own, bound in zip(sums, wanted, claims.sensitivities(query), strict=True):
                if not np.abs(canaries.shaped(part) - own).max() <= _OF_SUMS * bound:
                    yield "a canary that does not add its clipped vector"

    def few_parties(self, state: State, releases: int) -> Iterator[tuple[str, float]]:
        """(what it finds, p-value): the noise on a sum of the fewest parties must be that of the usual sum.

        Parties add shares of the noise, and the server adds the missing shares, so the noise does not tell
        how many took part.
        """
        placement = self.plan.mechanism.placement
        if not isinstance(placement, AtParties) or not placement.per_unit:
            return
        fewest = max(1, placement.min_replies)
        recorder = self._repeated(state, releases, most_parties=fewest)
        for number, answer in enumerate(recorder.answers):
            query = recorder.queries[number]
            z = self.plan.mechanism.scale * query.relative_noise
            stds = claims.noise_stds(query, z, claims.surplus(self.plan, query.rate_factor))
            size = claims.denominator(self.plan, query.rate_factor)
            for part, exact, std in zip(answer, recorder.sums(number), stds, strict=True):
                left = (size * part.double().cpu() - exact.cpu()).flatten() / std
                below = stats.chi2.cdf(float(left @ left), left.numel())
                yield "noise that depends on the number of parties", 2 * min(below, 1 - below)

    def _repeated(
        self,
        state: State,
        releases: int,
        units: AuditedUnits | None = None,
        left_out: int = -1,
        most_parties: int = 0,
        forced: Sequence[NoisyAnswer] = (),
    ) -> _Recorder:
        of = units or self.units
        gathers = partial(self.subject.repeat, units=of)
        recorder = _Recorder(self.optimizer, gathers, replace(self.subject.side, view=of), forced)
        cohorts = self.plan.cohorts(self.key, self.silo)
        fields = {name: getattr(cohorts, name) for name in cohorts.__dataclass_fields__}
        fields |= {"max_participations": None}
        advance(
            replace(self.plan.mechanism, optimizer=recorder),
            state,
            state.step + releases,
            recorder,
            _Free(),
            self.key,
            _Cohorts(**fields, left_out=left_out, most_parties=most_parties),
        )
        return recorder

    @property
    def _samples(self) -> bool:
        return SAMPLERS[self.plan.config.sampler].sampling.samples

    def _chosen(self, original: _Recorder) -> Indices:
        """Some present canaries of the first cohort."""
        shards = [shard.ids for request in original.requests[:1] for shard in request.shards]
        ids = np.concatenate([*shards, np.zeros(0, np.int64)])
        return self.units.probed(ids, _PROBED)

    def _compared(
        self, original: _Recorder, canary: int, state: State, releases: int, leave_out: bool
    ) -> Iterator[str]:
        other = self.units.flipped(canary)
        given = original.answers
        yield from self._differences(original, self._repeated(state, releases, other, forced=given), canary)
        # Where everyone takes part, who the parties are is public, and with fewer there may be no release.
        known = isinstance(self.plan.mechanism.placement, AtParties) and not self._samples
        if leave_out and not self.units.replaced and not known:
            left_out = self._repeated(state, releases, left_out=canary, forced=given)
            yield from self._differences(original, left_out, canary)

    def _differences(self, one: _Recorder, other: _Recorder, canary: int) -> Iterator[str]:
        """What the repetition without ``canary`` shows."""
        if len(one.answers) != len(other.answers):
            yield "a number of releases that depends on one unit"
        for query, again in zip(one.queries, other.queries, strict=False):
            if not _equal_queries(query, again):
                yield "a query that is computed from data, not from noisy answers"
        for number in range(min(len(one.answers), len(other.answers))):
            yield from self._moved(one, other, number, canary)
            if not _equal_states(one.states[number], other.states[number]):
                yield "an update that is computed from data, not from noisy answers"

    def _moved(self, one: _Recorder, other: _Recorder, number: int, canary: int) -> Iterator[str]:
        """Compares the sums and the answers of one release."""
        query, moves = one.queries[number], 2 if self.units.replaced else 1
        alone = np.array([canary], np.int64)
        differences = _difference(one.sums(number), other.sums(number))
        parts = [
            recorder.sums(number, alone if recorder.has(number, canary) else alone[:0])
            for recorder in (one, other)
        ]
        by_itself = _difference(*parts)
        stds = one.requests[number].party_stds
        same_noise = stds is None or _parties(one, number) == _parties(other, number)
        size = claims.denominator(self.plan, query.rate_factor)
        for position, bound in enumerate(claims.sensitivities(query)):
            moved, itself = differences[position], by_itself[position]
            tolerance = _OF_SUMS * bound
            # Not "greater", which a sum that is not a number never is.
            largest = moves * bound + tolerance
            if not (moved.norm() <= largest and itself.norm() <= largest):
                yield "a unit that moves a sum by more than its bound"
            if not (moved - itself).norm() <= tolerance:
                yield "a unit whose contribution depends on its cohort"
            released = size * one.answers[number][position].double().cpu()
            change = released - size * other.answers[number][position].double().cpu()
            tolerance += _OF_RELEASED * float(released.norm())
            if same_noise and not (change - moved).norm() <= tolerance:
                yield "a release that depends on the cohort by more than its sum"


def _parties(recorder: _Recorder, number: int) -> list[int]:
    return [shard.parties for shard in recorder.requests[number].shards]


def _difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[Tensor]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True)


def _terms(query: Query) -> list[Term]:
    blocks = query.blocks
    return [term for b in blocks for term in (b.terms if isinstance(b, SumBlock) else (b.term,))]


def _equal_queries(one: Query, other: Query) -> bool:
    """Whether the queries are equal, with their points, divisors and offsets."""

    def numbers(query: Query) -> list[object]:
        own = [(block.share, getattr(block, "threshold", None)) for block in query.blocks]
        terms = [
            (term.clip_norm, term.weight, term.at, term.per_layer, term.gamma, term.squared)
            for term in _terms(query)
        ]
        return [query.relative_noise, query.rate_factor, query.releases, *own, *terms]

    tensors = zip(
        [*one.points, *(v for term in _terms(one) for v in (term.divisor, term.offset))],
        [*other.points, *(v for term in _terms(other) for v in (term.divisor, term.offset))],
        strict=False,
    )
    return numbers(one) == numbers(other) and all(_equal(a, b) for a, b in tensors)


def _equal_states(one: State, other: State) -> bool:
    mine, its = one.tensors(), other.tensors()
    return one.step == other.step and mine.keys() == its.keys() and all(_equal(mine[k], its[k]) for k in mine)
