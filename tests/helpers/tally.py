"""Counts of what the tests tried, for docs/trust.md. Each process writes its own to $FEDPRIV_TALLY."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

COUNTS: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Adds to a count, such as ``bad inputs/idx/refused``."""
    COUNTS[what] += number


def write() -> None:
    """Writes this process's counts, where they are asked for."""
    if (folder := os.environ.get("FEDPRIV_TALLY")) and COUNTS:
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(COUNTS))
