"""Silos of any partition whose examples are the privacy units: each silo has a public number of slots.

A slot is a privacy unit. It holds one example of its silo, or nothing. A silo with more examples than slots
uses its first examples, in the order of the partition; the others are never used. A silo with fewer leaves
slots empty: an empty slot adds zero to every sum, and still counts in the public number of units, in the
sampling rate and in the denominators. Neighbours differ in what one slot holds, so how many examples a silo
really has is protected up to its number of slots.

>>> from fedpriv.data.partitioning.partition import Partition
>>> parts = Partition.natural(np.array([0, 0, 0, 1]))
>>> slots = SiloSlots(parts, np.array([2, 2]))
>>> slots.clients
4
>>> slots.examples(np.array([1, 2, 3]))  # slot 3 is empty
(array([1, 3]), array([0, 1]))
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.source import Indices, whole

if TYPE_CHECKING:
    from fedpriv.data.partitioning.populations import Population

_MOST = 10**8  # slots: their table takes 8 bytes each
_AT_ONCE = 10**6  # examples that are assigned at once
_EMPTY = -1


@dataclass(frozen=True, eq=False)
class SiloSlots:
    """The population in which each slot of each silo is one unit; silo k has the slots after those of k - 1.

    Args:
        parts: the silos and all examples of each.
        sizes: the public number of slots of each silo, (silos,), at least 1.

    Raises ArgumentError unless there is one size for each silo, or for more than 10^8 slots.
    """

    parts: Population = field(repr=False)
    sizes: Indices = field(repr=False)

    def __post_init__(self) -> None:
        whole("sizes", self.sizes, minimum=1)
        if len(self.sizes) != self.parts.clients:
            raise validation.fail("sizes", len(self.sizes), f"be {self.parts.clients}, one for each silo")
        if self.clients > _MOST:
            hint = "partition=one-example allows more"
            raise validation.fail("clients", len(self.sizes), f"have at most {_MOST} examples in all", hint)

    @property
    def clients(self) -> int:
        """The number of units: all slots."""
        return int(self.sizes.sum())

    @functools.cached_property
    def _table(self) -> Indices:
        """The example in each slot (clients,), or _EMPTY."""
        table = np.full(self.clients, _EMPTY, np.int64)
        starts = np.cumsum(self.sizes) - self.sizes
        silos = len(self.sizes)
        for group in np.array_split(np.arange(silos), min(silos, -(-self.clients // _AT_ONCE))):
            indices, owner = self.parts.examples(group)
            counts = np.bincount(owner, minlength=len(group))
            place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
            kept = place < self.sizes[group][owner]
            table[(starts[group][owner] + place)[kept]] = indices[kept]
        return table

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """(example indices, owners) of the slots ``client_ids`` (k,); an empty slot owns nothing."""
        indices = self._table[whole("client_ids", client_ids, below=self.clients)]
        owner = np.flatnonzero(indices != _EMPTY)
        return indices[owner], owner
