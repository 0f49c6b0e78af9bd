"""Events: frozen, public descriptions of releases. They are the only input of an accountant.

An :class:`Event` describes a Gaussian release over a sampled cohort, or a noisy-max selection. Its noise
multiplier is z = noise std / S, where S is the ADD/REMOVE sensitivity under every relation; only this
package converts z by relation. Several blocks released on one cohort form one event; the caller combines
their multipliers (``Query.noise_stds``). An event holds nothing that was computed from private data.

>>> event = Event(1.1, "poisson", "add-remove", rate=0.01)
>>> Event.from_json(event.to_json()) == event
True
>>> scaled(event, 2.0).noise_multiplier
2.2
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fedpriv._internal import validation
from fedpriv._internal.validation import ArgumentError

MECHANISMS = ("gaussian", "noisy-max")
_TOO_MANY = 2**63


class Relation(StrEnum):
    """Which data sets are neighbours; a string, as ledgers and settings have it."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    def __repr__(self) -> str:
        """The word in quotes."""
        return repr(self.value)

    @property
    def moves(self) -> int:
        """By how many times a unit's bound a sum over given units differs between neighbours: 1 or 2."""
        return 2 if self is Relation.REPLACE_ONE else 1


class Sampling(StrEnum):
    """How a release's cohort is drawn; a string, as ledgers have it."""

    POISSON = "poisson"
    WITHOUT_REPLACEMENT = "without-replacement"
    NONE = "none"

    def __repr__(self) -> str:
        """The word in quotes."""
        return repr(self.value)

    @property
    def sampler(self) -> str:
        """What settings call the sampler that draws so."""
        return {"poisson": "poisson", "without-replacement": "fixed-size", "none": "everyone"}[self]

    @property
    def samples(self) -> bool:
        """Whether some units are left out, so that a rate is needed."""
        return self is not Sampling.NONE

    @property
    def fixed_size(self) -> bool:
        """Whether every cohort has the same size, which is public."""
        return self is Sampling.WITHOUT_REPLACEMENT

    @property
    def random_size(self) -> bool:
        """Whether the cohort's size is random, so that a public cap truncates it."""
        return self is Sampling.POISSON

    @property
    def relation(self) -> Relation:
        """The relation where none is asked for. The size of a fixed-size cohort is public, which neighbours
        by adding or removing a unit do not share."""
        return Relation.REPLACE_ONE if self.fixed_size else Relation.ADD_REMOVE

    def allows(self, relation: Relation) -> bool:
        """Whether a release over such a cohort can be accounted for under the relation."""
        return relation is Relation.REPLACE_ONE or not self.fixed_size


SAMPLINGS = tuple(Sampling)
RELATIONS = tuple(Relation)


