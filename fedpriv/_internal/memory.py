"""How much memory a computation takes for each unit that it works on at once, measured and not guessed.

Every byte that a computation allocates on made-up inputs is counted, freed or not, so what is found bounds
the peak from above. It depends on the model, the kind of work and the shapes of the inputs alone.

>>> import torch
>>> def double(units: int) -> torch.Tensor:
...     return 2 * torch.zeros(units, 1000)
>>> bytes_per_unit(double)  # the zeros, and their double
8000
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TRIAL_UNITS, _MORE_UNITS = 2, 4


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations make while it is entered; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[Any],
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and count what it made."""
        result = function(*arguments, **(named or {}))
        given = {_storage(value) for value in tree_leaves((arguments, named)) if isinstance(value, Tensor)}
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and _storage(value) not in given:
                self.bytes += value.numel() * value.element_size()
        return result


def bytes_per_unit(compute: Callable[[int], object]) -> int:
    """Bytes that ``compute(units)`` allocates for each unit beyond the first few, at least 1."""
    found: list[int] = []
    for units in (_TRIAL_UNITS, _MORE_UNITS):
        compute(units)  # what it remembers from its first call is not counted
        with Allocations() as allocations:
            compute(units)
        found.append(allocations.bytes)
    return max(1, (found[1] - found[0]) // (_MORE_UNITS - _TRIAL_UNITS))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
