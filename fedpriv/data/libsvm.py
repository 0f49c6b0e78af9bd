r"""The LIBSVM text format, for a9a and ijcnn1.

A line is ``label index:value index:value ...``, with labels -1 and +1 and ascending indices from 1. Missing
indices have the value 0 (Chang & Lin 2011).

>>> x, y = parse(b"-1 1:0.5 3:1\n+1 2:-2e1\n", 3, "toy")
>>> x.tolist(), y.tolist()
([[0.5, 0.0, 1.0], [0.0, -20.0, 0.0]], [0, 1])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import content
from fedpriv.data.source import DataError, Indices

if TYPE_CHECKING:
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"

_NUMBER = rb"[+-]?(?:\d{1,30}+(?:\.\d{0,30}+)?|\.\d{1,30}+)(?:[eE][+-]?\d{1,4}+)?"
_TEXT = re.compile(rb"(?:[+-]?1(?:\.0{1,30}+)?(?:[ \t]++\d{1,9}+:" + _NUMBER + rb")*+[ \t]*+\r?(?:\n|\Z))++")


def parse(text: bytes, features: int, name: str) -> tuple[Floats, Indices]:
    """Rows (n, features) and labels (n,), 0 for -1 and 1 for +1, of a file's ``text``.

    Raises DataError if the format is wrong, an index is above ``features`` or does not ascend, or a value is
    too large for a float32. The message contains no data.
    """
    if not _TEXT.fullmatch(text):
        raise DataError(f"{name} is not LIBSVM text with labels -1 and +1; fetch it again")
    lines = text.splitlines()
    pairs = np.array([line.count(b":") for line in lines])
    numbers = np.fromstring(text.replace(b":", b" ").decode(), sep=" ")
    begin = np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)
    flat = np.delete(numbers, begin).reshape(-1, 2)
    row, column = np.repeat(np.arange(len(lines)), pairs), flat[:, 0]
    descends = (np.diff(column) <= 0) & (np.diff(row) == 0)
    if descends.any() or not ((column >= 1) & (column <= features)).all():
        raise DataError(f"{name}: indices must ascend within 1..{features}")
    x = np.zeros((len(lines), features), np.float32)
    with np.errstate(over="ignore"):
        x[row, column.astype(np.int64) - 1] = flat[:, 1]
    if not np.isfinite(x).all():
        raise DataError(f"{name}: a value is too large for a float32")
    return x, (numbers[begin] > 0).astype(np.int64)


def read(name: str, paths: Sequence[Path], features: int) -> Arrays:
    """The source of a training file and a test file. Raises DataError for a damaged file."""
    (x, y), (test_x, test_y) = (parse(content(path), features, str(path)) for path in paths)
    return Arrays(name, x, y, test_x, test_y, classes=2)
