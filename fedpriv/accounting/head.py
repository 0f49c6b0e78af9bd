"""The head of a ledger: its length and the hash of its last line, sealed in a second file.

The hash chain of a ledger shows an edited or missing line, except at the end. The head closes this gap: the
file ``ledger.jsonl.head`` says how many events the ledger has and which hash its last line has. Each charge
is synced to the disk in this order: the ledger's line, then the head, then the anchor
(:mod:`fedpriv.accounting.anchor`) if there is one. Only then the release may happen. After a crash at any
point the ledger is therefore as long as its head says, or longer. A shorter one was cut.

A head file has two slots, which are written in turn, so a crash while one is written leaves the other, which
is one charge older. Slots with a wrong checksum do not count.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl.head"
>>> with HeadFile.create(path, Head(0, "a" * 64)) as file:
...     file.seal(Head(1, "b" * 64))
>>> read_head(path).length
1
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from fedpriv._internal import validation
from fedpriv._internal.files import atomic, read_json, sync_folder

SUFFIX = ".head"  # after the ledger's name
NO_COPY = "without a copy, count the whole budget of its runs as spent"  # what is left to do

_SLOT = 192  # bytes of each of the two slots; both are in the first 512 bytes, a disk's smallest sector
_sync = getattr(os, "fdatasync", os.fsync)  # a slot is overwritten in place: no metadata to sync


class LedgerError(validation.FedprivError, ValueError):
    """A ledger is invalid or in use; the message names the file and, if it is known, the line."""

    __module__ = "fedpriv.accounting"


@dataclass(frozen=True)
class Head:
    """Where a ledger ends.

    Attributes:
        length: the number of events.
        link: the SHA-256 chain, in hex, after the last line.
    """

    length: int
    link: str

    def to_json(self) -> dict[str, Any]:
        """The head as a JSON-serialisable dict."""
        return {"length": self.length, "chain": self.link}

    @classmethod
    def from_json(cls, values: Any) -> Head:
        """The inverse of ``to_json``. Raises ValueError for anything else."""
        found = (values.get("length"), values.get("chain")) if isinstance(values, dict) else (None, None)
        length, link = found
        if type(length) is not int or length < 0 or not isinstance(link, str):
            raise ValueError("no head of a ledger")
        return cls(length, link)


class HeadFile:
    """An open file with the head of one ledger."""

    def __init__(self, file: BinaryIO, slot: int, durable: bool = True) -> None:
        self._file, self._durable = file, durable
        self._slot = slot  # the older one, which is written next

    @classmethod
    def create(cls, path: Path, head: Head, durable: bool = True) -> Self:
        """A new file, on disk when this returns; it replaces a file of that name.

        ``durable`` is as for :meth:`fedpriv.accounting.Ledger.create`.
        """
        with atomic(path) as file:
            file.write(2 * _packed(head))
        sync_folder(path.parent)
        return cls(open(path, "r+b", buffering=0), 0, durable)

    @classmethod
    def open(cls, path: Path) -> tuple[Self, Head]:
        """(the file, its head). Raises LedgerError if it has no valid slot, and OSError if it is missing."""
        file = open(path, "r+b", buffering=0)  # noqa: SIM115
        try:
            slots = _slots(file.read(2 * _SLOT))
            head = _newest(slots, path)
        except BaseException:
            file.close()
            raise
        return cls(file, 1 if slots[0] == head else 0), head

    def seal(self, head: Head) -> None:
        """Writes the head and returns once it is on disk, where the file is durable."""
        self._write(_packed(head))
        if self._durable:
            _sync(self._file.fileno())
        self._slot = 1 - self._slot

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, slot: bytes) -> None:
        self._file.seek(self._slot * _SLOT)
        self._file.write(slot)


def head_path(ledger: str | os.PathLike[str]) -> Path:
    """Where the head of this ledger is."""
    ledger = Path(ledger)
    return ledger.with_name(ledger.name + SUFFIX)


def read_head(path: Path) -> Head | None:
    """The head in this file; None if there is no file. Raises LedgerError if the file is damaged."""
    try:
        with path.open("rb") as file:
            content = file.read(2 * _SLOT)
    except FileNotFoundError:
        return None
    return _newest(_slots(content), path)


def _packed(head: Head) -> bytes:
    text = json.dumps({**head.to_json(), "check": _check(head)}, separators=(",", ":"))
    return text.encode().ljust(_SLOT - 1) + b"\n"


def _check(head: Head) -> str:
    return hashlib.sha256(f"{head.length} {head.link}".encode()).hexdigest()[:16]


def _slots(content: bytes) -> list[Head | None]:
    """The two slots; None for one that is not valid."""
    return [_unpacked(content[start : start + _SLOT]) for start in (0, _SLOT)]


def _unpacked(slot: bytes) -> Head | None:
    try:
        values = read_json(slot)
        head = Head.from_json(values)
        return head if values.get("check") == _check(head) else None
    except ValueError:
        return None


def _newest(slots: list[Head | None], path: Path) -> Head:
    heads = [head for head in slots if head is not None]
    if not heads:
        raise LedgerError(
            f"{path} is damaged, so lines may be missing at the end of its ledger. Restore both files from a "
            f"copy; {NO_COPY}."
        )
    return max(heads, key=lambda head: head.length)
