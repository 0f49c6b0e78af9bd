"""Where the noise enters: central, local, distributed, or nowhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedpriv._internal import validation

KINDS = ("none", "central", "local", "distributed")


@dataclass(frozen=True)
class Placement:
    """Where the noise enters, and the public numbers that this needs.

    Attributes:
        kind: one of KINDS.
        shares: m, how many parties' noises a released sum carries (local and distributed).
        min_replies: n_min; fewer replies release nothing. For distributed it also sets the share.
        per_unit: whether the parties are the sampled units (clients), not silos that answer every time.
        colluders: c, how many parties may pool what they know of their own noise.
        exact: whether noise is exact, and sums and noise are multiples of one step; else it is
            floating-point.
    """

    kind: str
    shares: int = 0
    min_replies: int = 0
    per_unit: bool = True
    colluders: int = 0
    exact: bool = False

    def __post_init__(self) -> None:
        validation.choice("placement", self.kind, KINDS)
        if self.at_parties:
            validation.integer("shares", self.shares, minimum=1)
            least = 1 if self.kind == "distributed" else 0
            validation.integer("colluders", self.colluders)
            if not least <= self.min_replies <= self.shares:
                raise validation.fail("min-replies", self.min_replies, f"lie in [{least}, {self.shares}]")

    @property
    def secret_shares(self) -> int:
        """n, how many parties' noises a released sum carries at least that no colluder knows."""
        return max(self.min_replies - self.colluders, 1)

    @property
    def at_parties(self) -> bool:
        """Whether parties add noise to their own messages."""
        return self.kind in ("local", "distributed")

    def resized(self, factor: float) -> Placement:
        """The placement of a release over ``factor`` times the usual cohort: m and n_min follow it."""
        if factor == 1 or not self.at_parties or not self.per_unit:
            return self
        least = 1 if self.kind == "distributed" else 0
        replies = max(least, round(self.min_replies * factor))
        return replace(self, shares=round(self.shares * factor), min_replies=replies)

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...] | None:
        """What one party adds, per block, given the stds owed to the sum; None where it adds nothing."""
        if self.kind == "local":
            return tuple(stds)
        if self.kind == "distributed":
            return tuple(std / math.sqrt(self.secret_shares) for std in stds)
        return None

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """What the server adds, per block, once ``replies`` parties have answered."""
        if self.kind == "none":
            return tuple(0.0 for _ in stds)
        party = self.party_stds(stds)
        if party is None:
            return tuple(stds)
        if replies > self.shares:
            # How many there are is private, so no error says it.
            raise validation.fail("replies", "...", f"be at most the public {self.shares} shares")
        return tuple(std * math.sqrt(self.shares - replies) for std in party)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The std on the released sum, per block: a public constant, whoever took part."""
        if self.kind == "none":
            return tuple(0.0 for _ in stds)
        party = self.party_stds(stds)
        return tuple(stds) if party is None else tuple(s * math.sqrt(self.shares) for s in party)
