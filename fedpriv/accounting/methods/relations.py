"""Conversion of noise multipliers between neighbouring relations. Only this module converts them.

An event's z is noise std over the add/remove sensitivity S. Under replace-one a unit's contribution can
move by 2 S, so a release without sampling, or over a cohort of fixed size, has the effective multiplier
z / 2. Poisson sampling under replace-one is NOT z / 2: its neighbours are the mixtures
(1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1), in units of S, with the unconverted z.

>>> plain_multiplier(Event(2.0, "none", "replace-one"))
1.0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedpriv.accounting.events import Event, Relation
from fedpriv.accounting.methods.base import UnsupportedEvent


def require_one(found: Iterable[Relation]) -> None:
    """Raises UnsupportedEvent unless all events that are composed have one relation."""
    if len(set(found)) > 1:
        raise UnsupportedEvent(
            "Events under add-remove and replace-one cannot be composed into one epsilon. "
            "Account for each relation separately."
        )


def added_or_removed(event: Event) -> Event:
    """The event under add-remove. An event with a fixed cohort size is returned unchanged.

    The mechanism does not depend on the relation: neither z, which is noise std over S, nor Poisson sampling
    does. Fixed-size sampling has no add-remove form.

    >>> added_or_removed(Event(2.0, "poisson", "replace-one", rate=0.1)).relation
    'add-remove'
    """
    joined = event.sampling.allows(Relation.ADD_REMOVE)
    return replace(event, relation=Relation.ADD_REMOVE) if joined else event


def under_one_relation(events: Sequence[Event]) -> list[Event]:
    """The events under one relation: their own, if they have one, else add-remove.

    If one of them has a fixed cohort size, which has no add-remove form, all are converted to replace-one.
    The mechanisms do not depend on the relation.

    It is used for tables of ledgers' events. An owner's limit is always computed under add-remove
    (:mod:`fedpriv.accounting.owner_limit`), since otherwise one event under another relation would change the
    cost of all earlier events.

    >>> fixed = Event(2.0, "without-replacement", "replace-one", rate=0.1)
    >>> [event.relation for event in under_one_relation([fixed, Event(2.0, "none", "add-remove")])]
    ['replace-one', 'replace-one']
    """
    if len({event.relation for event in events}) < 2:
        return list(events)
    if all(event.sampling.allows(Relation.ADD_REMOVE) for event in events):
        return [added_or_removed(event) for event in events]
    return [replace(event, relation=Relation.REPLACE_ONE) for event in events]


def plain_multiplier(event: Event) -> float:
    """Noise std over the largest distance between two neighbours' sums, for a cohort that holds the unit.

    It does not apply to Poisson sampling under replace-one with rate < 1 (see the module docstring).
    """
    return event.noise_multiplier / event.relation.moves


def not_gaussian(event: Event) -> str | None:
    """The mechanism's name if it is not Gaussian, as a reason for refusal; otherwise None."""
    return None if event.mechanism == "gaussian" else event.mechanism


def replaced_poisson(event: Event) -> str | None:
    """The reason for refusal if the event is Poisson-sampled under replace-one; otherwise None."""
    if event.sampled and event.sampling.random_size and event.relation is Relation.REPLACE_ONE:
        return "poisson sampling under replace-one"
    return None
