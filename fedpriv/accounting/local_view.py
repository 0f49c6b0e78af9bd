"""The server's view under local noise: at most K messages of one client, without amplification by sampling.

Every message of a client is one Gaussian release about that client, without sampling, under replace-one. With
a cap of K participations, no client loses more than one that took part in the K costliest releases so far.
This bound holds for every client and needs no information about who was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv._internal import validation
from fedpriv.accounting.events import Event

LABEL = "max participations"  # the key of the cap in a ledger's header


def costliest(events: Sequence[Event], participations: int) -> tuple[Event, ...]:
    """The ``participations`` events with the lowest noise multipliers: the most that one client can spend.

    Raises ArgumentError unless every event has sampling "none" (the server sees each message) and count 1.
    """
    validation.integer("participations", participations, minimum=1)
    for event in events:
        if event.sampling.samples or event.count != 1:
            raise validation.ArgumentError(
                f"{event} is not a release in the server's view: it must have sampling 'none' and count 1."
            )
    return tuple(sorted(events, key=lambda event: event.noise_multiplier)[:participations])
