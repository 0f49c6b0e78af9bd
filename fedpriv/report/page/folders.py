"""The runs that a page is about: those that have ended, and those that go on or were cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import read_json
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.report import comparison
from fedpriv.report.comparison import Group, Run

_FILES = ("config.toml", "metrics.jsonl", "report.json", "ledger.jsonl")


@dataclass(frozen=True)
class Unfinished:
    """A run without a report: it goes on, or was cut off.

    Attributes:
        folder: its folder.
        config: all settings.
        metrics: the records of its evaluations so far, on the public test set.
    """

    folder: Path
    config: Config
    metrics: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Found:
    """What folders hold.

    Attributes:
        groups: the runs that have ended, those of one configuration together.
        unfinished: the others.
        notes: which folders are left out, in sentences.
    """

    groups: tuple[Group, ...]
    unfinished: tuple[Unfinished, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs that have ended."""
        return [run for group in self.groups for run in group.runs]

    @property
    def tried(self) -> int:
        """How many different settings the runs have, seeds aside, ended or not."""
        configs = [*(run.config for run in self.runs), *(run.config for run in self.unfinished)]
        return len({tuple(table.items()) for table in comparison.differences(configs)})


def read(folders: Sequence[str | Path]) -> Found:
    """The runs in these folders and below them. Raises as :func:`fedpriv.report.comparison.read`."""
    cut_off: list[comparison.UnfinishedError] = []
    groups = comparison.read(folders, cut_off.append)
    notes = [f"{error.folder} is only in the chart: {error.why}" for error in cut_off]
    return Found(tuple(groups), tuple(_unfinished(error.folder) for error in cut_off), tuple(notes))


def read_inside(root: Path) -> Found:
    """The runs in a folder whose files are all inside of it, wherever links lead; there may be none.

    A damaged run is left out, and a note says why. Raises OSError for a folder that cannot be read.
    """
    try:
        places = comparison.run_folders(root)
    except validation.ArgumentError:
        places = []
    notes, runs, unfinished = list[str](), list[Run](), list[Unfinished]()
    for folder in places:
        if not _is_inside(folder, root):
            notes.append(f"{folder} is left out: it has links that lead out of {root}")
            continue
        try:
            runs.append(comparison.read_one(folder))
        except comparison.UnfinishedError:
            unfinished.append(_unfinished(folder))
        except validation.ArgumentError as error:
            notes.append(f"{folder} is left out: {error}")
    return Found(tuple(comparison.grouped(runs)), tuple(unfinished), tuple(notes))


def _is_inside(folder: Path, root: Path) -> bool:
    """Whether the folder and the files of its run are inside the root, wherever links lead."""
    base = root.resolve()
    return all((folder / name).resolve().is_relative_to(base) for name in ("", *_FILES))


def _unfinished(folder: Path) -> Unfinished:
    """A run without a report. A last line that is being written is left out."""
    try:
        text = (folder / "metrics.jsonl").read_text()
        records = [read_json(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        metrics = tuple(dict(record) | {"round": int(record["round"])} for record in records)
    except (OSError, ValueError, KeyError, TypeError):
        metrics = ()
    return Unfinished(folder, Config.parse(read_run(folder)), metrics)
