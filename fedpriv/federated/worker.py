"""A node's part of a run: it computes one bounded sum over its virtual clients.

Every engine uses the same class. In a simulation any node computes any client, because data is addressed by
index. In a deployment a node owns one data file and answers for its own partition only. A node adds its
parties' noise before anything leaves it. Each reply has new OS entropy, so that two replies, or two runs in
one process, never share noise. Only a simulation with a seed, and a node whose owner sets one, use a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv import clipping, data
from fedpriv._internal import validation
from fedpriv.clipping.dropout import example_seeds, hash_seeds
from fedpriv.federated.augmentation import Augmentation
from fedpriv.federated.client_update import MEMORY, Work, clipped_sum
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.mechanism.grid import on_grid
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.release import add_party_noise
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

_VARIANTS = -1  # what examples' seeds are hashed with, so that variants are drawn apart from dropout


class Units(Protocol):
    """Maps unit numbers to their examples."""

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """The examples (x, y) of the units, and for each its unit's position in ``client_ids``."""


@dataclass(frozen=True)
class Worker:
    """Answers requests for the units of this node.

    Attributes:
        task: the model and loss.
        work: the computation of a client.
        view: maps unit numbers to examples.
        key: the key of this node's noise if it is reproducible; otherwise each reply has a fresh one.
        device: the device of the computation.
        own: the only silo or client that it may answer for, or None in a simulation.
        memory: limit in bytes for the examples and computations at one time.
        unit_memory: the average bytes of one unit's examples while they are made.
        noisy: whether noise is added. Without noise, sums are not rounded to a grid
            (:mod:`fedpriv.mechanism.grid`); a huge clip norm, as used for no clipping, would make it coarse.
        exact: whether noise is exact (:mod:`fedpriv.mechanism.rounded_gaussian`); units are then added in
            float64.
        augmentation: the variants that examples are replaced by; None: they stay as they are.
    """

    task: Task
    work: Work
    view: Units
    key: Key
    device: torch.device
    own: int | None = None
    memory: int = MEMORY
    unit_memory: int = 1
    noisy: bool = True
    exact: bool = False
    augmentation: Augmentation | None = None

    def answer(self, request: SumRequest) -> PartialSum:
        """The bounded sums (float64) over the request's shards, with the parties' noise if they add it."""
        query = to_device(request.query, self.device)
        key = self.key if self.key.reproducible else Key.fresh()

        def part(shard: Shard) -> tuple[Tensor, ...]:
            sums = self._chunk_sums(query, shard, key.integer("draws", request.release))
            if request.party_stds is not None:
                return with_party_noise(sums, request, shard, key, self.exact)
            if not self.noisy:
                return tuple(total.double() for total in sums)
            return tuple(on_grid(total, block, 0.0) for total, block in zip(sums, query.blocks, strict=True))

        # With noise, sums are on a grid and are added without rounding, for every assignment to nodes.
        totals = clipping.added(map(part, request.shards)) or tuple(total.double() for total in zeros(query))
        return PartialSum(
            tuple(total.cpu() for total in totals), sum(shard.parties for shard in request.shards)
        )

    def _chunk_sums(self, query: Query, shard: Shard, seed: int) -> tuple[Tensor, ...]:
        if self.own is not None and shard.home != self.own:
            raise validation.fail("partition", shard.home, f"be this node's own, {self.own}")
        if not len(shard.ids):
            return zeros(query)
        pieces = np.array_split(shard.ids, -(-len(shard.ids) * self.unit_memory // self.memory))
        return clipping.added(self._units_sums(query, ids, seed) for ids in pieces)

    def _units_sums(self, query: Query, ids: data.Indices, seed: int) -> tuple[Tensor, ...]:
        x, y, owner = self.view.batch(ids, self.device)
        if self.augmentation is not None and len(x):
            drawn = hash_seeds(_seeds(seed, ids, owner.cpu()), _VARIANTS)
            x, y, owner = self.augmentation.batch(x, y, owner, drawn)
        seeds = _seeds(seed, ids, owner.cpu()) if self.task.dropout.draws else None
        arguments = (self.work, self.task, query, x, y, owner, len(ids))
        return clipped_sum(*arguments, memory=self.memory, seeds=seeds, exact=self.exact)

    def gather(self, request: SumRequest) -> PartialSum:
        """Answer as an engine of this process alone."""
        return self.answer(request).to(request.query)

    def close(self) -> None:
        """Nothing to release."""


def with_party_noise(
    sums: Sequence[Tensor], request: SumRequest, shard: Shard, key: Key, exact: bool
) -> tuple[Tensor, ...]:
    """A shard's bounded sums with the noise of its parties, on the grid of exact sums: what leaves a node.

    Args:
        sums: one per block; float64 if the noise is exact, otherwise float32.
        request: names the noise std of one party for each block.
        key: the node's key for this reply.
        exact: whether noise is exact.
    """
    blocks, stds = request.query.blocks, request.party_stds
    if stds is None:
        raise ValueError("the request names no noise for its parties")
    noisy = add_party_noise(
        sums, stds, shard.parties, key, request.release, shard.index, blocks if exact else ()
    )
    return noisy if exact else tuple(map(on_grid, noisy, blocks, stds))


def _seeds(seed: int, ids: data.Indices, owner: Tensor) -> Tensor:
    """The dropout seed of each example of the units ``ids``, by its unit and its position in it."""
    counts = torch.bincount(owner, minlength=len(ids))
    places = torch.arange(len(owner)) - (torch.cumsum(counts, 0) - counts)[owner]
    return example_seeds(seed, torch.from_numpy(np.asarray(ids, np.int64))[owner], places)


def zeros(query: Query) -> tuple[Tensor, ...]:
    """The sums over no units: one tensor per block, on the points' device."""
    return clipping.zeros(query.blocks, query.points[0])


def to_device(query: Query, device: torch.device) -> Query:
    """The query with its points, divisors and offsets on ``device``."""
    if query.points[0].device == device:
        return query

    def term(t: Term) -> Term:
        vectors = {name: getattr(t, name) for name in ("divisor", "offset")}
        return replace(t, **{name: v.to(device) for name, v in vectors.items() if v is not None})

    blocks = tuple(
        replace(block, terms=tuple(term(t) for t in block.terms))
        if isinstance(block, SumBlock)
        else replace(block, term=term(block.term))
        for block in query.blocks
    )
    points = tuple(point.to(device) for point in query.points)
    return replace(query, points=points, blocks=blocks)
