"""Poisson sampling, with and without a public cap.

It is exact: a Binomial(N, q) number of uniform distinct indices is distributed as N independent coins.

>>> from fedpriv.rng import Key
>>> sampler = Poisson(population=10**12, rate=1e-10)
>>> cohort = sampler.draw(Key.from_seed(0).generator("cohort", 0))
>>> bool(70 < len(cohort) < 135), bool((cohort[1:] > cohort[:-1]).all())
(True, True)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import scipy
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.sampling.base import (
    Indices,
    SamplerContext,
    SamplerKind,
    draw_distinct,
    register,
    relation_of,
    require_known,
    require_population,
)

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Poisson:
    """Each unit joins independently with probability ``rate``.

    Neighbours add or remove one unit, or replace one (accounted for exactly, not as z / 2).
    """

    population: int
    rate: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        require_population(self.population)
        validation.probability("sampling-rate", self.rate)
        object.__setattr__(self, "relation", relation_of(self.relation))

    @property
    def expected_size(self) -> float:
        """N q."""
        return self.population * self.rate

    @property
    def description(self) -> str:
        """The sampling with its rate."""
        return f"Poisson, each unit with probability {self.rate:g}"

    @property
    def bands(self) -> int:
        """1: noise is independent."""
        return 1

    def at(self, release: int) -> Poisson:
        """The same sampler for every release."""
        return self

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
    :class:`~fedpriv.mechanism.sampling.fixed_size.FixedSize`.
    """

    cap: int
    floor: int = 0
    known: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.integer("cohort-cap", self.cap, minimum=1)
        require_known(self.known, self.population)

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

    @property
    def description(self) -> str:
        """The sampling with its rate, and the cap where a cohort can exceed it."""
        cap = f", truncated to the public cap of {self.cap}" if self.truncation else ""
        return f"{super().description}{cap}"

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


def _poisson(context: SamplerContext) -> Poisson:
    population, rate, relation = context.population, context.rate, context.relation
    if context.tail is None:
        return Poisson(population, rate, relation)
    return TruncatedPoisson.covering(population, rate, context.tail, relation, context.known)


register(
    SamplerKind(
        name=Sampling.POISSON.sampler,
        summary="each unit joins independently",
        sampling=Sampling.POISSON,
        build=_poisson,
        remark="replace-one is its own pair of distributions",
        place=0,
    )
)
