"""No noise: to compare private runs with."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.mechanism.placement.base import Placement, register


@register
class NoNoise(Placement):
    """Nobody adds noise: not private."""

    name = "none"
    also_called = ("off",)
    place = 0
    summary = "nobody adds noise"
    against = "nobody"
    trust = "There is no protection: no noise is added."
    adds_noise = False

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """Zeros."""
        return self.total_stds(stds)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """Zeros."""
        return tuple(0.0 for _ in stds)
