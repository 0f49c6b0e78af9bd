"""The files of a node's ledger: how they are opened, locked and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from fedpriv._internal.files import atomic, read_json, sync_folder
from fedpriv.accounting import Ledger, LedgerError
from fedpriv.accounting.anchor import FILE as ANCHOR
from fedpriv.accounting.ledger import Record, read, require_not_deleted
from fedpriv.accounting.record import Reader


@lru_cache(maxsize=4)
def _reader(path: Path) -> Reader:
    """What reads the ledger at this path in this process, which does so at each release."""
    return Reader()


def content(path: Path, anchor: Path | None = None) -> Record:
    """What a node's ledger has now. Raises LedgerError if it was edited, cut or put back."""
    return read(path, anchor, reader=_reader(path))


def opened(path: Path, unit: str, anchor: Path | None = None) -> tuple[Ledger, Record]:
    """(a node's ledger, open for charges of this privacy unit; its content). It is created if there is none.

    Raises LedgerError if it was edited, cut, put back to an earlier state or deleted.
    """
    if not path.exists():
        require_not_deleted(path, anchor)
        Ledger.create(path, {"unit": unit} | ({ANCHOR: str(anchor)} if anchor else {})).close()
    return Ledger.resume(path, anchor=anchor, reader=_reader(path))


def answered_file(path: Path) -> Path:
    """The file beside the ledger at ``path`` that :func:`write_answered` writes."""
    return Path(f"{path}.answered")


def read_answered(path: Path) -> dict[str, int]:
    """{run: the number of its next release that may be answered}, of runs that were charged whole.

    Raises LedgerError if the file was damaged.
    """
    try:
        found = read_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if isinstance(found, dict) and all(type(number) is int and number >= 0 for number in found.values()):
        return found
    raise LedgerError(f"{path} is damaged: restore a copy, or delete it to end the runs that it is about")


def write_answered(path: Path, following: Mapping[str, int]) -> None:
    """Writes what :func:`read_answered` reads, and returns once it is on disk."""
    with atomic(path) as file:
        file.write(json.dumps(dict(following)).encode())
    sync_folder(path.parent)


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Within this block an error of the system is a LedgerError about the ledger at ``path``."""
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"this node's ledger {path} cannot be written ({error.strerror or type(error).__name__}); a "
            "node answers only what it has charged, so free its disk, or set ledger-file to a file that it "
            "may write"
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the ledger against other readers and writers, in this and other processes."""
    import fcntl  # not available on Windows

    with Path(f"{path}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
