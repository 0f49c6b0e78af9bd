"""The append-only record of every event, on disk before its release.

A ledger is JSON lines: a header of public run parameters, then one line an event. Every line carries the
SHA-256 of the chain so far, so that an edited, removed or swapped line is found, and its number said.
``record`` returns only after fsync, so an incomplete last line belongs to a release that never happened:
it is dropped, and said. Nothing in it may come from private data.

An event's line may carry labels: ``silos``, the numbers of the silos that each make this release on their own
units, or the ``run`` and ``round`` that a node answered. Labels are no part of an event, so that equal
releases stay equal whoever makes them; :meth:`Record.by_silo` keys them for parallel composition. All of a
ledger's events together never cost less than those of any silo. Format 2 has labels; format 1, which is
format 2 without them, is read as well.

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
from types import TracebackType
from typing import Any, BinaryIO

from fedpriv._internal import validation
from fedpriv.accounting.events import Event

_LOG = logging.getLogger(__name__)
_FORMAT, _FORMATS = 2, (1, 2)  # what is written, and what is read


class LedgerError(validation.FedprivError, ValueError):
    """A ledger cannot be trusted; the message names the file and the line."""


@dataclass(frozen=True)
class Record:
    """What a ledger file holds.

    Attributes:
        header: the run's public parameters.
        events: all charged events in order.
        torn: the number of a dropped incomplete last line (1 is the header), or None.
        links: the SHA-256 chain, in hex, after the header and after each event.
        size: length in bytes of the complete lines.
        labels: the labels of each event, {} where it has none.
    """

    header: dict[str, Any]
    events: tuple[Event, ...]
    torn: int | None
    links: tuple[str, ...]
    size: int
    labels: tuple[dict[str, Any], ...]

    def by_silo(self) -> dict[str, tuple[Event, ...]]:
        """Each silo's own events, by its number. Raises LedgerError where an event names no silo."""
        found: dict[int, list[Event]] = {}
        for number, (event, labels) in enumerate(zip(self.events, self.labels, strict=True), 2):
            if "silos" not in labels:
                raise LedgerError(f"line {number} of the ledger names no silo")
            for silo in labels["silos"]:
                found.setdefault(silo, []).append(event)
        return {str(silo): tuple(events) for silo, events in sorted(found.items())}


class Ledger:
    """An open ledger. Use ``create`` for a new run and ``resume`` for an interrupted one."""

    def __init__(self, file: BinaryIO, chain: str, length: int) -> None:
        self._file = file
        self._chain = chain
        self._length = length

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Mapping[str, Any]) -> Ledger:
        """A new ledger with its header on disk. Raises FileExistsError where the file exists.

        The name stands for a whole header or is not there: after a crash there is no ledger, not half of one
        (on a file system without links there may be an empty one).
        """
        path = Path(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        file = _held(open(draft, "xb"), draft)  # noqa: SIM115
        try:
            ledger = cls(file, "", 0)
            ledger._write([{"ledger": _FORMAT, **header}])
            _named(draft, path)
            _sync_folder(path.parent)
        except BaseException:
            file.close()
            raise
        finally:
            draft.unlink(missing_ok=True)
        return ledger

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> tuple[Ledger, Record]:
        """The ledger opened for more events, and what it holds; a torn last line is cut off.

        Raises LedgerError where a line was edited, or the ledger is open elsewhere.
        """
        file = _held(open(path, "r+b"), path)  # noqa: SIM115
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
        """The SHA-256 chain, in hex, after all that is recorded: no other ledger has it."""
        return self._chain

    def record(self, events: Sequence[Event], **labels: object) -> None:
        """Writes the events, each with these labels, and returns once they are on disk: only then may the
        releases happen."""
        self._write([{"event": event.to_json(), **labels} for event in events])
        self._length += len(events)

    def close(self) -> None:
        """Closes the file; what was recorded stays."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        chain, lines = self._chain, []
        for body in bodies:
            if "chain" in body:
                raise validation.fail("ledger header", dict(body), "not hold the key 'chain'")
            chain = _link(chain, body)
            lines.append(json.dumps({**body, "chain": chain}, separators=(",", ":")))
        self._append("".join(line + "\n" for line in lines).encode())
        self._chain = chain

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())


def _held(file: BinaryIO, path: str | os.PathLike[str]) -> BinaryIO:
    """The file, which nobody else may hold open so until it is closed.

    Raises LedgerError where somebody does: two chains in one file would be none.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise LedgerError(f"{path} is in use: another run writes to it; wait for its end") from None
    except OSError:  # a file system without locks
        pass
    return file


def _named(draft: Path, path: Path) -> None:
    """Give the file ``draft`` the name ``path``, too. Raises FileExistsError where that is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    except OSError:  # a file system without links: take the name first, so that nobody else's file goes
        open(path, "xb").close()
        os.replace(draft, path)


def require_unused(path: str | os.PathLike[str]) -> None:
    """Raises LedgerError where a run has the ledger open, which must not be removed under it."""
    with contextlib.suppress(FileNotFoundError):
        _held(open(path, "r+b"), path).close()  # noqa: SIM115


def read(path: str | os.PathLike[str]) -> Record:
    """Everything in a ledger file, checked against its chain.

    An incomplete last line is dropped (the release it was for had not happened) and logged.
    Raises LedgerError with the number of a line that was edited, and for a file without a header.
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
            _LOG.warning("%s: dropped the incomplete line %d, whose release did not happen", path, number)
            break
        if body is None:
            raise LedgerError(f"{path}: line {number} was edited or does not follow the line before it")
        chain = body.pop("chain")
        links.append(chain)
        bodies.append(body)
        size += len(line) + (0 if last else 1)
    if not bodies or bodies[0].get("ledger") not in _FORMATS:
        raise LedgerError(f"{path}: line 1 is not the header of a ledger of format {_FORMAT}")
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
