"""The ledger: an append-only file that records every event before its release happens.

A ledger is a JSON-lines file: a header with the run's public parameters, then one line per event. Every line
holds the SHA-256 hash of itself and the chain before it, so ``read`` detects an edited, removed or swapped
line and names its number. Its end is sealed in a second file (:mod:`fedpriv.accounting.head`), and outside
the run's folder if the header names an anchor (:mod:`fedpriv.accounting.anchor`). ``record`` returns only
after all of them are on disk, so an incomplete last line belongs to a release that did not happen; ``read``
drops it with a warning. No value in a ledger comes from private data.

An event's line may carry labels: ``silos``, the numbers of the silos that each make this release on their own
units, or the ``run`` and ``round`` that a node answered. Labels are not part of the event, so equal releases
of different silos are equal events. :meth:`Record.by_silo` groups events by silo for parallel composition.
The sum of all of a ledger's events is at least the cost of any one silo.

Format 3 has a head. Formats 1 and 2, of version 0.1.0 (format 1 without labels), can still be read; when such
a ledger is continued it gets a head, and its next line says so (the label ``head``).

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl"
>>> with Ledger.create(path, {"relation": "add-remove"}) as ledger:
...     ledger.record([Event(1.1, "poisson", "add-remove", rate=0.01)])
...     ledger.record([Event(1.2, "none", "add-remove")], silos=[0, 2])
>>> read(path).events[0].rate, read(path).labels[1]
(0.01, {'silos': [0, 2]})
>>> read(path).head == read_head(head_path(path))
True
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from fedpriv._internal import validation
from fedpriv._internal.files import sync_folder
from fedpriv.accounting.anchor import COMMAND, Anchor, anchor_of
from fedpriv.accounting.events import Event
from fedpriv.accounting.head import NO_COPY, Head, HeadFile, LedgerError, head_path, read_head
from fedpriv.accounting.record import FORMAT, SEALED, Reader, Record, link, read

__all__ = ["Ledger", "LedgerError", "Record", "read", "require_not_deleted", "require_unused"]


class Ledger:
    """An open ledger. Use ``create`` for a new run and ``resume`` for an interrupted run."""

    def __init__(self, file: BinaryIO, end: Head, anchor: Anchor | None = None, durable: bool = True) -> None:
        self._file, self._durable = file, durable
        self._end = end
        self._anchor = anchor
        self._head_file: HeadFile | None = None
        self._sealed = True  # whether a line, or the header, says that there is a head

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], header: Mapping[str, Any], *, durable: bool = True
    ) -> Ledger:
        """A new ledger with its header on disk. Raises FileExistsError if the file exists.

        ``durable=False`` is for a ledger that nobody can read once this process has ended: charges are
        written, but not synced to the disk. A ledger with an anchor is durable anyway.

        The file appears under its name only with a complete header. After a crash there is no ledger instead
        of a partial one (an empty file is possible on a file system without hard links).

        Raises LedgerError if there are charges under its head file or its anchor: a ledger was deleted.
        """
        path = Path(path)
        if not path.exists():
            require_not_deleted(path)
        # Whoever begins a run gives its command; a header that is read from a file does not get here.
        anchor = anchor_of(header, path, command=header.get(COMMAND))
        if anchor is not None and (kept := anchor.head()) is not None and kept.length:
            raise LedgerError(
                f"{anchor.name} keeps the head of another ledger, with {kept.length} events. Name a new "
                "anchor for each run: the earlier one is the evidence of what was spent."
            )
        durable = durable or anchor is not None
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        file = _locked(open(draft, "xb"), draft)  # noqa: SIM115
        try:
            ledger = cls(file, Head(0, ""), anchor, durable)
            ledger._write([{"ledger": FORMAT, **header}])
            ledger._end = Head(0, ledger.link)
            _give_name(draft, path)
            sync_folder(path.parent)
            ledger._head_file = HeadFile.create(head_path(path), ledger.head, durable)
            if anchor is not None:
                anchor.seal(ledger.head)
        except BaseException:
            file.close()
            raise
        finally:
            draft.unlink(missing_ok=True)
        return ledger

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        command: str | None = None,
        anchor: Path | None = None,
        reader: Reader | None = None,
    ) -> tuple[Ledger, Record]:
        """(the ledger, open for more events; its content). An incomplete last line is cut off.

        ``command`` is that of its anchor, if it has one, and ``anchor`` its file, where the header does not
        say where it is; ``reader`` is as for :func:`read`.

        Raises LedgerError if a line was edited, if lines are missing at the end, or if
        another process has the ledger open.
        """
        path = Path(path)
        file = _locked(open(path, "r+b"), path)  # noqa: SIM115
        try:
            record = read(path, anchor, command, reader)
            file.truncate(record.size)
            file.seek(record.size)
            ledger = cls(file, record.head, anchor_of(record.header, path, anchor, command))
            if record.size and not _ends_complete(path):
                ledger._append(b"\n")
            ledger._sealed = record.has_head
            ledger._open_head(path)
        except BaseException:
            file.close()
            raise
        return ledger, record

    def __len__(self) -> int:
        """The number of events recorded."""
        return self._end.length

    @property
    def head(self) -> Head:
        """Where the ledger ends."""
        return self._end

    @property
    def link(self) -> str:
        """The SHA-256 chain, in hex, after the last recorded line. It identifies this ledger's content."""
        return self._end.link

    def record(self, events: Sequence[Event], **labels: object) -> None:
        """Writes the events with these labels, then the head, and returns once they are on disk; a ledger
        that is not durable does not wait for the disk.

        The releases may happen only after it returned.
        """
        labels |= {} if self._sealed else {SEALED: True}
        self._write([{"event": event.to_json(), **labels} for event in events])
        self._end = Head(self._end.length + len(events), self._end.link)
        self._sealed = True
        self._seal()

    def close(self) -> None:
        """Closes the files. The recorded events stay on disk."""
        if self._head_file is not None:
            self._head_file.close()
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        chain, lines = self._end.link, []
        for body in bodies:
            if "chain" in body:
                raise validation.ArgumentError(
                    "A ledger header or label may not use the key 'chain': the ledger writes it itself."
                )
            chain = link(chain, body)
            lines.append(json.dumps({**body, "chain": chain}, separators=(",", ":")))
        self._append("".join(line + "\n" for line in lines).encode())
        self._end = Head(self._end.length, chain)

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())

    def _seal(self) -> None:
        """Seals the end of the ledger, which is on disk by now. An earlier seal would outlive its line."""
        assert self._head_file is not None
        self._head_file.seal(self.head)
        if self._anchor is not None:
            self._anchor.seal(self.head)

    def _open_head(self, path: Path) -> None:
        """Opens the head, which may be one charge behind after a crash, or missing beside an old ledger."""
        if read_head(head_path(path)) is None:
            self._head_file, kept = HeadFile.create(head_path(path), self.head), self.head
        else:
            self._head_file, kept = HeadFile.open(head_path(path))
        if kept != self.head or self._anchor is not None:
            self._seal()


def require_not_deleted(path: str | os.PathLike[str], anchor: Path | None = None) -> None:
    """Raises LedgerError if there is no ledger at ``path`` but a head of its charges, also at ``anchor``."""
    for whose, where in (("head", head_path(path)), ("anchor", anchor)):
        sealed = None if where is None else read_head(where)
        if sealed is not None and sealed.length and not Path(path).exists():
            raise LedgerError(
                f"{path} was deleted: its {whose}, {where}, seals {sealed.length} events. Restore the "
                f"ledger from a copy; {NO_COPY}."
            )


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


@contextlib.contextmanager
def unused(path: str | os.PathLike[str]) -> Iterator[None]:
    """No run opens the ledger within the block. Raises LedgerError if one has it open."""
    try:
        file = _locked(open(path, "r+b"), path)  # noqa: SIM115
    except FileNotFoundError:
        yield
        return
    with file:
        yield


def require_unused(path: str | os.PathLike[str]) -> None:
    """Raises LedgerError if a run has the ledger open, so that nobody deletes it meanwhile."""
    with unused(path):
        pass


def _ends_complete(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
