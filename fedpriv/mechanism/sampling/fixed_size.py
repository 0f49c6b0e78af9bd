"""Cohorts of one public size, uniformly without replacement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.sampling.base import (
    Indices,
    SamplerContext,
    SamplerKind,
    draw_distinct,
    register,
    require_known,
    require_population,
)

if TYPE_CHECKING:
    import numpy as np


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
        require_population(self.population)
        require_known(self.known, self.population)
        if validation.integer("cohort-size", self.size, minimum=1) > self.population:
            raise validation.fail("cohort-size", self.size, f"be at most the population, {self.population}")

    @property
    def expected_size(self) -> float:
        """m."""
        return float(self.size)

    @property
    def description(self) -> str:
        """The size, and what is accounted for where parties collude."""
        text = f"fixed size {self.size} of {self.population}, without replacement"
        if not self.known:
            return text
        event = self.event(1.0)
        unknown = f"{event.cohort} of the {event.population} that no colluding party knows about"
        return f"{text}; accounted for as {unknown}"

    @property
    def bands(self) -> int:
        """1: noise is independent."""
        return 1

    def at(self, release: int) -> FixedSize:
        """The same sampler for every release."""
        return self

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


def _fixed_size(context: SamplerContext) -> FixedSize:
    size = max(1, round(context.rate * context.population))
    return FixedSize(context.population, size, context.known)


register(
    SamplerKind(
        name=Sampling.WITHOUT_REPLACEMENT.sampler,
        summary="a cohort of one size, uniformly",
        sampling=Sampling.WITHOUT_REPLACEMENT,
        build=_fixed_size,
        remark="add-remove is refused: the size of the cohort is public",
        place=10,
    ),
    "uniform",
    "without-replacement",
)
