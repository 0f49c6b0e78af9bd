"""Samplers: how a release's cohort is sampled, and the accounting event of a release.

One object has both, so the accounting always matches the sampling. A population is implicit: units are the
numbers 0..N-1, nothing is stored for them, and sampling m of N costs O(m) for N up to 10^12. Poisson sampling
is exact: a Binomial(N, q) number of uniform distinct indices is distributed as N independent coins.

A cohort and, under add/remove, its size are private: only the engine receives them.

>>> from fedpriv.rng import Key
>>> sampler = Poisson(population=10**12, rate=1e-10)
>>> cohort = sampler.draw(Key.from_seed(0).generator("cohort", 0))
>>> bool(70 < len(cohort) < 135), bool((cohort[1:] > cohort[:-1]).all())
(True, True)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy
from fedpriv._internal.registry import Registry
from fedpriv.accounting.events import RELATIONS, Event, Relation, Sampling

Indices: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

LARGEST_POPULATION = 10**12


class Sampler(Protocol):
    """Samples cohorts, and gives the accounting event of a release."""

    @property
    def population(self) -> int:
        """N, the public number of units."""

    @property
    def expected_size(self) -> float:
        """The expected cohort size: the public denominator of means. The sampled size is private."""

    def draw(self, generator: np.random.Generator) -> Indices:
        """One cohort: distinct unit numbers, ascending, int64."""

    def event(self, noise_multiplier: float) -> Event:
        """The event of one release with this multiplier over one sampled cohort."""

    def resized(self, factor: float) -> Sampler:
        """The sampler whose expected cohort is ``factor`` times as large."""


@dataclass(frozen=True)
class SamplerContext:
    """The public settings from which a run's sampler is built.

    Attributes:
        population: N, the number of units.
        rate: q, the setting ``sampling-rate``.
        relation: the neighbouring relation.
        known: the number of units whose membership in cohorts the colluding parties know.
        tail: if parties add shares of the noise, the largest probability that a cohort exceeds its public
            upper bound, and the same for its lower bound; None if cohorts need no bounds.
    """

    population: int
    rate: float
    relation: Relation
    known: int = 0
    tail: float | None = None


@dataclass(frozen=True)
class SamplerKind:
    """A value of the setting ``sampler``.

    Attributes:
        name: that value.
        summary: which units are sampled, in a few words, for help.
        sampling: the sampling of its events.
        build: makes the sampler. Raises ArgumentError for settings that it does not support.
    """

    name: str
    summary: str
    sampling: Sampling
    build: Callable[[SamplerContext], Sampler]


SAMPLERS = Registry[SamplerKind]("sampler")


@dataclass(frozen=True)
class Poisson:
    """Each unit joins independently with probability ``rate``.

    Neighbours add or remove one unit, or replace one (accounted for exactly, not as z / 2).
    """

    population: int
    rate: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_population(self.population)
        validation.probability("sampling-rate", self.rate)
        _set_relation(self)

    @property
    def expected_size(self) -> float:
        """N q."""
        return self.population * self.rate

    def draw(self, generator: np.random.Generator) -> Indices:
        """A Poisson cohort, possibly empty."""
        size = int(generator.binomial(self.population, self.rate))
        return draw_distinct(self.population, size, generator)

    def event(self, noise_multiplier: float) -> Event:
        """A Poisson-subsampled Gaussian."""
        return Event(
            noise_multiplier,
            sampling=Sampling.POISSON,
            relation=self.relation,
            rate=self.rate,
            population=self.population,
        )

    def resized(self, factor: float) -> Poisson:
        """The rate times ``factor``. Raises ArgumentError above 1."""
        return self if factor == 1 else replace(self, rate=self.rate * factor)


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(Poisson):
    """A Poisson cohort that is truncated, uniformly at random, to at most ``cap`` units.

    The cap is the public number of noise shares in every release. ``floor`` is the smallest cohort for which
    the placement makes a release. The effect of both is at most the total-variation distance P[n > cap] +
    P[n < floor] per release, which is part of the event (Chua et al. 2024). ``known`` is as in
    :class:`FixedSize`.
    """

    cap: int
    floor: int = 0
    known: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.integer("cohort-cap", self.cap, minimum=1)
        _check_known(self.known, self.population)

    @classmethod
    def covering(
        cls,
        population: int,
        rate: float,
        tail: float,
        relation: Relation = Relation.ADD_REMOVE,
        known: int = 0,
    ) -> TruncatedPoisson:
        """The smallest cap and the largest floor that are violated with probability at most ``tail`` each."""
        # scipy's inverses are inaccurate for tails below 1e-16.
        sizes, fewest = range(population + 2), max(population - 1 - known, 0)
        law = scipy.stats.binom
        cap = bisect_left(sizes, True, key=lambda n: law.sf(n - known, population + 1, rate) <= tail)
        floor = bisect_left(sizes, True, key=lambda n: law.cdf(n, fewest, rate) > tail)
        return cls(population, rate, relation, cap=max(cap, 1), floor=floor, known=known)

    @cached_property
    def truncation(self) -> float:
        """The total-variation distance from an untruncated Poisson cohort, for N units and for neighbours.

        It holds for every choice of ``known`` units in the cohort.
        """
        above = scipy.stats.binom.sf(self.cap - self.known, self.population + 1, self.rate)
        fewest = max(self.population - 1 - self.known, 0)
        below = scipy.stats.binom.cdf(self.floor - 1, fewest, self.rate) if self.floor else 0.0
        return float(above + below)

    def draw(self, generator: np.random.Generator) -> Indices:
        """A Poisson cohort of at most ``cap`` units."""
        size = min(int(generator.binomial(self.population, self.rate)), self.cap)
        return draw_distinct(self.population, size, generator)

    def event(self, noise_multiplier: float) -> Event:
        """The Poisson event with the truncation."""
        return replace(super().event(noise_multiplier), truncation=self.truncation)

    def resized(self, factor: float) -> TruncatedPoisson:
        """Only factor 1: the cap is a public constant of the run."""
        if factor != 1:
            raise validation.fail("sampler", "truncated Poisson", "keep one rate all run", "use fixed-size")
        return self


@dataclass(frozen=True)
class FixedSize:
    """``size`` units, uniformly without replacement; neighbours replace one unit.

    Attributes:
        population: N.
        size: m.
        known: the number of units of colluding parties, whose membership in each cohort the adversary knows.
            The other N - known units are then sampled at a rate of at most m / (N - known), which the event
            has.
    """

    population: int
    size: int
    known: int = 0

    def __post_init__(self) -> None:
        _check_population(self.population)
        _check_known(self.known, self.population)
        if validation.integer("cohort-size", self.size, minimum=1) > self.population:
            raise validation.fail("cohort-size", self.size, f"be at most the population, {self.population}")

    @property
    def expected_size(self) -> float:
        """m."""
        return float(self.size)

    def draw(self, generator: np.random.Generator) -> Indices:
        """Exactly ``size`` units."""
        return draw_distinct(self.population, self.size, generator)

    def event(self, noise_multiplier: float) -> Event:
        """A Gaussian over a fixed-size sample of the other N - known units, under replace-one."""
        others = self.population - self.known
        drawn = min(self.size, others)
        return Event(
            noise_multiplier,
            sampling=Sampling.WITHOUT_REPLACEMENT,
            relation=Relation.REPLACE_ONE,
            rate=drawn / others,
            population=others,
            cohort=drawn,
        )

    def resized(self, factor: float) -> FixedSize:
        """The size times ``factor``, rounded."""
        return self if factor == 1 else replace(self, size=round(self.size * factor))


@dataclass(frozen=True)
class Everyone:
    """All units in every release: no sampling, no amplification."""

    population: int
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_population(self.population)
        _set_relation(self)

    @property
    def expected_size(self) -> float:
        """N."""
        return float(self.population)

    def draw(self, generator: np.random.Generator) -> Indices:
        """0..N-1."""
        return np.arange(self.population, dtype=np.int64)

    def event(self, noise_multiplier: float) -> Event:
        """A plain Gaussian release."""
        return Event(
            noise_multiplier,
            sampling=Sampling.NONE,
            relation=self.relation,
            population=self.population,
        )

    def resized(self, factor: float) -> Everyone:
        """Only factor 1: there are no other units."""
        if factor != 1:
            raise validation.fail("rate factor", factor, "be 1 where everyone takes part")
        return self


def draw_distinct(population: int, size: int, generator: np.random.Generator) -> Indices:
    """``size`` distinct numbers below ``population``, uniform over all such sets, ascending.

    Sparse sets are sampled by rejection: uniform draws are added until there are ``size`` distinct ones, and
    a uniform subset of the surplus is removed; by symmetry the result is uniform. The cost is O(size).
    """
    if size * 3 > population:
        return np.sort(generator.permutation(population)[:size]).astype(np.int64)
    found = np.empty(0, dtype=np.int64)
    while len(found) < size:
        missing = size - len(found)
        more = generator.integers(0, population, size=missing + missing // 8 + 8, dtype=np.int64)
        found = np.unique(np.concatenate([found, more]))
    surplus = len(found) - size
    if surplus:
        found = np.delete(found, generator.choice(len(found), size=surplus, replace=False))
    return found


def _set_relation(sampler: Poisson | Everyone) -> None:
    """Convert the sampler's relation, which may be a string, to a Relation."""
    relation = Relation(validation.choice("relation", sampler.relation, RELATIONS))
    object.__setattr__(sampler, "relation", relation)


