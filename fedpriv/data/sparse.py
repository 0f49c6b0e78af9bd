"""A sparse matrix, such as bags of words, whose rows are returned as dense tensors.

>>> rows = SparseRows(np.array([0, 2, 2]), np.array([3, 0]), np.array([0.5, 1.0]), 4)
>>> rows.index_select(0, torch.tensor([1, 0])).tolist()
[[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.5]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor


class SparseRows:
    """A float32 matrix (n, width) in compressed-row format, with the tensor methods that a source needs.

    Args:
        offsets: (n + 1,); row r has the entries from ``offsets[r]`` up to, but not including, ``offsets[r +
            1]``.
        columns: (entries,), each below ``width`` and distinct within a row.
        values: (entries,).
        width: the number of columns.
    """

    def __init__(
        self,
        offsets: npt.NDArray[Any],
        columns: npt.NDArray[Any],
        values: npt.NDArray[Any],
        width: int,
    ) -> None:
        self._offsets = torch.from_numpy(np.asarray(offsets, np.int64))
        self._columns = torch.from_numpy(np.asarray(columns, np.int32))
        self._values = torch.from_numpy(np.asarray(values, np.float32))
        self.shape = (len(offsets) - 1, width)

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The offsets, columns and values."""
        return self._offsets, self._columns, self._values

    def __len__(self) -> int:
        """The number of rows."""
        return self.shape[0]

    def to(self, device: torch.device | str) -> SparseRows:
        """The same rows on ``device``."""
        if self._offsets.device == torch.device(device):
            return self
        moved = object.__new__(SparseRows)
        moved.shape = self.shape
        for name in ("_offsets", "_columns", "_values"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def index_select(self, axis: int, at: Tensor) -> Tensor:
        """The rows ``at`` (k,) as a dense tensor (k, width); ``axis`` is 0."""
        start = self._offsets[at]
        lengths = self._offsets[at + 1] - start
        row = torch.repeat_interleave(torch.arange(len(at), device=at.device), lengths)
        before = torch.cumsum(lengths, 0) - lengths
        entry = torch.arange(len(row), device=at.device) + (start - before)[row]
        dense = torch.zeros(len(at), self.shape[1], device=at.device)
        dense[row, self._columns[entry].long()] = self._values[entry]
        return dense

    def finite(self) -> bool:
        """Whether every value is finite and every column is valid."""
        inside = (self._columns >= 0) & (self._columns < self.shape[1])
        return bool(inside.all()) and bool(self._values.isfinite().all())

    def ones(self) -> bool:
        """Whether every stored value is 1, so that the matrix contains only 0 and 1."""
        return bool((self._values == 1).all())
