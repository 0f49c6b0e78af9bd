"""The ledger: an append-only file that records every event before its release happens.

A ledger is a JSON-lines file: a header with the run's public parameters, then one line per event. Every line
holds the SHA-256 hash of itself and the chain before it, so ``read`` detects an edited, removed or swapped
line and names its number. ``record`` returns only after fsync, so an incomplete last line belongs to a
release that did not happen; ``read`` drops it with a warning. No value in a ledger comes from private data.

An event's line may carry labels: ``silos``, the numbers of the silos that each make this release on their own
units, or the ``run`` and ``round`` that a node answered. Labels are not part of the event, so equal releases
of different silos are equal events. :meth:`Record.by_silo` groups events by silo for parallel composition.
The sum of all of a ledger's events is at least the cost of any one silo. Format 2 has labels; format 1 is the
same without them and can still be read.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl"
>>> with Ledger.create(path, {"relation": "add-remove"}) as ledger:
...     ledger.record([Event(1.1, "poisson", "add-remove", rate=0.01)])
...     ledger.record([Event(1.2, "none", "add-remove")], silos=[0, 2])
>>> read(path).events[0].rate, read(path).labels[1]
(0.01, {'silos': [0, 2]})
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedpriv._internal import validation
from fedpriv.accounting.events import Event

_LOG = logging.getLogger(__name__)
_FORMAT, _FORMATS = 2, (1, 2)  # the format that is written, and the formats that can be read


class LedgerError(validation.FedprivError, ValueError):
    """A ledger is invalid or in use; the message names the file and, if it is known, the line."""

    __module__ = "fedpriv.accounting"


@dataclass(frozen=True)
class Record:
    """The content of a ledger file.

    Attributes:
        header: the run's public parameters.
        events: all charged events, in order.
        torn: the number of the incomplete last line that was dropped (1 is the header), or None.
        links: the SHA-256 chain, in hex, after the header and after each event.
        size: the length of the complete lines in bytes.
        labels: the labels of each event; {} for an event without labels.
    """

    header: dict[str, Any]
    events: tuple[Event, ...]
    torn: int | None
    links: tuple[str, ...]
    size: int
    labels: tuple[dict[str, Any], ...]

    def by_silo(self) -> dict[str, tuple[Event, ...]]:
        """The events of each silo: {silo number: events}. Raises LedgerError for an event without a silo."""
        found: dict[int, list[Event]] = {}
        for number, (event, labels) in enumerate(zip(self.events, self.labels, strict=True), 2):
            if "silos" not in labels:
                raise LedgerError(
                    f"Line {number} of the ledger has no label 'silos', so its events cannot be split by "
                    "silo."
                )
            for silo in labels["silos"]:
                found.setdefault(silo, []).append(event)
        return {str(silo): tuple(events) for silo, events in sorted(found.items())}


class Ledger:
    """An open ledger. Use ``create`` for a new run and ``resume`` for an interrupted run."""

    def __init__(self, file: BinaryIO, chain: str, length: int) -> None:
        self._file = file
        self._chain = chain
        self._length = length

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Mapping[str, Any]) -> Ledger:
        """A new ledger with its header on disk. Raises FileExistsError if the file exists.

        The file appears under its name only with a complete header. After a crash there is no ledger instead
        of a partial one (an empty file is possible on a file system without hard links).
        """
        path = Path(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        file = _locked(open(draft, "xb"), draft)  # noqa: SIM115
        try:
            ledger = cls(file, "", 0)
            ledger._write([{"ledger": _FORMAT, **header}])
            _give_name(draft, path)
            _sync_folder(path.parent)
        except BaseException:
            file.close()
            raise
        finally:
            draft.unlink(missing_ok=True)
        return ledger

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> tuple[Ledger, Record]:
        """(the ledger, open for more events; its content). An incomplete last line is cut off.

        Raises LedgerError if a line was edited or if another process has the ledger open.
        """
        file = _locked(open(path, "r+b"), path)  # noqa: SIM115
        try:
            record = read(path)
        except BaseException:
            file.close()
            raise
        file.truncate(record.size)
        file.seek(record.size)
        ledger = cls(file, record.links[-1], len(record.events))
        if record.size and not _ends_complete(path):
            ledger._append(b"\n")
        return ledger, record

    def __len__(self) -> int:
        """The number of events recorded."""
        return self._length

    @property
    def link(self) -> str:
        """The SHA-256 chain, in hex, after the last recorded line. It identifies this ledger's content."""
        return self._chain

    def record(self, events: Sequence[Event], **labels: object) -> None:
        """Writes the events with these labels and returns once they are on disk.

        The releases may happen only after it returned.
        """
        self._write([{"event": event.to_json(), **labels} for event in events])
        self._length += len(events)

    def close(self) -> None:
        """Closes the file. The recorded events stay on disk."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        chain, lines = self._chain, []
        for body in bodies:
            if "chain" in body:
                raise validation.ArgumentError(
                    "A ledger header or label may not use the key 'chain': the ledger writes it itself."
                )
            chain = _link(chain, body)
            lines.append(json.dumps({**body, "chain": chain}, separators=(",", ":")))
        self._append("".join(line + "\n" for line in lines).encode())
        self._chain = chain

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())


def _locked(file: BinaryIO, path: str | os.PathLike[str]) -> BinaryIO:
    """The file with an exclusive lock, which ends when the file is closed.

    Raises LedgerError if another process holds the lock: two writers would break the hash chain.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise LedgerError(
            f"{path} is in use: another run writes to it. Wait until that run has ended."
        ) from None
    except OSError:  # the file system has no locks
        pass
    return file


