"""Reading a ledger: its lines against their hash chain, and its end against its head and its anchor."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import read_json
from fedpriv.accounting.anchor import anchor_of
from fedpriv.accounting.events import Event
from fedpriv.accounting.head import NO_COPY, Head, LedgerError, head_path, read_head

FORMAT, FORMATS = 3, (1, 2, 3)  # the format that is written, and the formats that can be read
_SILOS = "silos"  # the label that says whose events they are
SEALED = "head"  # the label from which on a ledger of an earlier format has a head

_LOG = logging.getLogger(__name__)


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

    @property
    def head(self) -> Head:
        """Where the ledger ends."""
        return Head(len(self.events), self.links[-1])

    @property
    def has_head(self) -> bool:
        """Whether the ledger says that its end is sealed; one of version 0.1.0 does not."""
        return self.header["ledger"] >= FORMAT or any(SEALED in labels for labels in self.labels)

    @property
    def of_silos(self) -> bool:
        """Whether each event is that of some silos only, whose units are disjoint."""
        return bool(self.labels) and all(_SILOS in labels for labels in self.labels)

    def by_silo(self) -> dict[str, tuple[Event, ...]]:
        """The events of each silo: {silo number: events}. Raises LedgerError for an event without a silo."""
        found: dict[int, list[Event]] = {}
        for number, (event, labels) in enumerate(zip(self.events, self.labels, strict=True), 2):
            if _SILOS not in labels:
                raise LedgerError(
                    f"Line {number} of the ledger has no label 'silos', so its events cannot be split by "
                    "silo."
                )
            silos = labels[_SILOS]
            if not isinstance(silos, list) or not all(isinstance(silo, int) for silo in silos):
                raise LedgerError(
                    f"Line {number} of the ledger has a label 'silos' that is no list of numbers."
                )
            for silo in silos:
                found.setdefault(silo, []).append(event)
        return {str(silo): tuple(events) for silo, events in sorted(found.items())}


class Reader:
    """Reads one ledger again and again: what it has verified before is compared, byte by byte.

    A node reads its ledger at each release, and 20,000 lines take a second to verify.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, Record | None] = b"", None  # complete lines, and what they say

    def parse(self, data: bytes, name: str) -> Record:
        """As :func:`parse`."""
        lines, known = self._last
        record = parse(data, name, known if data.startswith(lines) else None)
        if data[: record.size].endswith(b"\n"):
            self._last = data[: record.size], record
        return record


def read(
    path: str | os.PathLike[str],
    anchor: str | os.PathLike[str] | None = None,
    command: str | None = None,
    reader: Reader | None = None,
) -> Record:
    """The content of a ledger file, checked against its hash chain, its head and its anchor.

    Args:
        path: the ledger; its head is beside it.
        anchor: the anchor's file, where it is not at the place that the ledger's header names.
        command: the anchor's command, where the header says that there is one.
        reader: what reads this ledger often.

    An incomplete last line is dropped with a warning: its release did not happen.

    Raises LedgerError for an edited line, which the message numbers, for a file without a header, and for a
    ledger that is shorter than its head or its anchor says, or whose head is missing.
    """
    path = Path(path)
    sealed = read_head(head_path(path))  # first: a run that goes on seals a head after its line
    record = (reader or Reader()).parse(path.read_bytes(), str(path))
    where = head_path(path)
    if sealed is not None:
        require_reaches(record, sealed, path, f"its head, {where},")
    elif record.has_head and record.events:  # without events, a crash may have come before the head
        raise LedgerError(
            f"{path}: its head, {where}, is missing, so lines may have been cut from its end. Restore both "
            f"files from a copy; {NO_COPY}."
        )
    _check_anchor(record, path, None if anchor is None else Path(anchor), command)
    if record.torn is not None:
        _LOG.warning(
            "%s: the incomplete last line %d was dropped; its release did not happen", path, record.torn
        )
    return record


def _check_anchor(record: Record, path: Path, file: Path | None, command: str | None) -> None:
    outside = anchor_of(record.header, path, file, command)
    if outside is None:
        return
    kept = outside.head()
    if kept is not None:
        require_reaches(record, kept, path, f"its anchor, {outside.name},")
    elif record.events:
        raise LedgerError(
            f"{path}: its anchor, {outside.name}, keeps no head of it, so lines may have been cut from its "
            "end. Restore the anchor, or name its place as --anchor (in Python anchor)."
        )


def require_reaches(record: Record, head: Head, path: Path, whose: str) -> None:
    """Raises LedgerError unless the ledger has the head's event, with its hash."""
    if head.length > len(record.events):
        raise LedgerError(
            f"{path}: its end was cut. It ends after event {len(record.events)}, and {whose} says "
            f"{head.length}. Restore the ledger from a copy; {NO_COPY}."
        )
    if record.links[head.length] != head.link:
        raise LedgerError(
            f"{path}: {whose} is that of another ledger: the hashes after event {head.length} differ. "
            f"Restore both files from a copy; {NO_COPY}."
        )


def parse(data: bytes, name: str, known: Record | None = None) -> Record:
    """The content of a ledger, checked against its hash chain alone. ``name`` is for messages.

    ``known`` is what the first ``known.size`` bytes say, which are complete lines.

    Raises LedgerError for an edited line, which the message numbers, and without a header.
    """
    size, links = (known.size, list(known.links)) if known else (0, [])
    chain = links[-1] if links else ""
    bodies = list[dict[str, Any]]()
    lines = data[size:].split(b"\n")
    ending = len(links) + len(lines)
    torn = None
    for number, line in enumerate(lines, len(links) + 1):
        last = number == ending
        if last and not line:
            break
        body = _verify(line, chain)
        if body is None and last:
            torn = number
            break
        if body is None:
            raise LedgerError(
                f"{name}: line {number} was edited or does not follow the line before it, so the ledger "
                "cannot be trusted. Restore the file from a copy."
            )
        chain = body.pop("chain")
        links.append(chain)
        bodies.append(body)
        size += len(line) + (0 if last else 1)
    header = known.header if known else bodies.pop(0) if bodies else {}
    if header.get("ledger") not in FORMATS:
        raise LedgerError(
            f"{name}: line 1 is not the header of a ledger of format {', '.join(map(str, FORMATS))}."
        )
    equal = dict[str, Event]()  # most lines have the same event
    first = len(links) - len(bodies) + 1
    events = tuple(_event(name, number, body, equal) for number, body in enumerate(bodies, first))
    labels = tuple(bodies)
    if known:
        events, labels = known.events + events, known.labels + labels
    return Record(header, events, torn, tuple(links), size, labels)


def _event(name: str, line: int, body: dict[str, Any], equal: dict[str, Event]) -> Event:
    """The event of a line, which is taken out of its body; that of ``equal`` for an equal text.

    Raises LedgerError where there is none.
    """
    try:
        fields = body.pop("event")
        text = repr(fields)
        if text not in equal:
            equal[text] = Event.from_json(fields)
        return equal[text]
    except KeyError:
        raise LedgerError(f"{name}: line {line} has no event.") from None
    except validation.ArgumentError as error:
        raise LedgerError(f"{name}: line {line} has an event that cannot be: {error}") from None


def link(chain: str, body: Mapping[str, Any]) -> str:
    """The hash after a line with this content that follows ``chain``."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256((chain + text).encode()).hexdigest()


def _verify(line: bytes, chain: str) -> dict[str, Any] | None:
    try:
        body = read_json(line)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    rest = {key: value for key, value in body.items() if key != "chain"}
    return body if body.get("chain") == link(chain, rest) else None
