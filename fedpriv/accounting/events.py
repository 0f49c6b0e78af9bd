"""What one release costs, as a frozen public value: the accountant's only input.

An :class:`Event` is a Gaussian release over a sampled cohort or, of one kind more, a noisy choice. Its
noise multiplier z is noise std / S with S the ADD/REMOVE sensitivity, whatever the relation; only this
package converts by relation. Several blocks released on one cohort are one event, whose z the caller has
combined (``Query.noise_stds`` does). Events hold nothing that was computed from data.

>>> event = Event(1.1, "poisson", "add-remove", rate=0.01)
>>> Event.from_json(event.to_json()) == event
True
>>> scaled(event, 2.0).noise_multiplier
2.2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fedpriv._internal import validation

SAMPLINGS = ("poisson", "without-replacement", "none")
RELATIONS = ("add-remove", "replace-one")
MECHANISMS = ("gaussian", "noisy-max")


@dataclass(frozen=True)
class Event:
    """``count`` Gaussian releases, each over its own cohort drawn in the same way.

    Attributes:
        noise_multiplier: z in [0, inf], noise std over the add/remove sensitivity.
        sampling: ``poisson`` (each unit independently with probability ``rate``),
            ``without-replacement`` (a cohort of fixed size) or ``none`` (everyone, every time).
        relation: neighbouring data differ by one unit added or removed (``add-remove``) or by one
            unit replaced (``replace-one``).
        rate: q, or m/N for a fixed size, in [0, 1]; 1 for ``none``.
        population: N, for the record; None where it is not public.
        cohort: m of a fixed-size cohort, for the record; m/N is then ``rate``.
        truncation: total-variation distance, per release, between a Poisson cohort truncated at a
            public cap and the untruncated one.
        count: how many such releases, at least 1.
        mechanism: ``gaussian``, or ``noisy-max``: everyone is asked for several numbers, which one unit more
            moves by at most S and all in one direction; Laplace noise of SCALE z S is added to each, and
            which is largest is all that is released. That is (1/z, 0)-differentially private under
            add/remove and (2/z, 0) under replace-one (Dwork & Roth 2014, claim 3.9).

    Raises ArgumentError for values outside these ranges and for pairs that do not belong together:
    the size of a fixed-size cohort is public, which add/remove neighbours do not share.
    """

    noise_multiplier: float
    sampling: str
    relation: str
    rate: float = 1.0
    population: int | None = None
    cohort: int | None = None
    truncation: float = 0.0
    count: int = 1
    mechanism: str = "gaussian"

    def __post_init__(self) -> None:
        validation.non_negative("noise-multiplier", self.noise_multiplier)
        called = {"fixed-size": "without-replacement", "everyone": "none"}.get(self.sampling)
        validation.choice("sampler", self.sampling, SAMPLINGS, f"it is {called!r} here" if called else "")
        validation.choice("relation", self.relation, RELATIONS)
        validation.probability("sampling-rate", self.rate)
        validation.probability("truncation", self.truncation)
        validation.integer("count", self.count, 1)
        validation.choice("mechanism", self.mechanism, MECHANISMS)
        self._check_sizes()
        self._check_pairs()

    def _check_sizes(self) -> None:
        if self.population is not None:
            validation.integer("population", self.population, 1)
        if self.cohort is None:
            return
        validation.integer("cohort", self.cohort, 0)
        if self.population is not None and abs(self.cohort / self.population - self.rate) > 1e-12:
            raise validation.fail("sampling-rate", self.rate, "equal cohort / population")

    def _check_pairs(self) -> None:
        if self.sampling == "none" and self.rate != 1:
            raise validation.fail("sampling-rate", self.rate, "be 1 without sampling")
        if self.sampling == "without-replacement" and self.relation == "add-remove":
            raise validation.fail(
                "relation",
                self.relation,
                "be replace-one for fixed-size sampling",
                "use sampler poisson with add-remove",
            )
        if self.sampling != "poisson" and self.truncation:
            raise validation.fail("truncation", self.truncation, "be 0 unless the sampler is poisson")
        if self.sampling != "none" and self.mechanism != "gaussian":
            raise validation.fail("sampler", self.sampling, f"be none for {self.mechanism}")
        if self.sampling != "without-replacement" and self.cohort is not None:
            raise validation.fail("cohort", self.cohort, "be None unless the cohort has a fixed size")

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as a dict that JSON can hold."""
        return {
            name: getattr(self, name) for name, default in _DEFAULTS.items() if getattr(self, name) != default
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Event:
        """The event that ``to_json`` wrote. Raises ArgumentError for unknown or missing fields."""
        unknown = sorted(set(record) - set(_DEFAULTS))
        missing = [name for name in ("noise_multiplier", "sampling", "relation") if name not in record]
        if unknown or missing:
            raise validation.fail("event", dict(record), "have an event's fields", str(unknown + missing))
        return cls(**record)


_DEFAULTS = {field.name: field.default for field in fields(Event)}


def scaled(event: Event, scale: float) -> Event:
    """The event with its noise multiplier multiplied by ``scale`` >= 0."""
    return replace(event, noise_multiplier=event.noise_multiplier * float(scale))


def tally(events: Iterable[Event]) -> dict[Event, int]:
    """How often each distinct event occurs: {event with count 1: occurrences}, in order of arrival.

    >>> release = Event(1.0, "none", "add-remove")
    >>> tally([release, Event(1.0, "none", "add-remove", count=4)]) == {release: 5}
    True
    """
    counts: dict[Event, int] = {}
    for event in events:
        one = event if event.count == 1 else replace(event, count=1)
        counts[one] = counts.get(one, 0) + event.count
    return counts


def equal_parts(total: int, parts: int) -> list[int]:
    """After how many of ``total`` releases each of at most so many nearly equal parts of them ends.

    >>> equal_parts(10, 4), equal_parts(2, 4)
    ([3, 5, 8, 10], [1, 2])
    """
    return sorted({math.ceil(total * part / parts) for part in range(1, parts + 1)}) if total else []


def log_never_drawn(counts: Mapping[Event, int]) -> float:
    """log of the probability that a unit is in no cohort of these releases."""
    return math.fsum(
        n * math.log1p(-event.rate) if event.rate < 1 else -math.inf for event, n in counts.items()
    )


def ever_drawn(counts: Mapping[Event, int]) -> float:
    """The probability that a unit is in a cohort of any of these releases.

    >>> ever_drawn({Event(1.0, "poisson", "add-remove", rate=0.5): 2})
    0.75
    """
    return -math.expm1(log_never_drawn(counts))
