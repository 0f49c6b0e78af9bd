"""Full participation: no sampling."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.sampling.base import (
    Indices,
    SamplerContext,
    SamplerKind,
    register,
    relation_of,
    require_population,
)


@dataclass(frozen=True)
class Everyone:
    """All units in every release: no sampling, no amplification."""

    population: int
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        require_population(self.population)
        object.__setattr__(self, "relation", relation_of(self.relation))

    @property
    def expected_size(self) -> float:
        """N."""
        return float(self.population)

    @property
    def description(self) -> str:
        """No sampling."""
        return "none: every unit takes part in every release"

    @property
    def bands(self) -> int:
        """1: noise is independent."""
        return 1

    def at(self, release: int) -> Everyone:
        """The same sampler for every release."""
        return self

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


def _everyone(context: SamplerContext) -> Everyone:
    if context.rate != 1:
        raise validation.fail("sampling-rate", context.rate, "be 1 with sampler everyone")
    return Everyone(context.population, context.relation)


register(
    SamplerKind(
        name=Sampling.NONE.sampler,
        summary="all units, every time",
        sampling=Sampling.NONE,
        build=_everyone,
        remark="no amplification",
        place=20,
    ),
    "all",
    "full",
)
