"""The IDX format of MNIST: a magic number, the dimensions, then the values; gzipped or not.

Magic: two zero bytes, a type byte, a byte with the number of dimensions; then each dimension as a
big-endian 32-bit number (LeCun, Cortes & Burges, "The MNIST database of handwritten digits").

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "labels-idx1-ubyte.gz"
...     write(path, np.array([7, 2], np.uint8))
...     read(path)
array([7, 2], dtype=uint8)
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpriv.data.files import content
from fedpriv.data.source import DataError

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


class IdxError(DataError):
    """A file that is not IDX, is cut short, or has bytes left over."""


def read(path: str | Path) -> npt.NDArray[Any]:
    """The array in an IDX file, gzipped or not, in native byte order.

    Raises:
        IdxError: bad magic number, unknown type, a header or data cut short, or bytes left over.
        DataError: damaged gzip data.
        FileNotFoundError: no such file.
    """
    path = Path(path)
    data = content(path)
    if len(data) < 4:
        raise IdxError(f"{path}: {len(data)} bytes, too short for an IDX header")
    zero, code, dimensions = struct.unpack(">HBB", data[:4])
    if zero != 0 or code not in _TYPES:
        raise IdxError(f"{path}: magic number 0x{data[:4].hex()} is not IDX")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise IdxError(f"{path}: cut short within its header of {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    kind = np.dtype(_TYPES[code])
    expected = kind.itemsize
    for length in shape:
        expected *= length  # Python's whole numbers: a hostile header cannot overflow them
    if len(data) - start != expected:
        what = "cut short" if len(data) - start < expected else "has bytes left over"
        raise IdxError(f"{path}: {what}: {len(data) - start} data bytes, {shape} needs {expected}")
    values = np.frombuffer(data, dtype=kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="))


def write(path: str | Path, array: npt.NDArray[Any]) -> None:
    """Write ``array`` as IDX, gzipped when the name ends in ``.gz``.

    Raises IdxError for a type that IDX has not.
    """
    path = Path(path)
    code = _CODES.get(array.dtype.str[1:])
    if code is None:
        raise IdxError(f"{path}: IDX has no type for {array.dtype}")
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    data = header + np.ascontiguousarray(array, dtype=_TYPES[code]).tobytes()
    # No time stamp, so that equal arrays make equal files.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
