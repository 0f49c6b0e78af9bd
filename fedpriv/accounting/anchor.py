"""The anchor of a ledger: a place outside the run's folder that keeps the ledger's head.

Whoever can change a run's folder can put back an older ledger together with its head. An anchor is out of
their reach: a file elsewhere, or a command that passes the head on, to a log on another machine for example.
The ledger's header names its anchor. Each charge reaches the anchor before its release happens, and a ledger
that is shorter than its anchor says is refused.

A command is started once for each charge and gets one JSON line on its standard input::

    {"ask": "seal", "ledger": "/runs/a/ledger.jsonl", "length": 12, "chain": "9f0c..."}

Exit status 0 means that the head is kept. To the line ``{"ask": "read", "ledger": ...}`` the command prints
``{"length": 12, "chain": "9f0c..."}``, the last head that it keeps of this ledger, or nothing if it has none.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedpriv.accounting.head import Head, HeadFile, LedgerError, read_head

FILE, COMMAND = "anchor", "anchor command"  # keys of a ledger's header

_TIMEOUT = 60.0  # seconds that a command may take for one head


class Anchor(Protocol):
    """Keeps the head of one ledger outside the run's folder."""

    @property
    def name(self) -> str:
        """The anchor as an error message names it."""

    def head(self) -> Head | None:
        """The last head that was sealed; None if there is none. Raises LedgerError if it cannot be had."""

    def seal(self, head: Head) -> None:
        """Keeps the head; returns once it is kept. Raises LedgerError otherwise."""


@dataclass(frozen=True)
class FileAnchor:
    """A file outside the run's folder, in the format of a head file."""

    path: Path

    @property
    def name(self) -> str:
        """See :class:`Anchor`."""
        return str(self.path)

    def head(self) -> Head | None:
        """See :class:`Anchor`."""
        return read_head(self.path)

    def seal(self, head: Head) -> None:
        """See :class:`Anchor`."""
        if not self.path.exists():
            HeadFile.create(self.path, head).close()
            return
        file, _ = HeadFile.open(self.path)
        with file:
            file.seal(head)


@dataclass(frozen=True)
class CommandAnchor:
    """A command that keeps the heads of the ledger at ``ledger``."""

    command: str
    ledger: Path

    @property
    def name(self) -> str:
        """See :class:`Anchor`."""
        return f"the command {self.command!r}"

    def head(self) -> Head | None:
        """See :class:`Anchor`."""
        text = self._ask({"ask": "read"}).strip()
        if not text:
            return None
        try:
            return Head.from_json(json.loads(text))
        except (ValueError, RecursionError):
            raise LedgerError(
                f"{self.name} (ledger-anchor-command) must answer 'read' with one JSON object of 'length' "
                "and 'chain', or with nothing; it answered something else."
            ) from None

    def seal(self, head: Head) -> None:
        """See :class:`Anchor`."""
        self._ask({"ask": "seal", **head.to_json()})

    def _ask(self, request: Mapping[str, Any]) -> str:
        line = json.dumps({**request, "ledger": str(self.ledger.resolve())}) + "\n"
        try:
            done = subprocess.run(
                shlex.split(self.command), input=line, capture_output=True, text=True, timeout=_TIMEOUT
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise self._failed(str(error)) from None
        if done.returncode:
            raise self._failed(f"exit status {done.returncode}: {' '.join(done.stderr.split())[:200]}")
        return done.stdout

    def _failed(self, why: str) -> LedgerError:
        return LedgerError(
            f"{self.name} (ledger-anchor-command) did not keep or give the head of {self.ledger} ({why}), so "
            "no release was made. What is charged stays charged; resume the run once the command works."
        )


def anchor_of(
    header: Mapping[str, Any], ledger: Path, file: Path | None = None, command: str | None = None
) -> Anchor | None:
    """The anchor that a ledger's header names; None if it names none.

    Args:
        header: of the ledger.
        ledger: its path.
        file: the anchor's file where it is not at the place that the header names.
        command: the anchor's command. It is never taken from the header: whoever reads a ledger decides what
            is started.

    Raises LedgerError if the header names a command and none is given.
    """
    if FILE in header or file is not None:
        return FileAnchor(file or Path(str(header[FILE])))
    if COMMAND not in header:
        return None
    if command is None:
        raise LedgerError(
            f"{ledger}: a command keeps its head, and fedpriv does not start a command that a file names. "
            f"Give it as --anchor-command (in Python anchor_command); the ledger names {header[COMMAND]!r}."
        )
    return CommandAnchor(command, ledger)
