"""Reads NumPy's .npy format from untrusted bytes: nothing is unpickled, evaluated, or allocated before it is
checked.

NumPy's own reader evaluates the header as a Python literal, and allocates as many numbers as the header
claims.

>>> import io
>>> import numpy as np
>>> file = io.BytesIO()
>>> np.save(file, np.array([[1.5, 2.0]]))
>>> read(file.getvalue())
array([[1.5, 2. ]])
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from fedpriv._internal.lazy import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_MAGIC = re.compile(rb"\x93NUMPY([\x01-\x03])\x00", re.DOTALL)
# Numbers, truth values and texts of fixed length; no objects, records or times.
_HEADER = re.compile(
    rb"\{ ?'descr': ?'([<>|=]?[biufcSU]\d{1,9})', ?'fortran_order': ?(True|False), ?"
    rb"'shape': ?\(((?:\d{1,19}L?, ?)*(?:\d{1,19}L?)?)\),? ?\} *\n"
)
_MAX_HEADER = 10_000  # bytes, as in NumPy
_MAX_AXES = 32


def read(data: bytes) -> npt.NDArray[Any]:
    """The array, writeable and in the file's byte order.

    Raises ValueError, whose text quotes nothing, unless the bytes are one array of numbers or texts of the
    size that its header claims.
    """
    magic = _MAGIC.match(data)
    if magic is None:
        raise ValueError("this is not NumPy's format")
    width = 2 if magic[1] == b"\x01" else 4
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    found = _HEADER.fullmatch(data[8 + width : start]) if start <= _MAX_HEADER else None
    if found is None:
        raise ValueError("the header is not that of a plain array")
    try:
        dtype = np.dtype(found[1].decode())
    except TypeError:
        raise ValueError("the header names no type of numbers") from None
    shape = tuple(int(length) for length in re.findall(rb"\d+", found[3]))
    if len(shape) > _MAX_AXES or not dtype.itemsize or len(data) - start != dtype.itemsize * math.prod(shape):
        raise ValueError("the size is not the one that the header claims")
    order: Any = "F" if found[2] == b"True" else "C"
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order=order).copy(order)
