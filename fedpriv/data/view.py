"""The index-addressed federated view: client numbers in, their examples and owners out.

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
from typing import NamedTuple

import torch
from torch import Tensor

from fedpriv.data.partitioning.populations import Population
from fedpriv.data.source import Indices, Source


class Batch(NamedTuple):
    """The examples of several clients, one after the other.

    Attributes:
        x, y: as of :class:`fedpriv.data.source.Pair`, (total, ...).
        owner: int64 (total,), ascending: the position, among the clients asked for, of the owner.
            A position that does not occur is a client that has no examples. It is on the CPU, which deals
            examples to units; a device that has made x and y need not be waited for to know it.
    """

    x: Tensor
    y: Tensor
    owner: Tensor


@dataclass(frozen=True)
class View:
    """A source divided among a population."""

    source: Source
    population: Population

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        return self.population.clients

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """The examples of ``client_ids`` (k,) on ``device``; O(their examples), whatever N.

        Raises ArgumentError for a client number outside 0..clients-1.
        """
        indices, owner = self.population.examples(client_ids)
        x, y = self.source.batch(indices, device)
        return Batch(x, y, torch.from_numpy(owner))
