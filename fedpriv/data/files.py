"""The data folder, and reading of files that may be compressed.

>>> data_folder("~/somewhere").name
'somewhere'
"""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from pathlib import Path

from fedpriv.data.source import DataError


class MissingDataError(DataError, FileNotFoundError):
    """A data set's files are missing from the data folder; the message says how to get them."""

    __module__ = "fedpriv.data"


def data_folder(folder: str | Path | None = None) -> Path:
    """``folder``, otherwise $FEDPRIV_DATA, otherwise ``~/.cache/fedpriv``. It need not exist."""
    chosen = folder or os.environ.get("FEDPRIV_DATA") or Path.home() / ".cache" / "fedpriv"
    return Path(chosen).expanduser()


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

    Raises DataError if the compressed data is damaged or truncated.
    """
    raw = path.read_bytes()
    # A text could start with bzip2's three letters, so its block magic is checked, too.
    codec = gzip if raw[:2] == b"\x1f\x8b" else bz2 if raw[:3] == b"BZh" and raw[4:7] == b"1AY" else None
    if codec is None:
        return raw
    try:
        return bytes(codec.decompress(raw))
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: damaged {codec.__name__} data ({error}); fetch it again") from error
