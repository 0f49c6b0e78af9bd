"""The data folder, and reading of files that may be compressed.

>>> data_folder("~/somewhere").name
'somewhere'
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import zlib
from pathlib import Path
from typing import IO

from fedpriv._internal.files import expanded
from fedpriv.data.source import DataError

_CHUNK = 1 << 18
_EXPANSION = 200  # times its size that a compressed file may unpack to; data sets have 3 to 20
_SMALL = 1 << 26  # bytes that any file may unpack to


class MissingDataError(DataError, FileNotFoundError):
    """A data set's files are missing from the data folder; the message says how to get them."""

    __module__ = "fedpriv.data"


def data_folder(folder: str | Path | None = None) -> Path:
    """``folder``, otherwise $FEDPRIV_DATA, otherwise ``~/.cache/fedpriv``. It need not exist."""
    chosen = folder or os.environ.get("FEDPRIV_DATA") or Path.home() / ".cache" / "fedpriv"
    return expanded(chosen)


def find(where: Path, name: str) -> Path:
    """The file ``name`` in the folder ``where``, plain or compressed.

    Raises MissingDataError if there is none.
    """
    for suffix in ("", ".gz", ".bz2"):
        if (where / f"{name}{suffix}").is_file():
            return where / f"{name}{suffix}"
    raise MissingDataError(
        f"{where} has no file {name}, plain or compressed: run `fedpriv data fetch {where.name}`, or set "
        "FEDPRIV_DATA to the folder that holds it; the data set `infinite-digits` needs no files"
    )


def content(path: Path) -> bytes:
    """The file's bytes, decompressed if they are gzip or bzip2 data. The file's name does not matter.

    Raises DataError if the compressed data is damaged or truncated, or far larger than the file.
    """
    raw = path.read_bytes()
    # A text could start with bzip2's three letters, so its block magic is checked, too.
    codec = gzip if raw[:2] == b"\x1f\x8b" else bz2 if raw[:3] == b"BZh" and raw[4:7] == b"1AY" else None
    if codec is None:
        return raw
    try:
        with codec.open(io.BytesIO(raw)) as stream:
            return read_at_most(stream, most_unpacked(len(raw)), path)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: damaged {codec.__name__} data ({error}); fetch it again") from error


def most_unpacked(size: int) -> int:
    """The most bytes that a compressed file of ``size`` bytes may unpack to.

    A kilobyte can be made to unpack to a megabyte, and a few of them to more than there is memory.
    """
    return max(_SMALL, _EXPANSION * size)


def read_at_most(stream: IO[bytes], limit: int, path: Path) -> bytes:
    """The rest of the stream. Raises DataError if it is longer than ``limit`` bytes."""
    blocks, left = [], limit
    while block := stream.read(_CHUNK):
        blocks.append(block)
        left -= len(block)
        if left < 0:
            raise too_large(path, limit)
    return b"".join(blocks)


def too_large(path: Path, limit: int) -> DataError:
    """The error for a file that unpacks to more than ``limit`` bytes."""
    return DataError(f"{path} unpacks to more than {limit:,} bytes; unpack it yourself if you trust it")
