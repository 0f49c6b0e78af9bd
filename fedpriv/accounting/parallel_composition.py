"""Parallel composition over disjoint silos.

The partition of units over silos is fixed and public, and every silo makes its own releases. A unit is in one
silo only, so adding or removing it changes only that silo's releases: silos compose in parallel, and the
total epsilon is that of the costliest silo. The same holds if a unit is replaced within its silo. If the
replacement may be in another silo, one silo loses a unit and another gains one, and the releases of both
compose.

>>> silos = {"a": [Event(2.0, "none", "add-remove")], "b": [Event(1.0, "none", "add-remove")]}
>>> round(compose(silos, 1e-5).epsilon, 2)
4.38
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedpriv.accounting.events import Event, Relation, tally
from fedpriv.accounting.methods import relations
from fedpriv.accounting.methods.base import PrivacyGuarantee
from fedpriv.accounting.methods.registry import epsilon


def compose(
    silos: Mapping[str, Sequence[Event]], delta: float, method: str = "pld", stays: bool = True
) -> PrivacyGuarantee:
    """Epsilon at ``delta`` of all silos' releases together, for the unit with the largest privacy loss.

    Args:
        silos: the events of each silo, by its name.
        delta: in (0, 1).
        method: an accounting method.
        stays: whether a replaced unit's replacement is in the same silo. It has no effect under add/remove.

    Raises UnsupportedEvent if relations are mixed, and as ``epsilon`` does.
    """
    relation = {event.relation for events in silos.values() for event in events}
    relations.require_one(relation)
    schedules = Counter(_schedule(events) for events in silos.values())
    if not stays and relation == {Relation.REPLACE_ONE} and len(silos) > 1:
        affected = _pairs(_costliest(schedules, 2))
    else:
        affected = [_ordered(schedule) for schedule in _costliest(schedules, 1)]
    answers = [epsilon(events, delta, method) for events in affected or [[]]]
    lower = [answer.epsilon_lower for answer in answers if answer.epsilon_lower is not None]
    worst = max(answers, key=lambda answer: answer.epsilon)
    return replace(worst, epsilon_lower=max(lower) if lower else None)


def of_any(silos: Mapping[str, Sequence[Event]]) -> tuple[Event, ...]:
    """Events by which a unit of any one silo certainly loses no less than by its own.

    They are those of the costliest silo. Where no silo is the costliest in each release, they are those of
    all silos that may be it.

    >>> less, more = (Event(1.0, "poisson", "add-remove", rate=rate) for rate in (0.1, 0.2))
    >>> of_any({"a": [less], "b": [more]}) == (more,)
    True
    """
    own = {_schedule(events): tuple(events) for events in silos.values()}
    kept = _costliest(Counter(list(own)), 1)
    return tuple(event for schedule in kept for event in own[schedule])


def of_each(
    silos: Mapping[str, Sequence[Event]], delta: float, method: str = "pld", most: int = 16
) -> list[tuple[tuple[str, ...], PrivacyGuarantee]]:
    """Each silo's own epsilon: (silos, the guarantee of each of them), the costliest first.

    Silos with equal releases are together. If there are more than ``most`` kinds of silos, those with similar
    sampling rates are together as well, and their epsilon is that of the costliest of them: a bound for each.
    """
    groups: dict[frozenset[Event], list[str]] = {}
    for name, events in silos.items():
        groups.setdefault(_schedule(events), []).append(name)
    ordered = sorted(groups, key=lambda one: (-sum(e.rate * e.count for e in one), repr(_ordered(one))))
    chains: list[list[frozenset[Event]]] = []
    for schedule in ordered:
        chain = next((c for c in chains if costs_no_more(_ordered(schedule), _ordered(c[0]))), None)
        chain.append(schedule) if chain else chains.append([schedule])
    found = []
    for chain in chains:
        each = -(-len(chain) // max(1, most // len(chains)))
        for start in range(0, len(chain), each):
            part = chain[start : start + each]
            first = next((s for s in part if all(_dominates(s, other) for other in part)), None)
            if first is None:  # no silo of the part is the costliest in each release: account for all
                found += [(tuple(groups[s]), epsilon(_ordered(s), delta, method)) for s in part]
                continue
            guarantee = epsilon(_ordered(first), delta, method)
            if len(part) > 1:
                guarantee = replace(guarantee, epsilon_lower=None)  # it holds for the costliest alone
            found.append((tuple(name for s in part for name in groups[s]), guarantee))
    return sorted(found, key=lambda one: -one[1].epsilon)


def costs_no_more(events: Sequence[Event], other: Sequence[Event]) -> bool:
    """Whether a unit certainly loses no more by ``events`` than by ``other``: they are equal releases, in any
    order, but for sampling rates that are no larger.

    A release sampled at a smaller rate is the release at the larger one whose unit is left out some of the
    time. Its distributions are a mixture of the larger rate's, and divergences are jointly convex.

    >>> less, more = (Event(1.0, "poisson", "add-remove", rate=rate) for rate in (0.1, 0.2))
    >>> costs_no_more([less, more], [more, more]), costs_no_more([more], [less])
    (True, False)
    """
    return _dominates(_schedule(other), _schedule(events))


def _dominates(schedule: frozenset[Event], other: frozenset[Event]) -> bool:
    """Whether the releases of ``schedule`` can be paired with those of ``other``, and no rate is smaller."""
    mine, theirs = _rates(schedule), _rates(other)
    return mine.keys() == theirs.keys() and all(
        sum(mine[kind].values()) == sum(theirs[kind].values())
        and all(_at_least(rate, mine[kind]) >= _at_least(rate, theirs[kind]) for rate in theirs[kind])
        for kind in mine
    )


def _rates(schedule: frozenset[Event]) -> dict[Event, dict[float, int]]:
    """How often each sampling rate occurs, among releases that differ in nothing else."""
    found: dict[Event, dict[float, int]] = {}
    for event in schedule:
        found.setdefault(replace(event, rate=1.0, count=1), {})[event.rate] = event.count
    return found


def _at_least(rate: float, rates: Mapping[float, int]) -> int:
    return sum(count for other, count in rates.items() if other >= rate)


def _schedule(events: Sequence[Event]) -> frozenset[Event]:
    """The events of one silo without their order and without the sizes that are informative only, so that
    silos whose units lose the same are accounted for once."""
    alike = (replace(event, population=None, cohort=None) for event in events)
    return frozenset(replace(event, count=n) for event, n in tally(alike).items())


def _ordered(schedule: frozenset[Event]) -> list[Event]:
    """The events in an order that is equal in every process, since rounding errors depend on it."""
    return sorted(schedule, key=repr)


def _costliest(schedules: Counter[frozenset[Event]], needed: int) -> Counter[frozenset[Event]]:
    """The schedules without those that at least ``needed`` other silos certainly lose more by."""
    ordered = sorted(schedules, key=lambda one: (-sum(e.rate * e.count for e in one), repr(_ordered(one))))
    kept: Counter[frozenset[Event]] = Counter()
    for schedule in ordered:
        above = sum(number for other, number in kept.items() if _dominates(other, schedule))
        if above < needed:
            kept[schedule] = schedules[schedule]
    return kept


def _pairs(schedules: Counter[frozenset[Event]]) -> list[list[Event]]:
    """The joint events of every two silos, without repetitions."""
    distinct = list(schedules)
    return [
        [*_ordered(one), *_ordered(other)]
        for position, one in enumerate(distinct)
        for other in distinct[position:]
        if one is not other or schedules[one] > 1
    ]
