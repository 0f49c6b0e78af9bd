"""Poisson cohorts from groups that are asked in turn, for correlated noise.

Source: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", algorithm 2. The group of
a unit is its number modulo b, which is public. Release t asks group t modulo b alone, each unit with
probability q b, so the expected cohort is N q, as without groups. A unit takes
part at most once in b releases.

>>> from fedpriv.rng import Key
>>> sampler = CyclicPoisson(population=100, rate=0.25, bands=4).at(7)
>>> sampler.draw(Key.from_seed(0).generator("cohort", 7)).tolist()[:4], sampler.expected_size
([3, 7, 11, 15], 25.0)
>>> sampler.event(1.0).rate, sampler.event(1.0).group
(1.0, 3)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fedpriv._internal import validation
from fedpriv._internal.settings import Settings, setting
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.sampling.base import (
    Indices,
    Sampler,
    SamplerContext,
    SamplerKind,
    draw_distinct,
    register,
    require_population,
)

if TYPE_CHECKING:
    import numpy as np

_ROUNDING = 1e-9  # a rate q b that is above 1 by less is 1


class CyclicSettings(Settings):
    """The settings of cohorts from groups that are asked in turn."""

    noise_bands: int = setting(
        0,
        "b: noise is correlated over b releases, and a unit is asked in one of b releases at most; 0: the "
        "power of two with the least noise on sums of releases; 1: independent noise",
        ge=0,
    )


@dataclass(frozen=True)
class CyclicPoisson:
    """Release t asks the units whose number is t modulo ``bands``, each with probability ``rate * bands``.

    Neighbours add or remove one unit, and the numbers of the others stay. With ``rate * bands`` = 1 the order
    is fixed, and epsilon holds also against those who know who was asked.

    Attributes:
        population: N.
        rate: q, the expected fraction of all units in a cohort.
        bands: b, the number of groups; noise is correlated over as many releases.
        group: the group that this release asks.
    """

    name: ClassVar[str] = "cyclic-poisson"

    population: int
    rate: float
    bands: int
    group: int = 0

    def __post_init__(self) -> None:
        require_population(self.population)
        validation.probability("sampling-rate", self.rate)
        if validation.integer("noise-bands", self.bands, minimum=1) > self.population:
            raise validation.fail("noise-bands", self.bands, f"be at most the population, {self.population}")
        if self.rate * self.bands > 1 + _ROUNDING:
            hint = "a unit is sampled from its group with probability sampling-rate times noise-bands"
            raise validation.fail("noise-bands", self.bands, f"be at most 1 / {self.rate:g}", hint)

    @property
    def group_rate(self) -> float:
        """q b, the probability of a unit of the group."""
        rate = self.rate * self.bands
        return 1.0 if abs(rate - 1) <= _ROUNDING else rate

    @property
    def expected_size(self) -> float:
        """N q."""
        return self.population * self.rate

    @property
    def description(self) -> str:
        """The sampling with its groups and rate."""
        if self.bands == 1:
            return f"Poisson, each unit with probability {self.rate:g}"
        groups = f"{self.bands} public groups in turn (a unit's group is its number modulo {self.bands})"
        text = f"noise correlated over {self.bands} releases; {groups}"
        if self.group_rate == 1:
            return f"{text}, each group whole: a fixed order, which needs no secrecy"
        return f"{text}, each unit of the group with probability {self.group_rate:g}"

    def at(self, release: int) -> CyclicPoisson:
        """The sampler of release number ``release``, which asks group ``release`` modulo b."""
        return replace(self, group=release % self.bands)

    def draw(self, generator: np.random.Generator) -> Indices:
        """A Poisson cohort of the group, possibly empty."""
        members = len(range(self.group, self.population, self.bands))
        size = int(generator.binomial(members, self.group_rate))
        return draw_distinct(members, size, generator) * self.bands + self.group

    def event(self, noise_multiplier: float) -> Event:
        """A Poisson-subsampled Gaussian over the group."""
        return Event(
            noise_multiplier,
            sampling=Sampling.POISSON,
            relation=Relation.ADD_REMOVE,
            rate=self.group_rate,
            population=self.population,
            groups=self.bands,
            group=self.group,
        )

    def resized(self, factor: float) -> CyclicPoisson:
        """Only factor 1: the noise is correlated for one rate."""
        if factor != 1:
            raise validation.fail("rate factor", factor, f"be 1 with sampler {self.name}")
        return self


def _cyclic(context: SamplerContext) -> Sampler:
    return CyclicPoisson(context.population, context.rate, context.own.noise_bands)


register(
    SamplerKind(
        name=CyclicPoisson.name,
        summary="groups in turn, each unit independently, for correlated noise",
        sampling=Sampling.POISSON,
        build=_cyclic,
        settings=CyclicSettings,
        remark="`noise-bands` groups, which are public",
        relations=(Relation.ADD_REMOVE,),
        place=5,
    )
)
