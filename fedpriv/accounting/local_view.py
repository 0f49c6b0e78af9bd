"""The server's view under local noise: a client's messages, unamplified, at most K of them.

Every message a client sends is one plain Gaussian release about that client under replace-one. With a
cap of K participations, the client that loses most took part in the K costliest releases so far,
which bounds every client whoever was sampled, so nothing about the cohorts is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv._internal import validation
from fedpriv.accounting.events import Event

LABEL = "max participations"  # of the cap in a ledger's header


def costliest(events: Sequence[Event], participations: int) -> tuple[Event, ...]:
    """The ``participations`` events of lowest noise multiplier: what the worst-placed client can spend.

    Raises ArgumentError unless the events are unsampled (each message is seen) and single.
    """
    validation.integer("participations", participations, minimum=1)
    for event in events:
        if event.sampling != "none" or event.count != 1:
            raise validation.fail("events", event, "be single unsampled releases in the server's view")
    return tuple(sorted(events, key=lambda event: event.noise_multiplier)[:participations])
