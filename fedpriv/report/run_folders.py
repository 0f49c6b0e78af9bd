"""The folders of runs below a folder. Those of the candidates of a sweep's tuning are not among them."""

from __future__ import annotations

import os
from pathlib import Path

from fedpriv._internal import validation
from fedpriv.config.reading import holds_run

# The files of a sweep; beside them lie its cells' folders, and the one of its candidates' runs.
SWEEP, TUNING, TABLE, CANDIDATES = "sweep.json", "tuning.json", "results.csv", "tuning"


def run_folders(folder: Path) -> list[Path]:
    """The folder if it is a run's, else the folders of runs below it.

    The runs of a sweep's candidates are left out: they are scored on other examples than the sweep's cells,
    and most of them have settings that were not chosen. They are found where their own folder is named.

    Raises ArgumentError where there is none, OSError for a folder that cannot be read.
    """
    if not folder.is_dir():
        raise validation.fail("FOLDER", str(folder), "be an existing folder")
    if holds_run(folder):
        return [folder]
    found, left_out = _search(folder)
    if not found:
        hint = "no config.toml is in it, nor in its folders"
        if left_out:
            named = ", ".join(map(str, left_out))
            hint = f"its only runs are those of a sweep's tuning; name {named} to see them"
        raise validation.fail("FOLDER", str(folder), "hold runs", hint)
    return found


def only_candidates(folder: Path) -> list[Path]:
    """The folders of candidates' runs, where the folder holds no other runs."""
    if not folder.is_dir() or holds_run(folder):
        return []
    found, left_out = _search(folder)
    return [] if found else left_out


def _search(folder: Path) -> tuple[list[Path], list[Path]]:
    """(the folders of runs below the folder, those of sweeps' candidates)."""
    found, left_out = list[Path](), list[Path]()
    for where, names, files in os.walk(folder, onerror=_fails):
        if SWEEP in files and CANDIDATES in names:
            names.remove(CANDIDATES)
            left_out.append(Path(where, CANDIDATES))
        runs = [name for name in sorted(names) if holds_run(Path(where, name))]
        found += [Path(where, name) for name in runs]
        names[:] = sorted(set(names) - set(runs))  # os.walk enters only these
    return found, left_out


def _fails(error: OSError) -> None:
    """Raise the error: an unreadable folder may contain runs."""
    raise error
