"""The run's optimizer and engine, observed by the adversaries and the auditor.

An adversary sees every released sum. It knows the public settings, the queries' points and divisors, and what
each canary would add. The auditor also knows the coins and the cohorts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedpriv.auditing import claims
from fedpriv.auditing.canaries import LAYERS, Canaries, Floats
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.config.plan import Plan
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.optimizers.base import OptimizerWrapper, PrivateOptimizer, State
from fedpriv.rng import Key

SUSPECTED = (1.0, 0.5, 0.25, 0.125)  # the adversaries' assumed noise, as factors on the claimed noise
_MAX_LOG_RATIO = 300.0  # log likelihood ratios above it are not changed by the sampling rate
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
        plan: the run's public plan.
        side: the worker with canaries as units.
        units: the canaries.
        charged: the run's budget gate, which tells what was charged.
        scores: log likelihood ratios of each canary's presence given all answers, by adversary: (k, m).
        residuals: the auditor's tests of noise and cohorts.
        silo: the silo that trains apart with this optimizer, or None.
        kept: states of the run at its beginning, middle and end.
    """

    inner: PrivateOptimizer
    plan: Plan
    side: Worker
    units: Canaries
    charged: claims.Charged
    scores: Floats
    residuals: Residuals
    silo: int | None = None
    kept: list[Kept] = field(default_factory=list)
    _now: dict[str, object] = field(default_factory=dict)

    @classmethod
    def over(
        cls, plan: Plan, side: Worker, units: Canaries, charged: claims.Charged, silo: int | None = None
    ) -> Watched:
        """The plan's optimizer, observed from its first release on; that of ``silo`` if silos train apart."""
        population = plan.mechanism.sampler.population
        scores = np.zeros((len(SUSPECTED), population))
        optimizer = plan.mechanism.optimizer
        return cls(optimizer, plan, side, units, charged, scores, Residuals(population), silo)

    @property
    def key(self) -> Key:
        """The key of the worker's noise."""
        return self.side.key

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
        return query

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """See :class:`PrivateOptimizer`. The answer is observed first."""
        self._observe(state, answer)
        return self.inner.update(state, answer)

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`. The request's cohort is recorded."""
        self._now["request"] = request
        return self.side.gather(request)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

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
        if found := claims.mismatch(self.plan, event, factor):
            self.residuals.fault(found)
        stds = claims.noise_stds(query, event.noise_multiplier, claims.surplus(self.plan, factor))
        size = claims.denominator(self.plan, factor)
        sums = [_shaped(size * part.double().cpu().numpy()) for part in answer]
        cohort = np.concatenate([shard.ids for shard in request.shards] or [_NO_UNITS])
        exact = self.units.total(query, cohort)
        left = [(total - own) / std for total, own, std in zip(sums, exact, stds, strict=True)]
        sampling = SAMPLERS[self.plan.config.sampler].sampling
        # Where nothing is sampled, cohorts may be known and the same in every release.
        rate = min(1.0, size / self.plan.mechanism.sampler.population) if sampling.samples else 1.0
        self.residuals.add([part.ravel() for part in left], cohort, rate, sampling.random_size)
        self._score(query, sums, stds, rate)
        return None

    def _score(self, query: Query, sums: list[Floats], stds: tuple[float, ...], rate: float) -> None:
        """Adds the log likelihood ratios of one release to the adversaries' scores."""
        population = self.plan.mechanism.sampler.population
        everyone = np.arange(population) + population * (self.silo or 0)
        places = everyone % self.units.parameters
        present = self.units.contributions(query, everyone)
        for sign in (1, -1) if self.units.replaced else (1,):
            logs = np.zeros(len(everyone))
            for total, add, std, block in zip(sums, present, stds, query.blocks, strict=True):
                if isinstance(block, SumBlock):
                    own = sign * add
                    logs += ((2 * total[:, places] * own - own**2) / (2 * std**2)).sum(0)
            for score, factor in zip(self.scores, SUSPECTED, strict=True):
                score += sign * mixed(logs / factor**2, rate)


def _shaped(values: Floats) -> Floats:
    return values.reshape(LAYERS, -1) if values.ndim else values


def mixed(log: Floats, rate: float) -> Floats:
    """log(1 - q + q e^log), the log likelihood ratio if the cohort is unknown."""
    if rate == 1:
        return log
    found: Floats = np.where(
        log < _MAX_LOG_RATIO, np.log1p(rate * np.expm1(np.minimum(log, _MAX_LOG_RATIO))), log
    )
    return found
