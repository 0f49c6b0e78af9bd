"""The runs that a page is about: those that have ended, and those that go on or were cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv._internal.files import read_json
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.report import comparison, search_record
from fedpriv.report.comparison import Group, Run
from fedpriv.report.run_folders import only_candidates, run_folders
from fedpriv.report.search_record import SearchRecord

_FILES = (run_files.CONFIG, run_files.METRICS, run_files.REPORT, run_files.LEDGER)


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
        searches: how the tuned sweeps among them chose their settings.
    """

    groups: tuple[Group, ...]
    unfinished: tuple[Unfinished, ...]
    notes: tuple[str, ...]
    searches: tuple[SearchRecord, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """The runs that have ended."""
        return [run for group in self.groups for run in group.runs]

    @property
    def tried(self) -> int:
        """How many different settings were tried, seeds aside.

        For a tuned sweep it is the sweep's own number, because the candidates that were not chosen are no
        runs here. The other runs count by the settings that they have, ended or not.
        """
        runs: list[Run | Unfinished] = [*self.runs, *self.unfinished]
        others = [run for run in runs if not any(search.has(run.folder) for search in self.searches)]
        settings = comparison.differences([run.config for run in others])
        return sum(search.tried for search in self.searches) + len(
            {tuple(table.items()) for table in settings}
        )

    def json(self) -> list[dict[str, Any]]:
        """The groups as JSON-serialisable dicts, with what was tried and what a tuned sweep chose."""
        tried = self.tried
        return [
            {**group.json(), "settings tried": tried, "tuning": self._tuning(group.runs[0])}
            for group in self.groups
        ]

    def _tuning(self, run: Run) -> dict[str, Any] | None:
        """How a sweep chose settings of this run; None where none did."""
        search = next((one for one in self.searches if one.has(run.folder)), None)
        return None if search is None else search.choice_of(run.config.table())


def read(folders: Sequence[str | Path]) -> Found:
    """The runs in these folders and below them. Raises as :func:`fedpriv.report.comparison.read`."""
    cut_off: list[comparison.UnfinishedError] = []
    groups = comparison.read(folders, cut_off.append)
    notes = [f"{error.folder} is only in the chart: {error.why}" for error in cut_off]
    unfinished = tuple(_unfinished(error.folder) for error in cut_off)
    places = [*(run.folder for group in groups for run in group.runs), *(run.folder for run in unfinished)]
    searches, damaged = search_record.records(places)
    return Found(tuple(groups), unfinished, (*notes, *damaged), tuple(searches))


def read_inside(root: Path) -> Found:
    """The runs in a folder whose files are all inside of it, wherever links lead; there may be none.

    A damaged run is left out, and a note says why. Raises OSError for a folder that cannot be read.
    """
    try:
        places = run_folders(root)
    except validation.ArgumentError:
        places = []
    notes, runs, unfinished = list[str](), list[Run](), list[Unfinished]()
    for folder in only_candidates(root):
        notes.append(f"{folder} is left out: its runs are those of a sweep's tuning; name it to see them")
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
    shown = [*(run.folder for run in runs), *(run.folder for run in unfinished)]
    searches, damaged = search_record.records(shown, lambda path: _is_inside(path, root, ("",)))
    groups = tuple(comparison.grouped(runs))
    return Found(groups, tuple(unfinished), (*notes, *damaged), tuple(searches))


def _is_inside(folder: Path, root: Path, names: Sequence[str] = ("", *_FILES)) -> bool:
    """Whether the folder and the files of its run are inside the root, wherever links lead."""
    base = root.resolve()
    return all((folder / name).resolve().is_relative_to(base) for name in names)


def _unfinished(folder: Path) -> Unfinished:
    """A run without a report. A last line that is being written is left out."""
    try:
        text = (folder / run_files.METRICS).read_text()
        records = [read_json(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        metrics = tuple(dict(record) | {"round": int(record["round"])} for record in records)
    except (OSError, ValueError, KeyError, TypeError):
        metrics = ()
    return Unfinished(folder, Config.parse(read_run(folder)), metrics)
