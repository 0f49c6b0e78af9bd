"""The IDX format of MNIST: a magic number, the dimensions, then the values; optionally gzipped.

The magic number has two zero bytes, a type byte and a byte with the number of dimensions. Each dimension
follows as a big-endian 32-bit integer (LeCun, Cortes & Burges, "The MNIST database of handwritten digits").

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
from typing import TYPE_CHECKING, Any

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.files import content
from fedpriv.data.source import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MAX_DIMENSIONS = 32
_CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


class IdxError(DataError):
    """A file is not IDX, is truncated, or has extra bytes."""


def read(path: str | Path) -> npt.NDArray[Any]:
    """The array in an IDX file, which may be gzipped, in native byte order.

    Raises:
        IdxError: wrong magic number, unknown type, truncated header or data, or extra bytes.
        DataError: damaged gzip data.
        FileNotFoundError: no such file.
    """
    path = Path(path)
    data = content(path)
    if len(data) < 4:
        raise IdxError(f"{path}: {len(data)} bytes are too short for an IDX header; fetch it again")
    zero, code, dimensions = struct.unpack(">HBB", data[:4])
    if zero != 0 or code not in _TYPES:
        raise IdxError(f"{path}: magic number 0x{data[:4].hex()} is not IDX")
    if dimensions > _MAX_DIMENSIONS:
        raise IdxError(
            f"{path}: it has {dimensions} dimensions, more than the {_MAX_DIMENSIONS} that are read"
        )
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise IdxError(f"{path}: cut short within its header of {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    kind = np.dtype(_TYPES[code])
    expected = kind.itemsize
    for length in shape:
        expected *= length  # Python integers cannot overflow, whatever the header says
    if len(data) - start != expected:
        what = "cut short" if len(data) - start < expected else "has bytes left over"
        raise IdxError(f"{path}: {what}: {len(data) - start} data bytes, but {shape} needs {expected}")
    try:
        values = np.frombuffer(data, dtype=kind, offset=start).reshape(shape)
    except ValueError:  # longer dimensions of an empty array than NumPy has
        raise IdxError(f"{path}: its header has dimensions that no array can have") from None
    return values.astype(kind.newbyteorder("="))


def write(path: str | Path, array: npt.NDArray[Any]) -> None:
    """Writes ``array`` as IDX, gzipped if the name ends in ``.gz``.

    Raises IdxError for a type that the format does not support.
    """
    path = Path(path)
    code = _CODES.get(array.dtype.str[1:])
    if code is None:
        raise IdxError(f"{path}: IDX has no type for {array.dtype}")
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    data = header + np.ascontiguousarray(array, dtype=_TYPES[code]).tobytes()
    # The time stamp is omitted, so that equal arrays give equal files.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
