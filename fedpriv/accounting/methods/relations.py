"""What a noise multiplier means under each relation: the one place that converts.

An event's z is noise std over the add/remove sensitivity S. Under replace-one a unit's contribution can
move by 2 S, so a release without sampling, or over a cohort of fixed size, has the effective multiplier
z / 2. Poisson sampling under replace-one is NOT z / 2: there the neighbours are the mixtures
(1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1), in units of S, with z as it is.

>>> plain_multiplier(Event(2.0, "none", "replace-one"))
1.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpriv.accounting.events import Event


def unsampled(event: Event) -> bool:
    """Whether everyone takes part, so that the release is a plain Gaussian mechanism."""
    return event.sampling == "none" or event.rate == 1


def added_or_removed(event: Event) -> Event:
    """The event under add-remove; a cohort of fixed size, which has none there, as it is.

    The release is the same whoever the neighbours are: z is noise std over S whatever the relation, and who
    joins a Poisson cohort, or that everyone does, is so too.

    >>> added_or_removed(Event(2.0, "poisson", "replace-one", rate=0.1)).relation
    'add-remove'
    """
    return event if event.sampling == "without-replacement" else replace(event, relation="add-remove")


def alike(events: Sequence[Event]) -> list[Event]:
    """Events of both relations, under add-remove where that can be; events of one as they are.

    For a table of what was released, whose neighbours are its events'. What an owner allows is judged under
    one relation whatever the events' is (:mod:`fedpriv.accounting.owner_limit`): else one event more of the
    other would make all earlier ones cost another amount.
    """
    if len({event.relation for event in events}) < 2:
        return list(events)
    return [added_or_removed(event) for event in events]


def plain_multiplier(event: Event) -> float:
    """Noise std over the largest distance of two neighbours' sums, cohort given and unit in it.

    Not to be used for Poisson sampling under replace-one with rate < 1 (see above).
    """
    return event.noise_multiplier / (2 if event.relation == "replace-one" else 1)


def not_gaussian(event: Event) -> str | None:
    """What a method of Gaussian noise refuses, or None."""
    return None if event.mechanism == "gaussian" else event.mechanism


def replaced_poisson(event: Event) -> str | None:
    """What a method without a theorem for Poisson sampling under replace-one refuses, or None."""
    if event.sampling == "poisson" and event.relation == "replace-one" and not unsampled(event):
        return "poisson sampling under replace-one"
    return None
