"""Partitions: a finite data set divided among clients, or an infinite one assigned by a rule.

>>> from fedpriv.data.partitioning.label_skew import Iid
>>> parts = Partition.assign(np.array([0, 1, 0, 1, 1]), clients=2, skew=Iid(), seed=0)
>>> index, owner = parts.examples(np.array([0, 1]))
>>> sorted(index.tolist()), owner.tolist()
([0, 1, 2, 3, 4], [0, 0, 0, 1, 1])
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.keyed import permuted
from fedpriv.data.partitioning.client_sizes import Sizes
from fedpriv.data.partitioning.label_skew import Skew
from fedpriv.data.source import Indices, whole


def ranges(starts: Indices, lengths: Indices) -> tuple[Indices, Indices]:
    """(the concatenated ranges start, start + 1, ..., the number of the range of each entry)."""
    owner = np.repeat(np.arange(len(starts), dtype=np.int64), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(owner)) + (starts - before)[owner], owner


@dataclass(frozen=True, eq=False)
class Partition:
    """A finite data set divided completely among clients without overlap.

    Attributes:
        order: all example indices (n,), grouped by client.
        offsets: (clients + 1,); client c owns ``order[offsets[c]:offsets[c + 1]]``.
    """

    order: Indices = field(repr=False)
    offsets: Indices = field(repr=False)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    @classmethod
    def assign(
        cls,
        labels: Indices,
        *,
        clients: int,
        skew: Skew,
        sizes: Sizes | None = None,
        seed: int = 0,
        first: int = 0,
    ) -> Partition:
        """Divides the examples ``first + 0..n-1`` with ``labels`` (n,) among ``clients``.

        Each client gets at least one example; its examples are in random order. The result is determined by
        ``seed``. Raises ArgumentError if there are more clients than examples.
        """
        from fedpriv.rng import Key

        generator = Key.from_seed(seed).generator("partition")
        shares = (sizes or Sizes()).shares(len(labels), clients, seed)
        labels = np.unique(labels, return_inverse=True)[1]  # labels without examples are dropped
        stock = np.bincount(labels)
        counts = skew.counts(shares, stock, generator)
        shuffled = generator.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        owner = np.concatenate([np.repeat(np.arange(clients), column) for column in counts.T])
        mixed = generator.permutation(len(labels))
        order = by_label[mixed[np.argsort(owner[mixed], kind="stable")]] + first
        return cls(order, np.concatenate([[0], np.cumsum(shares)]))

    @classmethod
    def natural(cls, owners: Indices, first: int = 0) -> Partition:
        """Assigns example ``first + i`` to client ``owners[i]``. There are ``max(owners) + 1`` clients.

        A client may have no examples.
        """
        sizes = np.bincount(owners)
        return cls(np.argsort(owners, kind="stable") + first, np.concatenate([[0], np.cumsum(sizes)]))

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """(example indices, owners) of ``client_ids`` (k,). An owner is a position in ``client_ids``."""
        ids = whole("client_ids", client_ids, below=self.clients)
        at, owner = ranges(self.offsets[ids], self.offsets[ids + 1] - self.offsets[ids])
        return self.order[at], owner


@dataclass(frozen=True, eq=False)
class Implicit:
    """Up to 10^12 clients of an infinite source over n base images. A lookup costs O(their examples).

    Client c has its own block of indices: deformations ``c R`` to ``(c + 1) R - 1`` of every base image, that
    is the indices ``first + a + n j`` with a < n and c R <= j < (c + 1) R. It owns a subset of this block, so
    no two clients share an index. R is just large enough that the largest client finds enough examples of
    each label.

    Args:
        labels: labels of the base images (n,), in order.
        clients: N.
        skew, sizes, seed: the label skew, the client sizes, and the partition seed.
        first: the index of base image 0.

    Raises ArgumentError if N blocks exceed the largest index, 2^62 - 1.
    """

    labels: Indices = field(repr=False)
    clients: int
    skew: Skew
    sizes: Sizes = Sizes()  # noqa: RUF009 -- frozen
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        validation.integer("clients", self.clients, 1)
        validation.integer("partition-seed", self.seed)
        if self.clients * self.copies * len(self.labels) + self.first >= 2**62:
            raise validation.fail(
                "clients", self.clients, "be smaller for clients of this size: indices end at 2^62"
            )

    @functools.cached_property
    def stock(self) -> Indices:
        """The number of base images of each label that occurs, (labels,)."""
        return np.unique(self.labels, return_counts=True)[1]

    @functools.cached_property
    def _by_label(self) -> Indices:
        """The base images (n,), sorted by label."""
        return np.argsort(self.labels, kind="stable")

    @property
    def copies(self) -> int:
        """R, the number of deformations of each base image in a client's block."""
        return -(-self.sizes.most // int(self.stock.min()))

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """(example indices, owners) of ``client_ids`` (k,). An owner is a position in ``client_ids``."""
        ids = whole("client_ids", client_ids, below=self.clients)
        lengths = self.sizes.of(self.seed, ids)
        place, owner = ranges(np.zeros(len(ids), np.int64), lengths)
        client, stock = ids[owner], self.stock
        label = self.skew.draw(self.seed, client, place, stock)
        # A client's examples of one label are numbered 0, 1, ...; a permutation maps them to distinct slots.
        group = owner * len(stock) + label
        sort = np.argsort(group, kind="stable")
        _, begin, repeats = np.unique(group[sort], return_index=True, return_counts=True)
        rank = np.empty_like(group)
        rank[sort] = np.arange(len(group)) - np.repeat(begin, repeats)
        slot = permuted(self.seed, rank, stock[label] * self.copies, client, label)
        image = self._by_label[(np.cumsum(stock) - stock)[label] + slot % stock[label]]
        deformation = client * self.copies + slot // stock[label]
        return self.first + image + len(self.labels) * deformation, owner
