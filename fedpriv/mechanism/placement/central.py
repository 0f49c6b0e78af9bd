"""Central noise: the server adds it."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.mechanism.placement.base import Placement, register


@register
class Central(Placement):
    """The server adds all of the noise to the sum."""

    name = "central"
    also_called = ("cdp", "global", "server")
    place = 10
    summary = "the server adds it"
    against = "who sees the models"
    trust = (
        "Each {party} trusts the server, which sees its exact contributions, and the channel to it. The "
        "guarantee holds against everyone who sees the released models of all rounds."
    )

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The calibrated stds, for any number of replies."""
        return tuple(stds)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The calibrated stds."""
        return tuple(stds)
