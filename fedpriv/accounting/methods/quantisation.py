"""Rounds many distinct noise multipliers down to a few.

Each distinct multiplier of a schedule costs a transform or a Renyi curve. Less noise never lowers the privacy
loss, so rounding multipliers down gives an upper bound of it, and rounding them up a lower bound.

>>> from fedpriv.accounting.events import Event
>>> events = [Event(z, "poisson", "add-remove", rate=0.1) for z in (1.0, 1.01, 2.0)]
>>> [event.noise_multiplier for event in floors(events, 2).values()]
[1.0, 1.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.events import Event


def floors(events: Iterable[Event], limit: int) -> dict[Event, Event]:
    """{event: the event with its multiplier rounded down to the smallest in its group}.

    There are at most ``limit`` groups of equal width in log z. If there are at most ``limit`` distinct
    multipliers, nothing changes. Multipliers must be positive and finite.
    """
    events = list(dict.fromkeys(events))
    logs = np.log([event.noise_multiplier for event in events])
    if len(set(logs.tolist())) <= limit:
        return {event: event for event in events}
    width = (logs.max() - logs.min()) / limit
    cells = np.minimum(((logs - logs.min()) / width).astype(int), limit - 1).tolist()
    least: dict[int, float] = {}
    for cell, event in zip(cells, events, strict=True):
        least[cell] = min(least.get(cell, np.inf), event.noise_multiplier)
    return {
        event: replace(event, noise_multiplier=least[cell]) for cell, event in zip(cells, events, strict=True)
    }
