r"""CIFAR-10 and CIFAR-100 in their binary version, which holds no pickles.

A file is records of one label byte (CIFAR-10), or of a coarse and a fine label byte (CIFAR-100; the fine
one is used), and then 3,072 pixels: 1,024 red, 1,024 green, 1,024 blue, each row by row (Krizhevsky 2009).

>>> x, y = parse(bytes([3]) + bytes(3072), 1, 10, "toy")
>>> x.shape, y.tolist()
((1, 3, 32, 32), [3])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv.data.arrays import Arrays
from fedpriv.data.files import content
from fedpriv.data.source import Bytes, DataError, Indices

SHAPE = (3, 32, 32)
PIXELS = 3072
CIFAR_10 = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_100 = ("train.bin", "test.bin")


def parse(data: bytes, label_bytes: int, classes: int, name: str) -> tuple[Bytes, Indices]:
    """Images (n, 3, 32, 32) and labels (n,), the last of the ``label_bytes`` of each record.

    Raises DataError unless it is one whole record or more with labels below ``classes``.
    """
    record = label_bytes + PIXELS
    if not data or len(data) % record:
        raise DataError(f"{name}: is not whole records of {record} bytes; fetch it again")
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels = table[:, label_bytes - 1].astype(np.int64)
    if int(labels.max()) >= classes:
        raise DataError(f"{name}: labels must lie in 0..{classes - 1}; fetch it again")
    return table[:, label_bytes:].reshape(-1, *SHAPE), labels


def read(name: str, paths: Sequence[Path], label_bytes: int, classes: int) -> Arrays:
    """The source of training files and, last, the test file. Raises DataError for a damaged one."""
    parts = [parse(content(path), label_bytes, classes, str(path)) for path in paths]
    x, y = (np.concatenate(column) for column in zip(*parts[:-1], strict=True))
    return Arrays(name, x, y, *parts[-1], classes=classes)
