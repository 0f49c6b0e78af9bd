"""Converts users' data to arrays: NumPy arrays of any number type, torch tensors, lists, and user names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.source import DataError, Indices, kind
from fedpriv.data.sparse import SparseRows

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


def as_array(values: Any, name: str, called: str) -> Array | SparseRows:
    """The values as a writeable NumPy array in native byte order, or as sparse rows.

    Args:
        values: a NumPy array, a torch tensor on any device, a list (of lists) of numbers, or SparseRows.
        name, called: the names of the source and of the part, for errors.

    Raises DataError, which contains no value, for other types.
    """
    if isinstance(values, SparseRows):
        return values
    if isinstance(values, torch.Tensor):
        if values.layout != torch.strided:
            raise DataError(f"{name}: {called} must be a dense tensor; call to_dense()")
        whole = values.detach().cpu()
        found: Array = (whole.float() if whole.dtype == torch.bfloat16 else whole).numpy()
        return found
    if isinstance(values, list | tuple):
        if any(isinstance(part, torch.Tensor) for part in values):
            values = [
                part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else part for part in values
            ]
        try:
            values = np.array(values)
        except ValueError:  # rows of different lengths
            raise DataError(f"{name}: {called} must have rows of one length") from None
    if not isinstance(values, np.ndarray):
        wanted = "a NumPy array, a torch tensor or a list"
        raise DataError(f"{name}: {called} must be {wanted}, not {type(values).__name__}")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    array: Array = values if values.flags.writeable else values.copy()  # torch warns of read-only arrays
    return array


def as_owners(owners: Any, name: str) -> Indices:
    """The owners (n,) as numbers from 0. Names are numbered in alphabetical order.

    Raises DataError if they are neither names nor whole numbers of at least 0.
    """
    array = as_array(owners, name, "owners")
    wanted = f"{name}: owners must be one user for each training example, a name or a number of 0 or more"
    if isinstance(array, SparseRows) or array.ndim != 1:
        raise DataError(wanted)
    if array.dtype.kind == "O" and all(isinstance(one, str) for one in array):
        array = array.astype(str)
    if array.dtype.kind in "US":
        numbers: Indices = np.unique(array, return_inverse=True)[1].astype(np.int64)
        return numbers
    if array.dtype.kind not in "iu" or (array.size and int(array.min()) < 0):
        raise DataError(f"{wanted}; these are {kind(array)}")
    return array.astype(np.int64, copy=False)
