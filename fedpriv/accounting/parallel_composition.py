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

from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.methods.base import PrivacyGuarantee, UnsupportedEvent
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
    relations = {event.relation for events in silos.values() for event in events}
    if len(relations) > 1:
        raise UnsupportedEvent(
            "Events under add-remove and replace-one cannot be composed into one epsilon. "
            "Account for each relation separately."
        )
    schedules = Counter(_schedule(events) for events in silos.values())
    affected = [_ordered(schedule) for schedule in schedules]
    if not stays and relations == {"replace-one"} and len(silos) > 1:
        affected = _pairs(schedules)
    answers = [epsilon(events, delta, method) for events in affected or [[]]]
    lower = [answer.epsilon_lower for answer in answers if answer.epsilon_lower is not None]
    worst = max(answers, key=lambda answer: answer.epsilon)
    return replace(worst, epsilon_lower=max(lower) if lower else None)


def _schedule(events: Sequence[Event]) -> frozenset[Event]:
    """The events of one silo without their order, so that silos with equal events are accounted for once."""
    return frozenset(replace(event, count=n) for event, n in tally(events).items())


def _ordered(schedule: frozenset[Event]) -> list[Event]:
    """The events in an order that is equal in every process, since rounding errors depend on it."""
    return sorted(schedule, key=repr)


def _pairs(schedules: Counter[frozenset[Event]]) -> list[list[Event]]:
    """The joint events of every two silos, without repetitions."""
    distinct = list(schedules)
    return [
        [*_ordered(one), *_ordered(other)]
        for position, one in enumerate(distinct)
        for other in distinct[position:]
        if one is not other or schedules[one] > 1
    ]
