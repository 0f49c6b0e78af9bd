"""The arrays of any Flower app as one parameter vector, and back.

An app sends its model as an ArrayRecord. The floating-point arrays in it are trained, in the order of the
record; together they are the vector (d,) that is clipped and released. The other arrays stay as the server
has them: integers, the running statistics of BatchNorm layers (by the names that torch gives them), and those
that the caller freezes. They are not released, so whatever clients return for them has no effect.

>>> import numpy as np
>>> from flwr.app import Array, ArrayRecord
>>> record = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "steps": Array(np.array(7))})
>>> arrays = AppArrays(record)
>>> arrays.layout.dimension, arrays.kept
(6, ('steps',))
>>> returned = ArrayRecord({"w": Array(np.ones((2, 3), np.float32)), "steps": Array(np.array(9))})
>>> arrays.change(arrays.vector(record), returned)
tensor([-1., -1., -1., -1., -1., -1.])
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedpriv._internal import patterns, validation
from fedpriv.flower.serialization import APP_FLOATS, MessageError, read_vector
from fedpriv.parameters import Layout, Slot

# What torch's BatchNorm and InstanceNorm layers call their running statistics.
_STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")


class AppArrays:
    """An app's arrays: which of them are trained, and how they are laid out as one vector.

    Args:
        initial: the arrays with which the run starts.
        frozen: names, or patterns such as ``"encoder.*"``, of arrays that are not trained.

    Attributes:
        layout: of the trained arrays.
        kept: the names of the arrays that stay as the server has them.

    Raises ArgumentError if a pattern fits no array, no array is left, or values are not finite.
    """

    def __init__(self, initial: ArrayRecord, frozen: Iterable[str] = ()) -> None:
        self._values = {name: _values(name, array) for name, array in initial.items()}
        known = ", ".join(self._values) or "none"
        hint = f"the arrays are {known}"
        still = patterns.matching("frozen", frozen, self._values, "fit the name of an array", hint)
        slots, offset = [], 0
        for name, values in self._values.items():
            statistic = any(fnmatchcase(name, pattern) for pattern in _STATISTICS)
            if values.dtype.kind == "f" and not statistic and name not in still:
                slots.append(Slot(name, values.shape, offset))
                offset += values.size
        if not offset:
            raise validation.fail("initial_arrays", known, "have a floating-point array to train", hint)
        self.layout = Layout(tuple(slots))
        self.kept = tuple(name for name in self._values if name not in self.layout.names)

    def vector(self, record: ArrayRecord) -> Tensor:
        """The trained arrays of a record of the server's, float32 (d,).

        Raises ArgumentError if a value is not finite.
        """
        vector = torch.cat(
            [torch.from_numpy(_values(name, record[name])).float().reshape(-1) for name in self.layout.names]
        )
        if not bool(torch.isfinite(vector).all()):
            raise validation.ArgumentError(
                "initial_arrays has values that are not finite in float32; a run must start from finite ones"
            )
        return vector

    def record(self, vector: Tensor) -> ArrayRecord:
        """The app's arrays with the trained ones from a vector (d,), in the app's own types and order."""
        trained = self.layout.split(vector.detach().cpu())
        return ArrayRecord(
            {
                name: Array(trained[name].numpy().astype(values.dtype) if name in trained else values.copy())
                for name, values in self._values.items()
            }
        )

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """All arrays as tensors by name, the trained ones from a vector (d,)."""
        return {name: torch.from_numpy(array.numpy()) for name, array in self.record(vector).items()}

    def change(self, point: Tensor, returned: ArrayRecord) -> Tensor:
        """theta - theta_K, float32 (d,): what a client contributes that was sent the vector ``point``.

        The difference is rounded once. Arrays that are not trained are not looked at.

        Raises MessageError if the names are not those that were sent, or an array has another shape, does not
        hold floats, or cannot be read.
        """
        if set(returned) != set(self._values):
            missing = sorted(set(self._values) - set(returned))
            extra = sorted(set(returned) - set(self._values))
            what = f"lack {', '.join(missing[:3])}" if missing else f"also have {', '.join(extra[:3])}"
            raise MessageError(f"its arrays {what}; a client must return the arrays that it was sent")
        own = self._sent(point)
        parts = [(own[slot.name] - self._read(slot, returned)).reshape(-1) for slot in self.layout.slots]
        return torch.cat(parts).float()

    def _sent(self, point: Tensor) -> dict[str, Tensor]:
        """The trained arrays as a client received them, in float64: rounded to the app's types."""
        return {
            name: torch.from_numpy(tensor.numpy().astype(self._values[name].dtype)).double()
            for name, tensor in self.layout.split(point.detach().cpu()).items()
        }

    def _read(self, slot: Slot, returned: ArrayRecord) -> Tensor:
        values = read_vector(returned, slot.name, APP_FLOATS)
        if tuple(values.shape) != slot.shape:
            raise MessageError(f"the array {slot.name!r} has another shape than the one that was sent")
        return values.double()


def _values(name: str, array: Array) -> np.ndarray[Any, Any]:
    values = array.numpy()
    if values.dtype.kind not in "fiub":
        raise validation.ArgumentError(
            f"The array {name} has the type {values.dtype}; an app's arrays must hold real numbers or truth "
            "values."
        )
    return np.array(values)
