"""The rows of a node's data file that its owner leaves out, or replaces, for an audit.

The owner's own command (``fedpriv audit --deployment``) writes the file by its coins, and the node reads it:
whoever starts a run cannot have a node do this. A line has a row's number, which is left out, or two: the
row, and the row whose example takes its place. Rows count from 0.

>>> places_of("2\\n0 3\\n", 4).tolist()
[3, 1, -1, 3]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv.data import Indices
from fedpriv.data.client_files import ClientFile
from fedpriv.data.ranges import Mask
from fedpriv.data.source import Pair

_MOST_BYTES = 2**27  # of the file
_GONE = -1


@dataclass(frozen=True)
class AuditedFile:
    """The rows of a data file with some left out, or replaced by others; see :class:`ClientFile`.

    Attributes:
        file: the data file.
        places: (size,), the row whose example is in each row's place; -1 for none.
    """

    file: ClientFile
    places: Indices

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.file.size

    @property
    def valid(self) -> Mask:
        """(size,), whether each row has an example."""
        there: Mask = (self.places != _GONE) & self.file.valid[self.places]
        return there

    def rows(self, rows: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples in the places ``rows`` (n,); each must be ``valid``."""
        return self.file.rows(self.places[rows], device)


def audited(file: ClientFile, path: str) -> AuditedFile:
    """The data file as the audit file ``path`` has it. Raises ArgumentError for a file that is not one."""
    try:
        with Path(path).open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError
        return AuditedFile(file, places_of(text.decode("ascii"), file.size))
    except (OSError, ValueError):  # its text could quote the owner's numbers
        allowed = "be a readable file with one or two row numbers a line, each row first once at most"
        raise validation.fail("audit-file", path, allowed, "`fedpriv audit --deployment` writes it") from None


def places_of(text: str, size: int) -> Indices:
    """The row in each of ``size`` places, by the text of an audit file. Raises ValueError.

    The row that takes another's place may lie beyond the end of the file: then nothing is there.
    """
    places, seen = np.arange(size, dtype=np.int64), set[int]()
    for line in text.splitlines():
        row, *other = (int(word) for word in line.split())
        if len(other) > 1 or row in seen or not 0 <= row < size or min(other, default=0) < 0:
            raise ValueError(line)
        seen.add(row)
        places[row] = other[0] if other and other[0] < size else _GONE
    return places


def write_audit_file(path: Path, rows: Indices, others: Indices | None = None) -> None:
    """Writes the rows (n,) that are left out, or that ``others`` (n,) replace."""
    lines = [f"{row}" for row in rows]
    if others is not None:
        lines = [f"{row} {other}" for row, other in zip(rows, others, strict=True)]
    with atomic(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
