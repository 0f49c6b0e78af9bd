"""Where data files lie, reading compressed ones, and writing so that a reader never sees half of one.

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
    """A data set's files are not in the data folder; the message says how to get them."""


def data_folder(folder: str | Path | None = None) -> Path:
    """``folder``, else $FEDPRIV_DATA, else ``~/.cache/fedpriv``; it need not exist."""
    chosen = folder or os.environ.get("FEDPRIV_DATA") or Path.home() / ".cache" / "fedpriv"
    return Path(chosen).expanduser()


def find(where: Path, name: str) -> Path:
    """The file ``name`` in the folder ``where``, plain or compressed. Raises MissingDataError."""
    for suffix in ("", ".gz", ".bz2"):
        if (where / f"{name}{suffix}").is_file():
            return where / f"{name}{suffix}"
    raise MissingDataError(
        f"{where} has no {name}, plain or compressed: run `fedpriv data fetch {where.name}`, or name "
        "the folder that holds it with FEDPRIV_DATA; the data set `infinite-digits` needs no files"
    )


def content(path: Path) -> bytes:
    """The file's bytes, decompressed where they are gzip or bzip2, whatever the file is called.

    Raises DataError when the compressed data is damaged or cut short.
    """
    raw = path.read_bytes()
    # A text could begin with bzip2's three letters, so its version and block magic are asked for too.
    codec = gzip if raw[:2] == b"\x1f\x8b" else bz2 if raw[:3] == b"BZh" and raw[4:7] == b"1AY" else None
    if codec is None:
        return raw
    try:
        return bytes(codec.decompress(raw))
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: damaged {codec.__name__} data ({error}); fetch it again") from error