@dataclass(frozen=True)
class Event:
    """``count`` equal releases, each over a cohort of its own that is sampled in the same way.

    Attributes:
        noise_multiplier: z in [0, inf], noise std over the add/remove sensitivity.
        sampling: ``poisson`` (each unit joins independently with probability ``rate``),
            ``without-replacement`` (a cohort of fixed size) or ``none`` (all units take part).
        relation: neighbouring data sets differ by one unit added or removed (``add-remove``) or by one
            unit replaced (``replace-one``). Both are given as members or as their words.
        rate: the sampling rate in [0, 1]: q for ``poisson``, m/N for a fixed size, 1 for ``none``.
        population: N, informative only; None if it is not public.
        cohort: m of a fixed-size cohort, informative only; ``rate`` is then m/N.
        truncation: total-variation distance, per release, between a Poisson cohort truncated at a
            public cap and the untruncated cohort.
        count: the number of such releases, at least 1.
        groups: b; units are in b public groups, which releases ask in turn (Choquette-Choo et al. 2023).
        group: the one group, in 0..b-1, that this release asks. A unit of another group is not in its cohort.
        mechanism: ``gaussian`` or ``noisy-max``. Noisy-max computes several numbers over all units. Adding
            one unit moves each number by at most S, and all in the same direction. Laplace noise of SCALE
            z S is added to each number, and only the index of the largest is released. This is
            (1/z, 0)-differentially private under add/remove and (2/z, 0) under replace-one (Dwork & Roth
            2014, claim 3.9).

    Raises ArgumentError for values outside these ranges and for combinations that are invalid. For example,
    fixed-size sampling needs replace-one: the cohort size is public and must be equal for neighbours.
    """

    noise_multiplier: float
    sampling: Sampling
    relation: Relation
    rate: float = 1.0
    _: KW_ONLY
    population: int | None = None
    cohort: int | None = None
    truncation: float = 0.0
    count: int = 1
    mechanism: str = "gaussian"
    groups: int = 1
    group: int = 0

    if TYPE_CHECKING:  # the fields hold members; a word is taken for one

        def __init__(
            self,
            noise_multiplier: float,
            sampling: str,
            relation: str,
            rate: float = 1.0,
            *,
            population: int | None = None,
            cohort: int | None = None,
            truncation: float = 0.0,
            count: int = 1,
            mechanism: str = "gaussian",
            groups: int = 1,
            group: int = 0,
        ) -> None: ...

    def __post_init__(self) -> None:
        validation.non_negative("noise-multiplier", self.noise_multiplier)
        event_name = {"fixed-size": "without-replacement", "everyone": "none"}.get(str(self.sampling))
        hint = f"an event calls this sampler {event_name!r}" if event_name else ""
        validation.choice("sampler", self.sampling, SAMPLINGS, hint)
        validation.choice("relation", self.relation, RELATIONS)
        object.__setattr__(self, "sampling", Sampling(self.sampling))
        object.__setattr__(self, "relation", Relation(self.relation))
        validation.probability("sampling-rate", self.rate)
        validation.probability("truncation", self.truncation)
        validation.integer("count", self.count, 1)
        validation.choice("mechanism", self.mechanism, MECHANISMS)
        validation.integer("groups", self.groups, 1)
        if validation.integer("group", self.group) >= self.groups:
            raise validation.fail("group", self.group, f"be below the number of groups, {self.groups}")
        for name in ("count", "population", "cohort", "groups"):
            number = getattr(self, name)
            if isinstance(number, int) and number >= _TOO_MANY:
                raise validation.fail(name, number, "be a number of at most 64 bits")
        self._check_sizes()
        self._check_pairs()

    @property
    def sampled(self) -> bool:
        """Whether a unit may be left out, so that the release is not a plain Gaussian mechanism."""
        return self.sampling.samples and self.rate != 1

    def _check_sizes(self) -> None:
        if self.population is not None:
            validation.integer("population", self.population, 1)
        if self.cohort is None:
            return
        validation.integer("cohort", self.cohort, 0)
        if self.population is not None and abs(self.cohort / self.population - self.rate) > 1e-12:
            raise validation.fail(
                "sampling-rate", self.rate, f"equal cohort / population, {self.cohort} / {self.population}"
            )

    def _check_pairs(self) -> None:
        if not self.sampling.samples and self.rate != 1:
            raise validation.fail("sampling-rate", self.rate, "be 1 if sampling is 'none'")
        if not self.sampling.allows(self.relation):
            raise validation.fail(
                "relation",
                self.relation,
                "be replace-one for fixed-size sampling",
                "use sampler poisson with add-remove",
            )
        if self.truncation and not self.sampling.random_size:
            raise validation.fail("truncation", self.truncation, "be 0 unless the sampler is poisson")
        if self.sampling.samples and self.mechanism != "gaussian":
            raise validation.fail("sampler", self.sampling, f"be 'none' for the mechanism {self.mechanism}")
        if self.cohort is not None and not self.sampling.fixed_size:
            raise validation.fail("cohort", self.cohort, "be None unless sampling is 'without-replacement'")

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as a JSON-serialisable dict."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        values |= {"sampling": self.sampling.value, "relation": self.relation.value}
        return {name: values[name] for name, default in _DEFAULTS.items() if values[name] != default}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Event:
        """The inverse of ``to_json``. Raises ArgumentError for anything else, such as unknown fields."""
        if not isinstance(record, Mapping):
            raise ArgumentError(
                f"{validation.shown(record)} is not an event: it must be a table of its fields."
            )
        unknown = sorted(map(str, set(record) - set(_DEFAULTS)))
        missing = [name for name in ("noise_multiplier", "sampling", "relation") if name not in record]
        if unknown or missing:
            raise ArgumentError(
                f"{validation.shown(dict(record))} is not an event: it has the unknown fields "
                f"{validation.shown(unknown)} and lacks the required fields {missing}. Use the dict that "
                "Event.to_json returns."
            )
        return cls(**record)


