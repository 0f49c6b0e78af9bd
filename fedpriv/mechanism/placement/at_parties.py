"""Noise that parties add to their own messages."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from fedpriv._internal import validation
from fedpriv.mechanism.placement.base import Placement, PlacementContext
from fedpriv.mechanism.sampling import TruncatedPoisson


@dataclass(frozen=True)
class AtParties(Placement):
    """Parties add noise to their own messages, and the server adds the missing shares of m.

    Attributes:
        shares: m, the number of shares of noise in a released sum.
        min_replies: n_min: with fewer replies there is no release. It also sets the share of
            :class:`Distributed`.
        per_unit: whether the parties are the sampled units (clients), not silos, which always take part.
        colluders: c, the number of parties that may share the noise they added.
    """

    at_parties = True
    fewest_replies: ClassVar[int] = 0

    shares: int
    min_replies: int = 0
    per_unit: bool = True
    colluders: int = 0

    def __post_init__(self) -> None:
        validation.integer("shares", self.shares, minimum=1)
        validation.integer("colluders", self.colluders)
        if not self.fewest_replies <= self.min_replies <= self.shares:
            allowed = f"lie in [{self.fewest_replies}, {self.shares}]"
            raise validation.fail("min-replies", self.min_replies, allowed)

    @classmethod
    def configured(cls, context: PlacementContext) -> Self:
        """The placement of a run, with its public numbers m and n_min.

        Raises ArgumentError if cohorts can be smaller than n_min.
        """
        sampler, replies = context.sampler, context.min_replies
        if context.silos is not None:
            shares = floor = context.silos
        elif isinstance(sampler, TruncatedPoisson):
            shares, floor = sampler.cap, sampler.floor
            if floor < cls.fewest_replies:
                allowed = f"give cohorts that are practically never empty under {cls.name} noise"
                hint = "use more clients, a higher rate, or sampler fixed-size"
                raise validation.fail("sampling-rate", sampler.rate, allowed, hint)
            if replies > floor:
                allowed = f"be at most {floor}, the smallest size of the Poisson cohorts"
                raise validation.fail("min-replies", replies, allowed)
        else:
            shares = floor = round(sampler.expected_size)
        replies = replies or (floor if cls.fewest_replies else 0)
        return cls(shares, replies, context.silos is None, context.colluders, exact=context.exact)

    def resized(self, factor: float) -> Self:
        """The placement for a release over ``factor`` times the usual cohort, with scaled m and n_min."""
        if factor == 1 or not self.per_unit:
            return self
        replies = max(self.fewest_replies, round(self.min_replies * factor))
        return replace(self, shares=round(self.shares * factor), min_replies=replies)

    @abstractmethod
    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The noise std of one party per block, given the calibrated stds."""

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The std of the missing shares of m. Raises ArgumentError for more replies than shares."""
        if replies > self.shares:
            # The number of replies is private, so the error leaves it out.
            raise validation.fail("replies", "...", f"be at most the public {self.shares} shares")
        return tuple(std * math.sqrt(self.shares - replies) for std in self.party_stds(stds))

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """sqrt(m) times the std of one party."""
        return tuple(std * math.sqrt(self.shares) for std in self.party_stds(stds))
