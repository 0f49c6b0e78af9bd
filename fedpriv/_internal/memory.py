"""Measures the memory that a computation needs per unit in its batch.

All bytes that the computation allocates on synthetic inputs are counted, whether they are freed or not, so
the result is an upper bound of the peak. It depends only on the model, the computation and the input shapes.

>>> import torch
>>> def double(units: int) -> torch.Tensor:
...     return 2 * torch.zeros(units, 1000)
>>> bytes_per_unit(double)  # the zeros, and their double
8000
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TRIAL_UNITS, _MORE_UNITS = 2, 4  # units in the two measured batches


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations allocate within the context. Views count nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Runs the operation and counts the tensors that it allocated."""
        result = function(*arguments, **(named or {}))
        inputs = {_storage(value) for value in tree_leaves((arguments, named)) if isinstance(value, Tensor)}
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and _storage(value) not in inputs:
                self.bytes += value.numel() * value.element_size()
        return result


def bytes_per_unit(compute: Callable[[int], object]) -> int:
    """The bytes that ``compute(units)`` allocates per additional unit, at least 1."""
    found: list[int] = []
    for units in (_TRIAL_UNITS, _MORE_UNITS):
        compute(units)  # caches that the first call fills are not counted
        with Allocations() as allocations:
            compute(units)
        found.append(allocations.bytes)
    return max(1, (found[1] - found[0]) // (_MORE_UNITS - _TRIAL_UNITS))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
