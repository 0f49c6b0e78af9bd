"""A batch of privacy units: their examples, labels, weights and dropout seeds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.clipping.dropout import select

_ALIGNMENT = 64  # bytes; torch's own allocations on a CPU begin at multiples of it


@dataclass(frozen=True)
class Units:
    """Examples, labels, weights and seeds of the units, (n, ...) each; weights and seeds may be None."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None
    seeds: Tensor | None = None

    def at(self, which: slice | Tensor) -> Units:
        """The units at these positions."""
        return Units(self.x[which], self.y[which], select(self.weights, which), select(self.seeds, which))

    def padded(self, rows: int) -> Units:
        """The units, padded with copies of the first one to ``rows`` units, in memory of their own.

        Kernels may treat rows differently that begin elsewhere in memory, so that every batch begins where
        an allocation does.
        """

        def extend(tensor: Tensor) -> Tensor:
            missing = rows - len(tensor)
            if missing > 0:
                return torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])
            placed = tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0
            return tensor if placed else tensor.clone(memory_format=torch.contiguous_format)

        weights, seeds = (None if t is None else extend(t) for t in (self.weights, self.seeds))
        return Units(extend(self.x), extend(self.y), weights, seeds)
