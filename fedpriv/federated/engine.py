"""The interface between the round loop and an engine: requests, partial sums, engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.mechanism.query import Query

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """A part of a cohort that one node computes at once, with one noise draw for its parties.

    Attributes:
        index: its number in the release; it keys the parties' noise.
        ids: the units (clients, or examples of one silo), ascending.
        parties: the number of its parties: its clients, or 1 for a silo.
        home: the silo that must compute it, or None if any node may.
    """

    index: int
    ids: Indices
    parties: int
    home: int | None = None


@dataclass(frozen=True)
class SumRequest:
    """One release's request to the engine.

    Attributes:
        query: points and blocks; no data.
        release: the release's number in the run.
        shards: the cohort. It is private, so only the engine receives it.
        party_stds: the noise std that each party adds to each block, or None.
    """

    query: Query
    release: int
    shards: tuple[Shard, ...]
    party_stds: tuple[float, ...] | None = None


@dataclass(frozen=True)
class PartialSum:
    """Bounded sums, one per block, and the number of their parties. Both are private.

    The sums are in float64, so that an engine can add replies without rounding: a float32 sum of 10^7 units
    loses one more unit. Only the noisy answer is rounded to the points' dtype.
    """

    sums: tuple[Tensor, ...]
    parties: int

    def to(self, query: Query) -> PartialSum:
        """The same sums in float64 on the device of the query's points."""
        device = query.points[0].device
        return PartialSum(tuple(total.to(device, torch.float64) for total in self.sums), self.parties)


class Engine(Protocol):
    """Computes bounded sums over a cohort."""

    def gather(self, request: SumRequest) -> PartialSum:
        """The sums over all shards that could be computed, and the number of their parties."""

    def close(self) -> None:
        """Release the engine's resources. Called once, also after errors."""
