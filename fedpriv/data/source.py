"""The interface of data sets.

A source is addressed by index: example ``i`` is the same in every process, at every time and in every batch.
Therefore clients are described by indices, and no data needs to be sent.

>>> whole("indices", [2, 0], below=3).tolist()
[2, 0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

Indices: TypeAlias = "npt.NDArray[np.int64]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Target: TypeAlias = Literal["label", "value", "tags"]

# Bytes are multiplied by this float32, so that they give the same number on every device. Division would not:
# some kernels divide, others multiply by the reciprocal.
_PER_BYTE = 0.003921568859368563  # 1 / 255 in float32


class DataError(validation.FedprivError, ValueError):
    """A data file is missing, damaged or of a wrong format; the message says what to do."""

    __module__ = "fedpriv.data"


class Pair(NamedTuple):
    """Examples of one source.

    Attributes:
        x: float32 (n, *shape), images in [0, 1]; int64 (n, *shape) if the source has tokens.
        y: depends on the source's target: labels int64 (n,), values float32 (n,), or tags float32 (n,
            classes) of 0 and 1.
    """

    x: Tensor
    y: Tensor


class Source(Protocol):
    """Index-addressed examples with a public test part."""

    @property
    def name(self) -> str:
        """The name for :func:`fedpriv.data.load`."""

    @property
    def classes(self) -> int:
        """The number of labels or tags; 1 if the target is a value."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example, such as (1, 28, 28) for MNIST."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The meaning of integers in x; () if x holds floats.

        (V,): x, of shape (length,), is a sequence of ids 0..V-1, padded with 0 on the right.
        (users, items), or two or more other numbers: x, of shape (columns,), has one column of ids for each.
        """

    @property
    def target(self) -> Target:
        """The type of y: one label of ``classes``, one value, or a set of tags."""

    @property
    def owners(self) -> Indices | None:
        """The natural client of each training example (size,), in the order of the indices.

        Clients are numbered from 0. None if the data has no natural clients.
        """

    @property
    def size(self) -> int | None:
        """The number of training examples; None if it is infinite."""

    @property
    def first(self) -> int:
        """The index of the first training example. The others follow without gaps."""

    def batch(self, indices: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``indices`` (n,), in that order, on ``device``."""

    def labels(self, indices: Indices) -> Indices:
        """The labels (n,) without the inputs. Raises ArgumentError if the target is not a label."""

    def test(self, device: torch.device | str = "cpu") -> Pair:
        """The public test examples."""


def unit_interval(pixels: Tensor) -> Tensor:
    """Bytes (n, 28, 28), of any dtype, as float32 (n, 1, 28, 28) in [0, 1]."""
    return to_unit(pixels).unsqueeze(1)


def to_unit(pixels: Tensor) -> Tensor:
    """Bytes of any dtype and shape as float32 in [0, 1]."""
    return pixels.to(torch.float32).mul_(_PER_BYTE)


def whole(name: str, values: Any, minimum: int = 0, below: int | None = None) -> Indices:
    """``values`` as a one-dimensional int64 array within [minimum, below). Raises ArgumentError otherwise."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        kind_and_shape = f"{array.dtype} of shape {array.shape}"
        raise validation.fail(name, kind_and_shape, "be a one-dimensional array of whole numbers")
    array = array.astype(np.int64, copy=False)
    if array.size and int(array.min()) < minimum:
        raise validation.fail(name, int(array.min()), f"be at least {minimum}")
    if array.size and below is not None and int(array.max()) >= below:
        raise validation.fail(name, int(array.max()), f"be below {below}")
    return array


def as_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The numbers as float32. A number outside float32's range becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


# NumPy's names of these types contain the length of the longest text, which is private.
_KINDS = {"U": "text", "S": "bytes", "O": "objects", "V": "records"}


def kind(array: npt.NDArray[Any]) -> str:
    """The type of an array in a word that reveals nothing about its values.

    >>> kind(np.array(["yes", "no"])), kind(np.array([0.5]))
    ('text', 'float64')
    """
    return _KINDS.get(array.dtype.kind, array.dtype.name)


def require_examples(name: str, images: Any, labels: Any, classes: int) -> None:
    """Raises DataError unless these are n >= 1 byte images (n, 28, 28) with n labels below ``classes``.

    The message contains no value, since the data may be private.
    """
    if getattr(images, "dtype", None) != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(f"{name}: images must be uint8 of shape (n, 28, 28)")
    require_labels(name, labels, len(images), classes)


def require_labels(name: str, labels: Any, count: int, classes: int, called: str = "labels") -> None:
    """Raises DataError unless ``labels`` are ``count`` >= 1 integers (count,) in 0..classes-1.

    The message contains no value and no count, since the data may be private.
    """
    if labels.ndim != 1:
        column = labels.shape[1:] == (1,)
        wrong = "these are (n, 1): take the column, y[:, 0]" if column else f"these have {labels.ndim} axes"
        raise DataError(f"{name}: {called} must be (n,), one whole number for each example; {wrong}")
    if labels.dtype.kind not in "iu":
        hint = " (where they are whole, y.astype(np.int64) is)" if labels.dtype.kind in "bf" else ""
        allowed = f"one whole number for each example, 0..{classes - 1}"
        raise DataError(f"{name}: {called} must be {allowed}; these are {kind(labels)}{hint}")
    if len(labels) != count:
        raise DataError(f"{name}: {called} must be one whole number for each example; they are fewer or more")
    if not count:
        raise DataError(f"{name}: there must be at least one example")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(f"{name}: {called} must lie in 0..{classes - 1}")
