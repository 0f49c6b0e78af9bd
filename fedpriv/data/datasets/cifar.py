r"""CIFAR-10 and CIFAR-100 in their binary version, which contains no pickles.

A file is a sequence of records. A record has one label byte (CIFAR-10), or a coarse and a fine label byte
(CIFAR-100; the fine one is used), and then 3,072 pixel bytes: 1,024 red, 1,024 green and 1,024 blue ones,
each plane row by row (Krizhevsky 2009).

>>> x, y = parse(bytes([3]) + bytes(3072), 1, 10, "toy")
>>> x.shape, y.tolist()
((1, 3, 32, 32), [3])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import content
from fedpriv.data.registry import files, register
from fedpriv.data.source import Bytes, DataError, Indices

SHAPE = (3, 32, 32)
PIXELS = 3072
CIFAR_10 = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_100 = ("train.bin", "test.bin")


def parse(data: bytes, label_bytes: int, classes: int, name: str) -> tuple[Bytes, Indices]:
    """Images (n, 3, 32, 32) and labels (n,). A label is the last of a record's ``label_bytes``.

    Raises DataError unless the data is one or more complete records with labels below ``classes``.
    """
    record = label_bytes + PIXELS
    if not data or len(data) % record:
        raise DataError(
            f"{name}: the file does not consist of complete records of {record} bytes; fetch it again"
        )
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels = table[:, label_bytes - 1].astype(np.int64)
    if int(labels.max()) >= classes:
        raise DataError(f"{name}: labels must lie in 0..{classes - 1}; fetch it again")
    return table[:, label_bytes:].reshape(-1, *SHAPE), labels


def read(name: str, paths: Sequence[Path], label_bytes: int, classes: int) -> Arrays:
    """The source of the training files and the last file, the test file.

    Raises DataError for a damaged file.
    """
    parts = [parse(content(path), label_bytes, classes, str(path)) for path in paths]
    x, y = (np.concatenate(column) for column in zip(*parts[:-1], strict=True))
    return Arrays(name, x, y, *parts[-1], classes=classes)


register("cifar-10", files("cifar-10", *CIFAR_10), lambda paths: read("cifar-10", paths, 1, classes=10))
register("cifar-100", files("cifar-100", *CIFAR_100), lambda paths: read("cifar-100", paths, 2, classes=100))
