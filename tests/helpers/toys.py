"""Small problems for tests: units with known gradients, and a budget gate that only counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedpriv.accounting.events import Event
from fedpriv.clipping import sum_rows, sum_rows_loop
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.loop import Mechanism
from fedpriv.mechanism.placement import NoNoise
from fedpriv.mechanism.query import Query
from fedpriv.mechanism.release import add_party_noise
from fedpriv.mechanism.sampling import Everyone, Sampler
from fedpriv.rng import Key


def two_layers(rows: torch.Tensor) -> tuple[int, int]:
    """The entries of two layers that make up a row, for clipping layer by layer."""
    half = rows.shape[1] // 2
    return half, rows.shape[1] - half


@dataclass
class RowsEngine:
    """Unit i pulls theta towards row i: its gradient at theta is theta - row_i."""

    rows: torch.Tensor
    key: Key = field(default_factory=lambda: Key.from_seed(0))
    plain: bool = False
    lost: int = 0
    asks: list[SumRequest] = field(default_factory=list)
    closed: bool = False

    def gather(self, request: SumRequest) -> PartialSum:
        self.asks.append(request)
        shards = request.shards[self.lost :]
        total: tuple[torch.Tensor, ...] | None = None
        for shard in [*shards, Shard(10**6, np.empty(0, np.int64), 0)]:
            sums = self.sums(request.query, torch.as_tensor(shard.ids))
            if request.party_stds is not None:
                sums = add_party_noise(
                    sums, request.party_stds, shard.parties, self.key, request.release, shard.index
                )
            total = sums if total is None else tuple(a + b for a, b in zip(total, sums, strict=True))
        assert total is not None
        return PartialSum(total, sum(shard.parties for shard in shards))

    def sums(self, query: Query, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The bounded sums over the units ``ids``."""
        rows = [point - self.rows[ids] for point in query.points]
        return (sum_rows_loop if self.plain else sum_rows)(rows, query.blocks, two_layers(self.rows))

    def close(self) -> None:
        self.closed = True


@dataclass
class CountingGate:
    """Affords a number of releases, and records the charges and their times."""

    limit: float = float("inf")
    charged: list[Event] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    adaptive: bool = False

    def affords(self, events: Sequence[Event]) -> bool:
        return len(self.charged) + len(events) <= self.limit

    def charge(self, events: Sequence[Event]) -> None:
        self.charged += events


def world(seed: int, units: int = 40, dimension: int = 20) -> torch.Tensor:
    generator = np.random.Generator(np.random.Philox(seed))
    return torch.as_tensor(generator.standard_normal((units, dimension)) + 2.0)


def noise_free(optimizer: object, rounds: int, sampler: Sampler | None = None) -> Mechanism:
    return Mechanism(optimizer, sampler or Everyone(40), NoNoise(), 0.0, rounds)  # type: ignore[arg-type]
