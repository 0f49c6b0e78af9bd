"""What a source of examples is, and the finite one.

A source is addressed by index: example ``i`` is the same wherever, whenever and in whichever batch
it is asked for, so that clients need only name indices and data needs no shipping.

>>> x = np.zeros((3, 28, 28), np.uint8); x[1] = 255
>>> toy = Arrays("toy", x, np.array([0, 1, 1]), x[:1], np.array([0]), classes=2)
>>> images, labels = toy.batch(np.array([1, 0]))
>>> tuple(images.shape), labels.tolist(), float(images.max())
((2, 1, 28, 28), [1, 0], 1.0)
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpriv import _check

Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

# One float32 product, so that a byte becomes the same number on every device (some kernels divide
# by multiplying with the reciprocal, others do not).
_PER_BYTE = float(np.float32(1) / np.float32(255))


class DataError(ValueError):
    """A data file is missing, damaged or not what it should be; the message says what to do."""


class Pair(NamedTuple):
    """Examples: ``x`` float32 (n, 1, 28, 28) in [0, 1] and ``y`` int64 (n,)."""

    x: Tensor
    y: Tensor


class Source(Protocol):
    """Index-addressed labelled images with a public test part."""

    @property
    def name(self) -> str:
        """The name that :func:`fedpriv.data.load` knows it by."""

    @property
    def classes(self) -> int:
        """The number of labels."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one example: (1, 28, 28)."""

    @property
    def size(self) -> int | None:
        """The number of training examples; None when there is no end to them."""

    @property
    def first(self) -> int:
        """Index of the first training example; the training examples follow it without gaps."""

    def batch(self, indices: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``indices`` (n,), in that order, on ``device``."""

    def labels(self, indices: Indices) -> Indices:
        """The labels (n,) alone, without making images."""

    def test(self, device: torch.device | str = "cpu") -> Pair:
        """The public test examples."""


def unit_interval(pixels: Tensor) -> Tensor:
    """Bytes (n, 28, 28), of any dtype, as float32 (n, 1, 28, 28) in [0, 1]."""
    return pixels.to(torch.float32).mul_(_PER_BYTE).unsqueeze(1)


def whole(name: str, values: Any, minimum: int = 0, below: int | None = None) -> Indices:
    """``values`` as a one-dimensional int64 array within [minimum, below), or an ArgumentError."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _check.fail(name, f"{array.dtype} of shape {array.shape}", "be whole numbers (n,)")
    array = array.astype(np.int64, copy=False)
    if array.size and int(array.min()) < minimum:
        raise _check.fail(name, int(array.min()), f"be at least {minimum}")
    if array.size and below is not None and int(array.max()) >= below:
        raise _check.fail(name, int(array.max()), f"be below {below}", "the data ends there")
    return array


class Arrays:
    """A finite source over byte images held in memory: MNIST, Fashion-MNIST, the bundled digits.

    Args:
        name: what to call it.
        x, y: training images uint8 (n, 28, 28) and labels (n,); example i is index i.
        test_x, test_y: the public test part.
        classes: the number of labels.

    Raises:
        DataError: images and labels do not fit together, or a label is outside [0, classes).
    """

    shape = (1, 28, 28)
    first = 0

    def __init__(
        self, name: str, x: Bytes, y: Indices, test_x: Bytes, test_y: Indices, classes: int = 10
    ) -> None:
        for images, labels in ((x, y), (test_x, test_y)):
            require_examples(name, images, labels, classes)
        self.name, self.classes, self.size = name, classes, len(x)
        self._y = np.ascontiguousarray(y, dtype=np.int64)
        self._train = (torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(self._y))
        self._test = (
            torch.from_numpy(np.ascontiguousarray(test_x)),
            torch.from_numpy(np.ascontiguousarray(test_y, dtype=np.int64)),
        )
        self._resident: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def batch(self, indices: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``indices`` (n,) on ``device``. Raises ArgumentError outside the data."""
        where = torch.device(device)
        if where not in self._resident:
            self._resident[where] = (self._train[0].to(where), self._train[1].to(where))
        x, y = self._resident[where]
        at = torch.from_numpy(whole("indices", indices, below=self.size)).to(where)
        return Pair(unit_interval(x.index_select(0, at)), y.index_select(0, at))

    def labels(self, indices: Indices) -> Indices:
        """The labels (n,) at ``indices``. Raises ArgumentError outside the data."""
        return self._y[whole("indices", indices, below=self.size)]

    def test(self, device: torch.device | str = "cpu") -> Pair:
        """The public test examples."""
        return Pair(unit_interval(self._test[0].to(device)), self._test[1].to(device))


def require_examples(name: str, images: Any, labels: Any, classes: int) -> None:
    """Raise DataError unless these are n >= 1 byte images (n, 28, 28) with n labels below classes.

    The message names no value, since the data may be private.
    """
    if getattr(images, "dtype", None) != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(f"{name}: images must be uint8 of shape (n, 28, 28)")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images):
        raise DataError(f"{name}: labels must be one whole number for each image")
    if not len(images):
        raise DataError(f"{name}: there must be at least one example")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(f"{name}: labels must lie in 0..{classes - 1}")
