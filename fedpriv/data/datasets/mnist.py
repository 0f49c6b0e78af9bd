"""MNIST and Fashion-MNIST: images of 28 x 28 pixels in IDX files, 10 labels."""

from __future__ import annotations

from pathlib import Path

from fedpriv._internal.lazy import numpy as np
from fedpriv.data import idx
from fedpriv.data.arrays import Arrays
from fedpriv.data.registry import files, register
from fedpriv.data.source import Bytes, Indices

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_mnist(paths: list[Path]) -> tuple[Bytes, Indices, Bytes, Indices]:
    """Training images (n, 28, 28) and labels, then test images and labels, from the four IDX files.

    Raises DataError for a damaged file.
    """
    x, y, test_x, test_y = (idx.read(path) for path in paths)
    return x, y.astype(np.int64), test_x, test_y.astype(np.int64)


register("mnist", files("mnist", *IDX_FILES), lambda paths: Arrays("mnist", *read_mnist(paths), classes=10))
register(
    "fashion-mnist",
    files("fashion-mnist", *IDX_FILES),
    lambda paths: Arrays("fashion-mnist", *read_mnist(paths), classes=10),
)
