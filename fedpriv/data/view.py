"""The federated view: maps client numbers to their examples.

>>> import numpy as np
>>> from fedpriv.data import load
>>> from fedpriv.data.partitioning.populations import OneExample
>>> source = load("infinite-digits")
>>> view = View(source, OneExample(10**9, first=source.first))
>>> batch = view.batch(np.array([3, 10**8]))
>>> tuple(batch.x.shape), batch.owner.tolist()
((2, 1, 28, 28), [0, 1])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedpriv._internal.lazy import torch
from fedpriv.data.partitioning.populations import Population
from fedpriv.data.source import Indices, Source

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    """The concatenated examples of several clients.

    Attributes:
        x, y: as in :class:`fedpriv.data.source.Pair`, (total, ...).
        owner: int64 (total,), ascending: the owner's position among the requested clients. A position that
            does not occur belongs to a client without examples. It is always on the CPU, where examples are
            grouped by client, so reading it needs no synchronisation with the device.
    """

    x: Tensor
    y: Tensor
    owner: Tensor


@dataclass(frozen=True)
class View:
    """A source divided among a population of clients."""

    source: Source
    population: Population

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        return self.population.clients

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """The examples of ``client_ids`` (k,) on ``device``. The cost is O(their examples), independent of N.

        Raises ArgumentError for a client number outside 0..clients-1.
        """
        indices, owner = self.population.examples(client_ids)
        x, y = self.source.batch(indices, device)
        return Batch(x, y, torch.from_numpy(owner))
