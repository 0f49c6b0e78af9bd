"""The rows of a node's data file that its owner leaves out for an audit.

The owner's own command (``fedpriv audit --deployment``) writes the file by its coins, and the node reads it:
whoever starts a run cannot have a node do this. Each line has a row's number, from 0.

>>> left_out("2\\n0\\n", 4).tolist()
[True, False, True, False]
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


@dataclass(frozen=True)
class AuditedFile:
    """The rows of a data file with some left out; see :class:`ClientFile`.

    Attributes:
        file: the data file.
        gone: (size,), whether each row is left out.
    """

    file: ClientFile
    gone: Mask

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.file.size

    @property
    def valid(self) -> Mask:
        """(size,), whether each row has an example that is not left out."""
        there: Mask = self.file.valid & ~self.gone
        return there

    def rows(self, rows: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``rows`` (n,); each must be ``valid``."""
        return self.file.rows(rows, device)


def audited(file: ClientFile, path: str) -> AuditedFile:
    """The data file without the rows of the audit file ``path``. Raises ArgumentError for another file."""
    try:
        with Path(path).open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError
        return AuditedFile(file, left_out(text.decode("ascii"), file.size))
    except (OSError, ValueError):  # its text could quote the owner's numbers
        allowed = "be a readable file with the number of one of the data file's rows in each line"
        raise validation.fail("audit-file", path, allowed, "`fedpriv audit --deployment` writes it") from None


def left_out(text: str, size: int) -> Mask:
    """Whether each of ``size`` rows is left out, by the text of an audit file. Raises ValueError."""
    gone = np.zeros(size, bool)
    for line in text.splitlines():
        row = int(line)
        if not 0 <= row < size:
            raise ValueError(line)
        gone[row] = True
    return gone


def write_audit_file(path: Path, rows: Indices) -> None:
    """Writes the rows (n,) that are left out."""
    with atomic(path) as file:
        file.write("".join(f"{row}\n" for row in rows).encode())
