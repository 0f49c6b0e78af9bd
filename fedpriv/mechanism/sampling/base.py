"""The interface of samplers, the context they are built from, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.registry import Registry
from fedpriv._internal.settings import Settings
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

    @property
    def description(self) -> str:
        """How a cohort is sampled, in words, for reports."""

    @property
    def bands(self) -> int:
        """b: a unit is in at most one of b cohorts in a row, so noise can be correlated over b releases; 1:
        noise is independent."""

    def at(self, release: int) -> Sampler:
        """The sampler of release number ``release``."""

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
        own: the sampler's own settings, of the type that it registers.
    """

    population: int
    rate: float
    relation: Relation
    known: int = 0
    tail: float | None = None
    own: Any = field(default_factory=Settings)


@dataclass(frozen=True)
class SamplerKind:
    """A value of the setting ``sampler``.

    Attributes:
        name: that value.
        summary: which units are sampled, in a few words, for help.
        sampling: the sampling of its events.
        build: makes the sampler. Raises ArgumentError for settings that it does not support.
        settings: the type of its own settings, which several samplers may share.
        remark: what a reader must know of it, for tables.
        relations: the relations that it is accounted for under, where its sampling is, too.
        place: its place in lists and tables.
    """

    name: str
    summary: str
    sampling: Sampling
    build: Callable[[SamplerContext], Sampler]
    settings: type[Settings] = Settings
    remark: str = ""
    relations: tuple[Relation, ...] = RELATIONS
    place: int = 50

    def allows(self, relation: Relation) -> bool:
        """Whether its cohorts can be accounted for under the relation."""
        return relation in self.relations and self.sampling.allows(relation)


SAMPLERS = Registry[SamplerKind]("sampler", order=lambda kind: kind.place)


def register(kind: SamplerKind, *also_called: str) -> SamplerKind:
    """Add a sampler to SAMPLERS, with its names in other libraries and in papers."""
    return SAMPLERS.add(kind.name, kind, also_called)


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


def require_known(known: int, population: int) -> None:
    """Raises ArgumentError unless fewer units are known than there are."""
    if validation.integer("known", known) >= population:
        raise validation.fail("known", known, f"be less than the population, {population}")


def require_population(population: int) -> None:
    """Raises ArgumentError unless a population has between 1 and 10^12 units."""
    if validation.integer("population", population, minimum=1) > LARGEST_POPULATION:
        raise validation.fail("population", population, f"be at most {LARGEST_POPULATION}")


def relation_of(word: str) -> Relation:
    """The relation of that name. Raises ArgumentError for another word."""
    return Relation(validation.choice("relation", word, RELATIONS))
