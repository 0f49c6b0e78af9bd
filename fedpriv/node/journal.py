"""A node's journal: what it answered and refused, one JSON line each.

The journal is for the owner. It holds times, runs, releases' kinds and the reasons of refusals, which
contain public numbers and the share of the owner's limit that is spent. The privacy ledger, not the journal,
decides what may be answered.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "journal"
>>> journal = Journal(path)
>>> journal.note("refused", run=5, why="the run's model is cnn")
>>> [(line["event"], line["why"]) for line in read_journal(path)]
[('refused', "the run's model is cnn")]
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv._internal.files import append_line, read_lines
from fedpriv.mechanism.units import PrivacyUnit

_log = logging.getLogger(__name__)

ANSWERED, REFUSED, FAILED = "answered", "refused", "failed"

_SINGLY = 20  # refusals of one run that are noted one by one; then the 32nd, the 64th, ...


class Journal:
    """Appends lines to a journal file and passes them on.

    Args:
        path: the file.
        also: called with each line that is written.
    """

    def __init__(self, path: Path, also: Callable[[dict[str, Any]], None] = lambda line: None) -> None:
        self._path, self._also = path, also
        self._refusals = Counter[str]()
        self._failed = False  # whether a line could not be written

    def note(self, event: str, run: int | None = None, **fields: Any) -> None:
        """Writes a line. Of the many refusals of one run only some are written, with their number.

        A line that cannot be written is passed on, and the first one is warned of.
        """
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        if run is not None:
            line["run"] = str(run)  # as a number, JSON's readers would round it
        if event != ANSWERED and run is not None:
            self._refusals[line["run"]] += 1
            count = self._refusals[line["run"]]
            if count > _SINGLY and count & (count - 1):
                return
            fields["number"] = count
        line.update(fields)
        try:
            append_line(self._path, line)
        except OSError as error:  # as of a full disk: the node goes on, and its terminal has the line
            if not self._failed:
                _log.warning("%s takes no more lines (%s)", self._path, error.strerror or error)
            self._failed = True
        self._also(line)


def shareable(line: Mapping[str, Any], unit: str) -> dict[str, Any] | None:
    """A line as it may leave the owner's machine; None for a line that may not.

    Where the unit is a client, it is private whether this client was sampled. So its answers are left out,
    and so are the reasons of refusals that tell how much of the limit is spent.
    """
    if unit != PrivacyUnit.CLIENT:
        return dict(line)
    if line["event"] == ANSWERED:
        return None
    return {key: value for key, value in line.items() if key != "why" or line.get("stage") == "policy"}


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal, without lines that a crash left incomplete; [] if there is no file."""
    return [line for line in read_lines(path) if {"time", "event"} <= line.keys()]
