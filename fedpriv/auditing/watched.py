"""The run's optimizer and engine, observed by the adversaries and the auditor.

An adversary sees every released sum, or what its view says (:mod:`fedpriv.auditing.views`). It knows the
public settings, the queries' points, divisors and offsets, and what each canary would add. The auditor also
knows the coins and the cohorts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedpriv.auditing import claims
from fedpriv.auditing.audited_units import AuditedUnits, Floats, numbers
from fedpriv.auditing.correlated_releases import CorrelatedReleases, Rows, Seen
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.protocol import WatchedProtocol
from fedpriv.auditing.subject import Subject
from fedpriv.auditing.views import Splitter, View
from fedpriv.config.plan import Plan
from fedpriv.data import Indices
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.mechanism.placement import AtParties
from fedpriv.mechanism.query import NoisyAnswer, Query
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.optimizers.base import OptimizerWrapper, PrivateOptimizer, State
from fedpriv.rng import Key

_MAX_LOG_RATIO = 300.0  # log likelihood ratios above it are not changed by the sampling rate
_COMPARED = 10_000  # coordinates of a noise, of which fewer are enough to tell whether it is another's
_READERS = 2  # adversaries who take what they see of masked messages for plain messages
_NO_UNITS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Kept:
    """A state before some releases, at which the run is repeated on neighbouring data."""

    state: State
    releases: int


@dataclass(frozen=True)
class Watched(OptimizerWrapper):
    """The run's optimizer and engine, observed.

    Attributes:
        inner: the run's optimizer.
        subject: what is audited.
        guessed: those of its units whose coins are guessed here, ascending (k,).
        charged: the run's budget gate, which tells what was charged.
        scores: log likelihood ratios of each guessed unit's presence given all answers, by adversary: (a, k).
        residuals: the auditor's tests of noise and cohorts.
        silo: the silo that trains apart with this optimizer, or None.
        messages: the auditor's tests of the noise in messages that are seen by themselves.
        noises: the noises of a silo's steps in this round in units of their std, each at up to _COMPARED
            coordinates.
        first: the first query of the run.
        kept: states of the run at its beginning, middle and end.
    """

    inner: PrivateOptimizer
    subject: Subject
    guessed: Indices
    charged: claims.Charged
    scores: Floats
    residuals: Residuals
    silo: int | None = None
    messages: Residuals = field(default_factory=lambda: Residuals(1))
    noises: list[Floats] = field(default_factory=list)
    first: list[Query] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    _now: dict[str, object] = field(default_factory=dict)

    @classmethod
    def over(cls, subject: Subject, charged: claims.Charged, silo: int | None = None) -> Watched:
        """The plan's optimizer, observed from its first release on; that of ``silo`` if silos train apart."""
        plan = subject.plan
        population = plan.mechanism.sampler.population
        guessed = subject.coins
        if silo is not None:
            guessed = guessed[guessed // population == silo]
        # Behind secure aggregation two more adversaries read messages as if masks were absent.
        adversaries = len(subject.suspected) + _READERS * (subject.view is View.PROTOCOL)
        scores, tests = np.zeros((adversaries, len(guessed))), Residuals(population)
        return cls(plan.mechanism.optimizer, subject, guessed, charged, scores, tests, silo)

    @cached_property
    def unmixed(self) -> Rows:
        """Makes the noises of releases independent; of independent ones it changes nothing."""
        return Rows(self.plan.mechanism.sampler.bands)

    @cached_property
    def correlated(self) -> CorrelatedReleases | None:
        """The releases, where their noise is correlated."""
        bands = self.plan.mechanism.sampler.bands
        return CorrelatedReleases(bands) if bands > 1 else None

    @cached_property
    def protocol(self) -> WatchedProtocol | None:
        """The run's secure aggregation, where the adversary is its server."""
        if self.subject.view is not View.PROTOCOL:
            return None
        placement = self.plan.mechanism.placement
        assert isinstance(placement, AtParties)
        return WatchedProtocol(
            lambda request: self._gathered(request, request.shards),
            self.plan.config.clients,
            placement.min_replies,
        )

    @cached_property
    def splitter(self) -> Splitter:
        """Which messages the adversary knows."""
        return Splitter.of(self.subject.view, self.plan)

    @property
    def plan(self) -> Plan:
        """The run's public plan."""
        return self.subject.plan

    @property
    def units(self) -> AuditedUnits:
        """The canaries, or the run's own units."""
        return self.subject.units

    @property
    def key(self) -> Key:
        """The key of the worker's noise."""
        return self.subject.side.key

    @property
    def own(self) -> None:
        """The worker answers for every silo."""
        return None

    def query(self, state: State) -> Query:
        """See :class:`PrivateOptimizer`. Some states are kept."""
        query = self.inner.query(state)
        rounds = self.plan.mechanism.rounds
        if state.step in (0, rounds // 2, rounds - query.releases) and query.releases <= rounds - state.step:
            self.kept.append(Kept(state, query.releases))
        self._now["query"] = query
        self.first.extend([] if self.first else [query])
        return query

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """See :class:`PrivateOptimizer`. The answer is observed first."""
        self._observe(state, answer)
        return self.inner.update(state, answer)

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`. The request's cohort is recorded, and the
        messages that the adversary knows."""
        self.asked(request)
        if self.protocol is not None:
            reply = self.protocol.gather(request)
            self._now["messages"] = self.protocol.answered
            return reply
        shards = self.splitter.split(request.shards) if self.splitter.splits else []
        if not shards:
            return self._gathered(request, request.shards)
        replies = [self._gathered(request, (shard,)) for shard in shards]
        self._now["messages"] = list(zip(shards, replies, strict=True))
        sums = zip(*(reply.sums for reply in replies), strict=True)
        parties = sum(reply.parties for reply in replies)
        return PartialSum(tuple(torch.stack(parts).sum(0) for parts in sums), parties)

    def asked(self, request: SumRequest) -> None:
        """Records the request of the next answer, and with it the cohort."""
        self._now["request"], self._now["messages"] = request, []

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

    def _gathered(self, request: SumRequest, shards: tuple[Shard, ...]) -> PartialSum:
        """What the run's engine gives for some shards."""
        return self.subject.gather(replace(request, shards=shards), self.units)

    def _observe(self, state: State, answer: NoisyAnswer) -> None:
        """Updates the adversaries' scores and the auditor's tests with one answer."""
        query, request = self._now["query"], self._now["request"]
        assert isinstance(query, Query)
        assert isinstance(request, SumRequest)
        charged = self.charged.events
        if not charged or (self.silo is not None and state.step >= len(charged)):
            return self.residuals.fault("a release that was not charged")
        event = charged[-1] if self.silo is None else charged[state.step]  # a silo is charged for some steps
        factor = query.rate_factor
        if found := claims.mismatch(self.plan, event, request.release, factor):
            self.residuals.fault(found)
        size, bands = claims.denominator(self.plan, factor), self.plan.mechanism.sampler.bands
        sums = [self._shaped(size * part.double()) for part in answer]
        cohort = np.concatenate([shard.ids for shard in request.shards] or [_NO_UNITS])
        if claims.of_another_group(self.plan, request.release, cohort):
            self.residuals.fault("a unit of another group")
        hidden, known = cohort, self._known()
        for shard, reply in known:
            sums = [total - self._shaped(part) for total, part in zip(sums, reply.sums, strict=True)]
            hidden = np.setdiff1d(hidden, shard.ids)
        surplus = claims.surplus(self.plan, factor, sum(reply.parties for _, reply in known))
        stds = claims.noise_stds(query, event.noise_multiplier, surplus)
        exact = self.units.total(query, request.release, hidden)
        left = [(total - own) / std for total, own, std in zip(sums, exact, stds, strict=True)]
        left = self.unmixed.following(left)
        sampling = SAMPLERS[self.plan.config.sampler].sampling
        # Where nothing is sampled, cohorts may be known and the same in every release.
        rate = min(1.0, bands * size / self.plan.mechanism.sampler.population) if sampling.samples else 1.0
        if self.silo is not None:
            noise = np.concatenate([part.ravel() for part in left])
            self.noises.append(noise[:: -(-len(noise) // _COMPARED)])
        drawn = cohort, rate, sampling.random_size, bands, request.release % bands
        self.residuals.add([part.ravel() for part in left], *drawn)
        if self.splitter.view is View.SERVER:
            share = claims.party_share(self.plan, factor)
            return self._read(query, request.release, claims.noise_stds(query, event.noise_multiplier, share))
        if self.protocol is not None:
            share = claims.party_share(self.plan, factor)
            shares = claims.noise_stds(query, event.noise_multiplier, share)
            self._read(query, request.release, shares, self.protocol.read(request))
        if self.correlated is None:
            return self._score(query, request.release, sums, stds, rate, self.guessed, hidden)
        units = self.guessed[self.guessed % bands == request.release % bands]
        expected = self.units.expected(query, request.release, units, hidden, rate)
        seen = Seen(query, request.release, units, hidden, sums, expected, stds, rate)
        for one in self.correlated.add(seen):
            self._score_window(one)

    def finish(self) -> None:
        """Scores what the end of the run leaves open."""
        for one in self.correlated.rest() if self.correlated is not None else ():
            self._score_window(one)

    def _score_window(self, seen: Seen) -> None:
        """Scores a release with correlated noise, once all is seen of it."""
        whose = seen.units, seen.cohort
        self._score(seen.query, seen.release, seen.sums, seen.stds, seen.rate, *whose)

    def _known(self) -> list[tuple[Shard, PartialSum]]:
        """The messages of colluding parties in this release."""
        messages = cast(list[tuple[Shard, PartialSum]], self._now["messages"])
        return [(shard, reply) for shard, reply in messages if self.splitter.knows(shard)]

    def _read(
        self,
        query: Query,
        release: int,
        stds: Sequence[float],
        seen: Sequence[Mapping[int, PartialSum]] = (),
    ) -> None:
        """Tests the noise of each message of a release, and scores it for an adversary who sees who sent it.

        ``seen`` has what each of _READERS adversaries sees of the silos' messages, if not the messages.
        """
        left = list[list[Floats]]()
        for shard, reply in cast(list[tuple[Shard, PartialSum]], self._now["messages"]):
            sums = [self._shaped(part) for part in reply.sums]
            exact = self.units.total(query, release, shard.ids)
            each = zip(sums, exact, stds, strict=True)
            left.append([((total - own) / std).ravel() for total, own, std in each])
            units = np.intersect1d(shard.ids, self.guessed)
            if len(units) and not seen:
                self._score(query, release, sums, stds, 1.0, units, shard.ids)
            for reader, replies in enumerate(seen if len(units) else ()):
                if (silo := shard.home or 0) in replies:
                    read = [self._shaped(part) for part in replies[silo].sums]
                    self._score(query, release, read, stds, 1.0, units, shard.ids, reader)
        if left:
            self.messages.add([np.concatenate(parts) for parts in zip(*left, strict=True)], _NO_UNITS, 1.0)
            self.messages.compare(np.stack([parts[0] for parts in left]))

    def _score(
        self,
        query: Query,
        release: int,
        sums: Sequence[Floats],
        stds: Sequence[float],
        rate: float,
        units: Indices,
        cohort: Indices,
        reader: int | None = None,
    ) -> None:
        """Adds the log likelihood ratios of one sum, for some guessed units, to the adversaries' scores.

        ``reader`` is the number of the only adversary who sees it; that one believes the ledger's noise.
        """
        if not len(units):  # the cohort has none of them, and its sum says nothing of them
            return
        places = np.searchsorted(self.guessed, units)
        assumed = self.subject.suspected if reader is None else (1.0,)
        first = 0 if reader is None else len(self.subject.suspected) + reader
        rows = self.scores[first : first + len(assumed)]
        for sign, logs in self.units.ratios(query, release, units, sums, stds, rate, cohort, assumed):
            rows[:, places] += sign * mixed(logs, rate)

    def score_change(self, change: Floats) -> None:
        """Makes the scores those of an adversary who sees the model's change (d,) alone.

        A unit that is there moves the parameters against its gradients, as others do: whether it is there
        shows beside the scores of others. One alone is compared with those of other runs
        (:func:`fedpriv.auditing.judgement.joined`).
        """
        (first,) = self.first
        score = self.units.moves(first, self.guessed, change)
        self.scores[:] = score - np.median(score) if self.compares and len(score) > 1 else score

    @property
    def compares(self) -> bool:
        """Whether a score tells by itself nothing about presence, but by comparison with others."""
        return self.subject.view is View.LAST_MODEL and not self.units.replaced

    def _shaped(self, part: Tensor) -> Floats:
        return self.units.shaped(numbers(part))


def mixed(log: Floats, rate: float) -> Floats:
    """log(1 - q + q e^log), the log likelihood ratio if the cohort is unknown."""
    if rate == 1:
        return log
    found: Floats = np.where(
        log < _MAX_LOG_RATIO, np.log1p(rate * np.expm1(np.minimum(log, _MAX_LOG_RATIO))), log
    )
    return found
