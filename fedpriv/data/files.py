"""Where data files lie, reading compressed ones, and writing so that a reader never sees half of one.

>>> data_folder("~/somewhere").name
'somewhere'
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import os
import secrets
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

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


@contextlib.contextmanager
def naming(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Errors of the system name ``path`` where they name no file, as that of a full disk, or its draft."""
    try:
        yield
    except OSError as error:
        # Without a number an error's text is its own, and no file is part of it.
        if error.errno is not None and error.filename in (None, str(draft)):
            error.filename = str(path)
        raise


def unwritable(path: Path) -> str:
    """Why nothing can be written at ``path``, in folders that are made where they are missing; empty where
    something can. Leaves nothing behind."""
    place = path
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        return f"{place} is no folder"
    try:
        with tempfile.TemporaryFile(dir=place):  # os.access promises root folders that let nobody in
            return ""
    except OSError as error:
        return f"{place}: {error.strerror or error}"


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, that appears at ``path``, whole, when the block ends without an error.

    The folder is made where it is missing. After an error nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by tempfile, which makes files for the owner's eyes alone: these follow the user's mask.
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with naming(path, name):
            with name.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
