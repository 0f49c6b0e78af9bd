"""Disjoint silos: what all of them together tell about one unit.

The partition of units over silos is fixed and public, and every silo releases by itself. A unit is in one
silo, so adding or removing it touches that silo's releases alone: silos compose in parallel, and the whole
costs what the costliest silo does. Replacing a unit by another costs the same while the other takes its
place in the same silo. Where the other may turn up elsewhere, one silo loses a unit and another gains one,
and the releases of both compose.

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
    """Epsilon at ``delta`` of all silos' releases together, for the unit that loses most.

    Args:
        silos: the events of each silo, by its name.
        delta: in (0, 1).
        method: an accounting method.
        stays: whether a replaced unit's replacement is in the same silo. Without meaning under add/remove.

    Raises UnsupportedEvent where relations are mixed, and as ``epsilon`` does.
    """
    relations = {event.relation for events in silos.values() for event in events}
    if len(relations) > 1:
        raise UnsupportedEvent("events under add-remove and replace-one do not add up to one epsilon")
    schedules = Counter(_schedule(events) for events in silos.values())
    affected = [_ordered(schedule) for schedule in schedules]
    if not stays and relations == {"replace-one"} and len(silos) > 1:
        affected = _pairs(schedules)
    answers = [epsilon(events, delta, method) for events in affected or [[]]]
    lower = [answer.epsilon_lower for answer in answers if answer.epsilon_lower is not None]
    worst = max(answers, key=lambda answer: answer.epsilon)
    return replace(worst, epsilon_lower=max(lower) if lower else None)


def _schedule(events: Sequence[Event]) -> frozenset[Event]:
    """The events of one silo, whatever their order: silos that do the same are accounted for once."""
    return frozenset(replace(event, count=n) for event, n in tally(events).items())


def _ordered(schedule: frozenset[Event]) -> list[Event]:
    """The events in an order that every process agrees on: rounding depends on it, a set's order does not."""
    return sorted(schedule, key=repr)


def _pairs(schedules: Counter[frozenset[Event]]) -> list[list[Event]]:
    kinds = list(schedules)
    return [
        [*_ordered(one), *_ordered(other)]
        for position, one in enumerate(kinds)
        for other in kinds[position:]
        if one is not other or schedules[one] > 1
    ]
