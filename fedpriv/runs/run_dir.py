"""The folder that a run leaves, and which files of it are a run's.

It holds ``config.toml`` (resolved), ``metrics.jsonl`` (public test set only), ``ledger.jsonl`` (on disk
before each release) with its head (``ledger.jsonl.head``), ``model.safetensors``, ``state.safetensors``,
``report.md``, ``report.json`` and ``curves.png``; a comparison's holds a folder for each run, and its own
table and picture. Files are written atomically.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv._internal.files import append_line, atomic, unwritable
from fedpriv.accounting import ledger as ledgers
from fedpriv.accounting.head import SUFFIX
from fedpriv.accounting.record import parse
from fedpriv.config.schema import Config
from fedpriv.tasks.metrics import counted

FILES = (
    run_files.CONFIG,
    run_files.METRICS,
    run_files.LEDGER,
    f"{run_files.LEDGER}{SUFFIX}",
    run_files.MODEL,
    run_files.STATE,
    *run_files.REPORTS,
)
COMPARISON_FILES = ("compare.json", "compare.md", "compare.png", "compare.svg")


def default_folder() -> str:
    """Where a run goes that names no folder."""
    return f"runs/{datetime.now():%Y%m%d-%H%M%S}"


def replaced(folder: Path) -> str:
    """What to know before a run replaces the one in ``folder``; empty if that one charged nothing."""
    path = folder / run_files.LEDGER
    try:
        releases = sum(event.count for event in parse(path.read_bytes(), str(path)).events)
    except OSError:
        return ""
    except ValueError:  # changed, or no ledger: it cannot say what was spent
        what = "a ledger that cannot be read"
    else:
        if not releases:
            return ""
        what = f"the ledger of an earlier run ({counted(releases, 'release')})"
    return (
        f"overwriting {folder} removes {what}. Runs on the same data add up, so this run's epsilon is then "
        "not the whole; keep the ledgers of all runs: `fedpriv account --ledger A --ledger B` gives the total"
    )


def _remove_run(folder: Path) -> None:
    """Remove an earlier run's files, and what a kill left half written of them. Nobody can begin to charge
    its ledger meanwhile. Raises LedgerError where it is open."""
    ledger = folder / run_files.LEDGER
    with ledgers.unused(ledger):
        for name in (*FILES, *COMPARISON_FILES):
            for file in (folder / name, *folder.glob(f".{name}.*")):
                file.unlink(missing_ok=True)


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: Path, replaced: str = "") -> None:
        self.path = path
        self.replaced = replaced  # what to know about a run whose files were removed, in a sentence

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> RunFolder:
        """A fresh folder. Raises ArgumentError where it exists and holds anything, unless ``overwrite``.

        Overwriting removes the files of an earlier run and touches nothing else. Raises LedgerError where
        that run still goes on: it would charge a ledger that nobody finds. Without ``overwrite`` nothing is
        removed, so that of two runs that begin at once one finds the other's ledger, and ends.
        """
        folder = cls.check(path, overwrite)
        note = replaced(folder)
        try:
            if overwrite:
                _remove_run(folder)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise validation.fail("out", str(path), "be a folder to write to", error.strerror or "") from None
        return cls(folder, note)

    @staticmethod
    def check(path: str | Path, overwrite: bool = False) -> Path:
        """The path, if ``create`` may use it; changes nothing. Raises as ``create`` does."""
        if not isinstance(path, str | os.PathLike):
            raise validation.fail("out", path, "be the path of a folder")
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise validation.fail("out", str(path), "be a folder, not a file")
        if folder.is_dir() and any(folder.iterdir()) and not overwrite:
            raise validation.fail("out", str(path), "be a new or empty folder", "or give --overwrite")
        if why := unwritable(folder):
            raise validation.fail("out", str(path), "be a folder to write to", why)
        for pattern in (run_files.LEDGER, f"*/{run_files.LEDGER}"):  # a comparison's lie one folder down
            for ledger in folder.glob(pattern):
                ledgers.require_unused(ledger)
        return folder

    def begin(self, config: Config, note: str | None, metrics: Iterable[Mapping[str, Any]]) -> None:
        """Write the settings, with a note if there is one, and the metrics by now; no report is left."""
        for name in run_files.REPORTS:  # of the run until it was resumed: they say less than is spent
            (self.path / name).unlink(missing_ok=True)
        self.write(run_files.CONFIG, (f"# {note}\n" if note else "") + config.toml())
        self.write(run_files.METRICS, "".join(json.dumps(record) + "\n" for record in metrics))

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file atomically: the old one or the whole new one, never a part."""
        target = self.path / name
        with atomic(target) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Append one JSON line and flush it."""
        append_line(self.path / name, record)