_DEFAULTS = {field.name: field.default for field in fields(Event)}


def scaled(event: Event, scale: float) -> Event:
    """The event with its noise multiplier multiplied by ``scale`` >= 0."""
    return replace(event, noise_multiplier=event.noise_multiplier * float(scale))


def tally(events: Iterable[Event]) -> dict[Event, int]:
    """The number of occurrences of each distinct event: {event with count 1: occurrences}, in first-seen
    order.

    >>> release = Event(1.0, "none", "add-remove")
    >>> tally([release, Event(1.0, "none", "add-remove", count=4)]) == {release: 5}
    True
    """
    counts: dict[Event, int] = {}
    events = list(events)
    objects = {id(event): event for event in events}  # most are the same object, which costs less to compare
    for number, times in Counter(map(id, events)).items():
        event = objects[number]
        one = event if event.count == 1 else replace(event, count=1)
        counts[one] = counts.get(one, 0) + times * event.count
    return counts


def of_costliest_group(stages: Sequence[Mapping[Event, int]]) -> list[dict[Event, int]]:
    """The counts, stage by stage, of a unit that loses at least as much as any unit of any group.

    Groups compose in parallel: a unit is in one group of each division, and the other groups' releases do not
    depend on it. Of releases that differ in their group alone, no unit has more than the group with the most
    of them. For a run whose releases differ in their group alone this is its costliest group, exactly.

    >>> turns = [Event(1.0, "poisson", "add-remove", rate=0.5, groups=2, group=g) for g in (0, 1, 0)]
    >>> of_costliest_group([tally(turns)]) == [{Event(1.0, "poisson", "add-remove", rate=0.5): 2}]
    True
    """
    if all(event.groups == 1 for stage in stages for event in stage):
        return [dict(stage) for stage in stages]
    totals: dict[tuple[Event, int], dict[int, int]] = {}
    found: list[dict[Event, int]] = []
    for stage in stages:
        added: dict[Event, int] = {}
        for event, n in stage.items():
            alone = replace(event, groups=1, group=0)
            counts = totals.setdefault((alone, event.groups), {})
            before = max(counts.values(), default=0)
            counts[event.group] = counts.get(event.group, 0) + n
            if more := max(counts.values()) - before:
                added[alone] = added.get(alone, 0) + more
        found.append(added)
    return found


def equal_parts(total: int, parts: int) -> list[int]:
    """The ends of at most ``parts`` nearly equal parts of ``total`` releases, as ascending positions.

    >>> equal_parts(10, 4), equal_parts(2, 4)
    ([3, 5, 8, 10], [1, 2])
    """
    return sorted({math.ceil(total * part / parts) for part in range(1, parts + 1)}) if total else []


def log_never_drawn(counts: Mapping[Event, int]) -> float:
    """The log of the probability that a unit is in none of these releases' cohorts."""
    return math.fsum(
        n * math.log1p(-event.rate) if event.rate < 1 else -math.inf for event, n in counts.items()
    )


def ever_drawn(counts: Mapping[Event, int]) -> float:
    """The probability that a unit is in at least one of these releases' cohorts.

    >>> ever_drawn({Event(1.0, "poisson", "add-remove", rate=0.5): 2})
    0.75
    """
    return -math.expm1(log_never_drawn(counts))
