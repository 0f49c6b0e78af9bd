"""Few multipliers in place of many, on the safe side.

A schedule of thousands of distinct multipliers costs a transform (or a Renyi curve) each. Noise only ever
helps: rounding a multiplier down within its group bounds the privacy loss from above, up from below.

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(z, "poisson", "add-remove", rate=0.1): 1 for z in (1.0, 1.01, 2.0)}
>>> [event.noise_multiplier for event in rounded_down(counts, 2)]
[1.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpriv.accounting.events import Event


def rounded_down(counts: Mapping[Event, int], limit: int) -> dict[Event, int]:
    """The events with at most about ``limit`` distinct multipliers, each rounded down to one in use.

    The groups are equally wide in log z; where there are no more than ``limit`` events, nothing changes.
    """
    if len(counts) <= limit:
        return dict(counts)
    logs = np.log([event.noise_multiplier for event in counts])
    width = (logs.max() - logs.min()) / limit or 1.0
    cells = np.minimum(((logs - logs.min()) / width).astype(int), limit - 1)
    floors: dict[int, float] = {}
    for cell, event in zip(cells.tolist(), counts, strict=True):
        floors[cell] = min(floors.get(cell, np.inf), event.noise_multiplier)
    grouped: dict[Event, int] = {}
    for cell, (event, count) in zip(cells.tolist(), counts.items(), strict=True):
        bare = Event(floors[cell], event.sampling, event.relation, event.rate)
        grouped[bare] = grouped.get(bare, 0) + count
    return dict(sorted(grouped.items(), key=lambda item: item[0].noise_multiplier))
