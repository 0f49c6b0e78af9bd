"""Per-example gradients of a table from which each example looks up few rows.

>>> form = Sparse(torch.tensor([[4, 1, 4]]), torch.tensor([[[1.0], [2.0], [3.0]]]), (6, 1))
>>> form.squares()  # row 4 is looked up twice: (1 + 3)^2 + 2^2
tensor([20.], dtype=torch.float64)
>>> form.total(torch.tensor([0.5])).flatten()
tensor([0., 1., 0., 0., 2., 0.])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedpriv.clipping.ghost.factored import Rows
from fedpriv.clipping.ghost.layers.base import UnsupportedLayerError
from fedpriv.clipping.ghost.outer_product import memory_of

_LARGEST_TABLE = 2**16  # entries of the largest table whose gradient is formed for each example


@dataclass(frozen=True)
class Sparse:
    """Gradients of a table (V, *row) that are zero except in the rows that an example looks up.

    No n large tables are formed: norms are taken after repeated lookups of a row are merged, and a sum over
    examples needs one table.

    Attributes:
        taken: the indices of the rows, int64 (n, places); an index may occur several times.
        added: the gradient at each place, which is added to its row, (n, places, *row).
        shape: (V, *row).
    """

    taken: Tensor
    added: Tensor
    shape: tuple[int, ...]

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        example, row, entries = self._merged
        if divisor is not None:
            entries = entries / divisor[row]
        squares = entries.flatten(1).square().sum(1, dtype=torch.float64)
        sums: Tensor = squares.new_zeros(len(self.taken)).index_add_(0, example, squares)
        return sums

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        # Merged first, as for the norms: entries that cancel within a row leave no rounding in the sum.
        example, row, entries = self._merged
        weighted = entries * factors[example].view(-1, *[1] * (entries.dim() - 1))  # in the factors' dtype
        return factors.new_zeros(self.shape).index_add_(0, row, weighted)

    def scaled(self, coefficient: float) -> Sparse:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return replace(self, added=self.added * coefficient)

    def plus(self, other: Sparse) -> Sparse:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        if memory_of(self.taken) == memory_of(other.taken):  # as the same examples do at two points
            return replace(self, added=self.added + other.added)
        taken = torch.cat([self.taken, other.taken], 1)
        return replace(self, taken=taken, added=torch.cat([self.added, other.added], 1))

    def grouped(self, size: int) -> Sparse:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""

        places = self.taken.shape[1] * size
        added = self.added.reshape(-1, places, *self.added.shape[2:])
        return replace(self, taken=self.taken.reshape(-1, places), added=added)

    def simplified(self) -> Sparse | Rows:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return Rows(self._formed()) if self.shape[0] <= self.taken.shape[1] else self

    def rows(self) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`. Raises UnsupportedLayerError for a large
        table."""
        if self.added[:1].numel() < math.prod(self.shape) > _LARGEST_TABLE:
            raise UnsupportedLayerError
        return self._formed()

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.taken, self.added

    def _formed(self) -> Tensor:
        n, (table, *row) = len(self.taken), self.shape
        formed = self.added.new_zeros(n * table, *row)
        return formed.index_add_(0, self._keys, self.added.flatten(0, 1)).view(n, table, *row)

    @property
    def _keys(self) -> Tensor:
        """example * V + row of every place, (n * places,)."""
        first = torch.arange(len(self.taken), device=self.taken.device) * self.shape[0]
        return (self.taken + first[:, None]).flatten()

    @cached_property
    def _merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each (example, row) once, with the sum of its entries: (m,), (m,), (m, *row), padded with zeros.

        m is the number of places: the number of distinct pairs would have to be read from the device.
        """
        ascending, order = self._keys.sort()
        rank = (ascending.diff(prepend=ascending[:1]) != 0).cumsum(0)
        keys = torch.zeros_like(ascending).scatter_(0, rank, ascending)
        where = torch.empty_like(rank).scatter_(0, order, rank)
        added = self.added.flatten(0, 1)
        sums = torch.zeros_like(added).index_add_(0, where, added)
        return keys // self.shape[0], keys % self.shape[0], sums
