"""What the round loop asks of an engine, and what comes back."""

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
    """A block of units that is computed in one go and whose noise is one draw.

    Attributes:
        index: its number in the release; it keys the parties' noise.
        ids: the units (clients, or examples of one silo), ascending.
        parties: how many parties' messages it stands for (its clients, or 1 for a silo).
        home: the silo that must compute it, or None where any node may.
    """

    index: int
    ids: Indices
    parties: int
    home: int | None = None


@dataclass(frozen=True)
class SumRequest:
    """One release's question as it goes to the engine.

    Attributes:
        query: points, blocks; no data.
        release: the release's number in the run.
        chunks: the cohort in blocks; private, so it goes to the engine and nowhere else.
        party_stds: the std that each party adds to each block, or None.
    """

    query: Query
    release: int
    shards: tuple[Shard, ...]
    party_stds: tuple[float, ...] | None = None


@dataclass(frozen=True)
class PartialSum:
    """Bounded sums, one per block, and the number of parties they stand for. Both are private.

    In float64, so that an engine can add replies without rounding, and so that it is the noisy answer that is
    rounded to the points' own dtype: a float32 sum of 10^7 units has no room for one more.
    """

    sums: tuple[Tensor, ...]
    parties: int

    def to(self, query: Query) -> PartialSum:
        """The reply with its sums in float64 on the device of the query's points."""
        device = query.points[0].device
        return PartialSum(tuple(total.to(device, torch.float64) for total in self.sums), self.parties)


class Engine(Protocol):
    """Whatever computes bounded sums over a cohort."""

    def gather(self, request: SumRequest) -> PartialSum:
        """The sums over all chunks that could be computed, and their parties."""

    def close(self) -> None:
        """Release what the engine holds. Called once, also after errors."""
