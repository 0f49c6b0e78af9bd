"""General partitions: a finite source divided among clients, or an endless one shared out by rule.

>>> from fedpriv.data.partitioning.label_skew import Iid
>>> parts = Partition.deal(np.array([0, 1, 0, 1, 1]), clients=2, skew=Iid(), seed=0)
>>> index, owner = parts.examples(np.array([0, 1]))
>>> sorted(index.tolist()), owner.tolist()
([0, 1, 2, 3, 4], [0, 0, 0, 1, 1])
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from fedpriv._internal import validation
from fedpriv.data.keyed import permuted
from fedpriv.data.partitioning.client_sizes import Sizes
from fedpriv.data.partitioning.label_skew import Skew
from fedpriv.data.source import Indices, whole
from fedpriv.rng import Key


def ranges(starts: Indices, lengths: Indices) -> tuple[Indices, Indices]:
    """The numbers start, start + 1, ... of each range, and the range (0, 1, ...) each is from."""
    owner = np.repeat(np.arange(len(starts), dtype=np.int64), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(owner)) + (starts - before)[owner], owner


@dataclass(frozen=True, eq=False)
class Partition:
    """A finite data set divided among clients: disjoint, and nothing is left over.

    Attributes:
        order: all example indices (n,), client after client.
        offsets: (clients + 1,); client c owns ``order[offsets[c]:offsets[c + 1]]``.
    """

    order: Indices = field(repr=False)
    offsets: Indices = field(repr=False)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    @classmethod
    def deal(
        cls,
        labels: Indices,
        *,
        clients: int,
        skew: Skew,
        sizes: Sizes | None = None,
        seed: int = 0,
        first: int = 0,
    ) -> Partition:
        """Divide examples ``first + 0..n-1`` with ``labels`` (n,) among ``clients``.

        Each client gets at least one example, its examples in random order. Deterministic in
        ``seed``. Raises ArgumentError when there are more clients than examples.
        """
        generator = Key.from_seed(seed).generator("partition")
        shares = (sizes or Sizes()).shares(len(labels), clients, seed)
        labels = np.unique(labels, return_inverse=True)[1]  # a label that nothing has is no label
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
        """Give example ``first + i`` to client ``owners[i]``; there are ``max(owners) + 1`` clients.

        A client may have no example.
        """
        sizes = np.bincount(owners)
        return cls(np.argsort(owners, kind="stable") + first, np.concatenate([[0], np.cumsum(sizes)]))

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """The examples of ``client_ids`` (k,), and the position in it of each one's owner."""
        ids = whole("client_ids", client_ids, below=self.clients)
        at, owner = ranges(self.offsets[ids], self.offsets[ids + 1] - self.offsets[ids])
        return self.order[at], owner


@dataclass(frozen=True, eq=False)
class Implicit:
    """Up to 10^12 clients of an endless source over n base images; O(their examples) to look up.

    Client c owns a subset of a block of its own, deformations ``c R`` to ``(c + 1) R - 1`` of every base
    image, that is the indices ``first + a + n j`` with a < n and c R <= j < (c + 1) R. So no two clients
    share an index, and R is just large enough for the largest client to find its labels.

    Args:
        labels: of the base images (n,), in order.
        clients: N.
        skew, sizes, seed: the label skew, the client sizes, and the partition seed.
        first: index of base image 0.

    Raises ArgumentError when N blocks pass the largest index.
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
            raise validation.fail("clients", self.clients, "be smaller for clients of this size")

    @functools.cached_property
    def stock(self) -> Indices:
        """Base images of each label that occurs, (labels,)."""
        return np.unique(self.labels, return_counts=True)[1]

    @functools.cached_property
    def _by_label(self) -> Indices:
        """The base images (n,), label after label."""
        return np.argsort(self.labels, kind="stable")

    @property
    def copies(self) -> int:
        """R, the deformations of each base image that a client chooses from."""
        return -(-self.sizes.most // int(self.stock.min()))

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """The examples of ``client_ids`` (k,), and the position in it of each one's owner."""
        ids = whole("client_ids", client_ids, below=self.clients)
        lengths = self.sizes.of(self.seed, ids)
        place, owner = ranges(np.zeros(len(ids), np.int64), lengths)
        client, stock = ids[owner], self.stock
        label = self.skew.draw(self.seed, client, place, stock)
        # Number a client's examples of one label 0, 1, ...; a permutation then makes them distinct.
        group = owner * len(stock) + label
        sort = np.argsort(group, kind="stable")
        _, begin, repeats = np.unique(group[sort], return_index=True, return_counts=True)
        rank = np.empty_like(group)
        rank[sort] = np.arange(len(group)) - np.repeat(begin, repeats)
        slot = permuted(self.seed, rank, stock[label] * self.copies, client, label)
        image = self._by_label[(np.cumsum(stock) - stock)[label] + slot % stock[label]]
        deformation = client * self.copies + slot // stock[label]
        return self.first + image + len(self.labels) * deformation, owner