def _check_known(known: int, population: int) -> None:
    if validation.integer("known", known) >= population:
        raise validation.fail("known", known, f"be less than the population, {population}")


def _check_population(population: int) -> None:
    if validation.integer("population", population, minimum=1) > LARGEST_POPULATION:
        raise validation.fail("population", population, f"be at most {LARGEST_POPULATION}")


def _poisson(context: SamplerContext) -> Poisson:
    population, rate, relation = context.population, context.rate, context.relation
    if context.tail is None:
        return Poisson(population, rate, relation)
    return TruncatedPoisson.covering(population, rate, context.tail, relation, context.known)


def _fixed_size(context: SamplerContext) -> FixedSize:
    size = max(1, round(context.rate * context.population))
    return FixedSize(context.population, size, context.known)


def _everyone(context: SamplerContext) -> Everyone:
    if context.rate != 1:
        raise validation.fail("sampling-rate", context.rate, "be 1 with sampler everyone")
    return Everyone(context.population, context.relation)


def register(kind: SamplerKind, *also_called: str) -> SamplerKind:
    """Add a sampler to SAMPLERS, with its names in other libraries and in papers."""
    return SAMPLERS.add(kind.name, kind, also_called)


_EACH, _FIXED, _ALL = Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT, Sampling.NONE
register(SamplerKind(_EACH.sampler, "each unit joins independently", _EACH, _poisson))
register(
    SamplerKind(_FIXED.sampler, "a cohort of one size, uniformly", _FIXED, _fixed_size),
    "uniform",
    "without-replacement",
)
register(SamplerKind(_ALL.sampler, "all units, every time", _ALL, _everyone), "all", "full")
