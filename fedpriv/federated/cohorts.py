"""Samples cohorts and splits them into shards."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from fedpriv.federated.engine import Indices, Shard
from fedpriv.mechanism.sampling import Sampler
from fedpriv.rng import Key


@dataclass
class CohortSampler:
    """Samples cohorts and splits them into shards.

    Attributes:
        sampler: samples unit numbers.
        key: the server's key.
        chunk_size: the expected number of clients per shard. It fixes the number of shards, and with it the
            layout of the parties' noise, for every cohort size and number of nodes.
        silo_starts: if units are examples of silos, the first unit of each silo and the end of the last,
            (silos + 1,), else None.
        silo: the only silo whose units are sampled (the sampler's population is that silo), or None.
        max_participations: after this many cohorts, a client sends noise only; None: no cap.
        data_on_node: whether each client is a separate node (a deployment): one shard per client.
    """

    sampler: Sampler
    key: Key
    chunk_size: int
    silo_starts: Indices | None = None
    silo: int | None = None
    max_participations: int | None = None
    data_on_node: bool = False

    def __post_init__(self) -> None:
        self._taken: Counter[int] = Counter()

    def draw(self, release: int, rate_factor: float = 1.0) -> tuple[Shard, ...]:
        """The shards of this release's cohort, whose expected size is ``rate_factor`` times the usual one.

        Raises ArgumentError if an unseeded key has already sampled this release's cohort.
        """
        self.key.once("cohort", release)
        sampler = self.sampler.resized(rate_factor).at(release)
        ids = sampler.draw(self.key.generator("cohort", release))
        active = self._below_cap(ids)
        if self.silo_starts is not None:
            return self._by_silo(active, self.silo_starts)
        usual = math.ceil(sampler.expected_size / self.chunk_size)
        pieces = len(ids) if self.data_on_node else min(usual, len(ids))
        # The whole cohort is split, including capped clients: they are parties that send noise only.
        cuts = np.array_split(ids, pieces) if pieces else []
        keep = set(active.tolist()) if len(active) < len(ids) else None
        shards = []
        for index, cut in enumerate(cuts):
            kept = cut if keep is None else np.array([i for i in cut.tolist() if i in keep], np.int64)
            home = int(cut[0]) if self.data_on_node else None
            shards.append(Shard(index, kept, parties=len(cut), home=home))
        return tuple(shards)

    def _below_cap(self, ids: Indices) -> Indices:
        if self.max_participations is None:
            return ids
        active = [i for i in ids.tolist() if self._taken[i] < self.max_participations]
        self._taken.update(active)
        return np.array(active, dtype=np.int64)

    def _by_silo(self, ids: Indices, starts: Indices) -> tuple[Shard, ...]:
        if self.silo is not None:
            return (Shard(0, ids + starts[self.silo], parties=1, home=self.silo),)
        edges = np.searchsorted(ids, starts)
        return tuple(
            Shard(silo, ids[low:high], parties=1, home=silo)
            for silo, (low, high) in enumerate(itertools.pairwise(edges))
        )