def _give_name(draft: Path, path: Path) -> None:
    """Gives the file ``draft`` the second name ``path``. Raises FileExistsError if that exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    except OSError:  # no hard links here: reserve the name first, so that no other file is overwritten
        open(path, "xb").close()
        os.replace(draft, path)


def require_unused(path: str | os.PathLike[str]) -> None:
    """Raises LedgerError if a run has the ledger open, so that nobody deletes it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        _locked(open(path, "r+b"), path).close()  # noqa: SIM115


def read(path: str | os.PathLike[str]) -> Record:
    """The content of a ledger file, checked against its hash chain.

    An incomplete last line is dropped with a warning: its release did not happen. Raises LedgerError for an
    edited line, which the message numbers, and for a file without a header.
    """
    data = Path(path).read_bytes()
    chain, size = "", 0
    links, bodies = list[str](), list[dict[str, Any]]()
    lines = data.split(b"\n")
    torn = None
    for number, line in enumerate(lines, 1):
        last = number == len(lines)
        if last and not line:
            break
        body = _verify(line, chain)
        if body is None and last:
            torn = number
            _LOG.warning(
                "%s: the incomplete last line %d was dropped; its release did not happen", path, number
            )
            break
        if body is None:
            raise LedgerError(
                f"{path}: line {number} was edited or does not follow the line before it, so the ledger "
                "cannot be trusted. Restore the file from a copy."
            )
        chain = body.pop("chain")
        links.append(chain)
        bodies.append(body)
        size += len(line) + (0 if last else 1)
    if not bodies or bodies[0].get("ledger") not in _FORMATS:
        raise LedgerError(
            f"{path}: line 1 is not the header of a ledger of format {' or '.join(map(str, _FORMATS))}."
        )
    events = tuple(Event.from_json(body.pop("event")) for body in bodies[1:])
    return Record(bodies[0], events, torn, tuple(links), size, tuple(bodies[1:]))


def _link(chain: str, body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256((chain + text).encode()).hexdigest()


def _verify(line: bytes, chain: str) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    rest = {key: value for key, value in body.items() if key != "chain"}
    return body if body.get("chain") == _link(chain, rest) else None


def _ends_complete(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
