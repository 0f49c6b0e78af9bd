"""Compares runs by reading their output folders.

The table is in :mod:`fedpriv.report.comparison_table`, the pictures in :mod:`fedpriv.report.pictures`.

The settings in which runs differ name them. Runs that differ only in seed, folder or hardware settings are
repetitions of one run, and are shown by their mean and spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv._internal.files import quoted, read_json
from fedpriv.config.reading import read_run
from fedpriv.config.resumable import obstacle
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report import summary
from fedpriv.report.notices import NOT_PRIVATE, unprotected
from fedpriv.report.run_folders import run_folders
from fedpriv.tasks.metrics import Metric, shown

_ALIKE = (
    "seed", "out", "overwrite", "ledger-anchor", "ledger-anchor-command",
    "engine", "actors", "cpus-per-actor", "gpus-per-actor", "memory-budget",
)  # fmt: skip

SPREAD = "the sample standard deviation of a row's runs"


class UnfinishedError(validation.ArgumentError):
    """The run in ``folder`` has not ended or was not evaluated; ``why`` is the reason."""

    def __init__(self, folder: Path, wanted: str, why: str) -> None:
        super().__init__(str(validation.fail("FOLDER", str(folder), f"hold a run that {wanted}", why)))
        self.folder, self.why = folder, why


@dataclass(frozen=True)
class Run:
    """The content of one output folder.

    Attributes:
        folder: its path.
        config: the resolved configuration.
        metrics: the records of the run's evaluations, at least one.
        report: the content of report.json.
    """

    folder: Path
    config: Config
    metrics: tuple[Mapping[str, Any], ...]
    report: Mapping[str, Any]

    @property
    def ended(self) -> StopReason:
        """How the run ended."""
        return StopReason(self.report["result"]["stopped"])

    @property
    def whole(self) -> bool:
        """Whether the run ended on its own."""
        return self.ended.complete

    @property
    def stopped(self) -> bool:
        """Whether somebody may have stopped the run because of its results."""
        return not summary.ended_on_its_own(self.report["result"])

    @property
    def gate(self) -> dict[str, Any]:
        """The enforced guarantee, as :func:`fedpriv.report.summary.enforced_guarantee`.

        If somebody may have stopped the run because of its results, epsilon is that of the budget: the spent
        epsilon is then not a valid bound.
        """
        found = summary.enforced_guarantee(self.report)
        if found and self.stopped:
            found["epsilon"] = self.report["privacy"]["budget"]["epsilon"]
        return found


@dataclass(frozen=True)
class Group:
    """Runs of one configuration.

    Attributes:
        settings: the settings in which it differs from the other groups, by key.
        runs: its runs, at least one.
    """

    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The settings as key=value; the optimizer if there is no other group."""
        settings = self.settings or {"optimizer": self.runs[0].config.optimizer}
        name = ", ".join(f"{key}={value}" for key, value in settings.items())
        return name if self.runs[0].whole else f"{name} ({self.runs[0].ended})"

    @property
    def notes(self) -> list[str]:
        """The reasons why the group is not private; empty if it is."""
        seeds = sorted({run.config.seed for run in self.runs if run.config.seed >= 0})
        notes = unprotected(self.runs[0].config)
        if seeds:
            named = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
            seeded = sum(run.config.seed >= 0 for run in self.runs)
            part = f"; {seeded} of {len(self.runs)} runs" if seeded < len(self.runs) else ""
            notes.append(f"{NOT_PRIVATE} ({named}{part})")
        return notes

    @property
    def measure(self) -> Metric:
        """The metric of the score."""
        return shown(self.runs[0].metrics[-1])

    @property
    def finals(self) -> list[float]:
        """Each run's last score; NaN if the model has none."""
        values = (run.metrics[-1][self.measure.key] for run in self.runs)
        return [math.nan if value is None else value for value in values]

    def json(self) -> dict[str, Any]:
        """The group as a JSON-serialisable dict. The spread is the sample standard deviation of its runs, or
        None for one run."""
        gate = self.runs[0].gate
        finals = self.finals
        known = all(math.isfinite(value) for value in finals)
        return {
            "settings": dict(self.settings),
            "folders": [str(run.folder) for run in self.runs],
            "measure": self.measure.key,
            "mean": statistics.fmean(finals) if known else None,
            "spread": statistics.stdev(finals) if known and len(finals) > 1 else None,
            "epsilon": max(run.gate["epsilon"] for run in self.runs) if gate else None,
            **{key: gate.get(key) for key in ("delta", "against", "kind")},
            "ended": sorted({run.ended for run in self.runs}),
            "remarks": sorted({run.report["remark"] for run in self.runs if run.report["remark"]}),
        }


def read(
    folders: Sequence[str | Path], left_out: Callable[[UnfinishedError], None] = lambda error: None
) -> list[Group]:
    """The runs in these folders in groups: one group for all repetitions that ended on their own, and one for
    each other run.

    A folder that is not a run's output folder is searched recursively, but for the candidates of tuned sweeps
    (:func:`fedpriv.report.run_folders.run_folders`). A run that has not ended, or was not evaluated, is left
    out, and ``left_out`` is called with the reason; there may be no other.

    Raises:
        ArgumentError: if there is no run, or one is damaged.
        OSError: if a folder cannot be read.
    """
    if not folders:
        raise validation.ArgumentError("FOLDER is missing; name output folders of runs")
    return grouped(_found(folders, left_out))


def grouped(found: Sequence[Run]) -> list[Group]:
    """The runs in groups, as :func:`read` gives them."""
    groups: dict[tuple[tuple[tuple[str, Any], ...], Path | None], list[Run]] = {}
    for run, settings in zip(found, differences([run.config for run in found]), strict=True):
        key = (tuple(settings.items()), None if run.whole else run.folder)
        groups.setdefault(key, []).append(run)
    return [Group(dict(settings), tuple(runs)) for (settings, _), runs in groups.items()]


def _found(folders: Sequence[str | Path], left_out: Callable[[UnfinishedError], None]) -> list[Run]:
    """The runs in the folders, without duplicates."""
    found: dict[Path, Run | None] = {}
    for given in map(Path, folders):
        for folder in run_folders(given):
            place = folder.resolve()
            if folder != given and place in found:
                continue
            try:
                found[place] = read_one(folder)
            except UnfinishedError as error:
                found[place] = None
                left_out(error)
    return [run for run in found.values() if run]


def differences(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """For each configuration, the settings in which it differs from the others, by key.

    Settings that a run does not use are left out. A setting with the same value in all runs that use it is
    left out, too: other settings determine which runs use it. So is one that all runs derive from others.
    """
    tables, keys = [_used(config) for config in configs], Config.keys()
    wholes = [config.table() for config in configs]
    found: list[dict[str, Any]] = [{} for _ in configs]
    for key in (key for key in keys if key not in _ALIKE):
        if len({table[key] for table in tables if key in table}) > 1:
            for settings, table, whole in zip(found, tables, wholes, strict=True):
                settings |= {key: whole[key]} if key in table else {}
    return found


def _used(config: Config) -> dict[str, Any]:
    """The settings that the run uses; "auto" for a value that is derived from the others."""
    table = config.table()
    table |= {key: "auto" for key, value in config.derived().items() if table[key] == value}
    idle = set(config.without_effect())
    if config.divided and config.examples_per_client == 1:
        idle.add("examples-per-client")  # all examples are partitioned: 1 is not the clients' size
    return {key: value for key, value in table.items() if key not in idle}


def read_one(folder: Path) -> Run:
    """The run in a folder. Raises ArgumentError if it is damaged, UnfinishedError if it has not ended."""
    try:
        config = Config.parse(read_run(folder))
    except validation.ArgumentError as error:
        raise validation.fail(
            "FOLDER", str(folder), "hold a config.toml of this version", str(error)
        ) from None
    try:
        lines = (folder / run_files.METRICS).read_text().splitlines()
        report = read_json((folder / run_files.REPORT).read_bytes())  # a run that goes on has half a line
        run = Run(folder, config, tuple(read_json(line) for line in lines), report)
        _ = run.ended, run.gate, run.report["remark"]
        _ = [(record["round"], record["epsilon"]) for record in run.metrics]
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise UnfinishedError(
            folder, "has ended", f"it has no {name}; {resume_hint(folder, config)}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise validation.fail("FOLDER", str(folder), "hold an intact report.json and metrics.jsonl") from None
    if not run.metrics:
        hint = f"its metrics.jsonl is empty; {resume_hint(folder, config)}"
        raise UnfinishedError(folder, "was evaluated", hint)
    return run


def resume_hint(folder: Path, config: Config) -> str:
    """The hint for an unfinished run: what continues it, and where its spend is."""
    if why := obstacle(config):
        goes_on = f"it cannot be resumed: {why}"
    elif config.nodes_own_data:
        goes_on = "`fedpriv deploy resume` continues a deployment's run"
    else:
        goes_on = f"`fedpriv resume {quoted(folder)}` continues an interrupted run"
    return f"{goes_on}; {spend_hint(folder, config)}"


def spend_hint(folder: Path, config: Config) -> str:
    """The hint to the spent epsilon of a run without a report."""
    delta = f"{config.resolved().delta:.3g}"
    path = quoted(folder / run_files.LEDGER)
    return f"its spend is in the ledger: `fedpriv account --ledger {path} --delta {delta}`"


def remarks(groups: Sequence[Group]) -> tuple[str, list[list[str]]]:
    """The notes of all groups in one line, and the further notes of each group (:attr:`Group.notes`).

    If all groups have seeds, one note names all seeds.
    """
    notes = [group.notes for group in groups]
    alike = [note for note in notes[0] if all(note in others for others in notes)]
    seeded = [[note for note in own if note.startswith(NOT_PRIVATE) and note not in alike] for own in notes]
    if all(seeded):
        seeds = sorted({run.config.seed for group in groups for run in group.runs if run.config.seed >= 0})
        alike.append(f"{NOT_PRIVATE} (seeds {', '.join(map(str, seeds))})")
        notes = [
            [note for note in own if note not in of_seed] for own, of_seed in zip(notes, seeded, strict=True)
        ]
    line = ("All runs: " if alike and len(groups) > 1 else "") + "; ".join(alike)
    return line, [[note for note in own if note not in alike] for own in notes]


def _named(some: Sequence[Group], groups: Sequence[Group]) -> str:
    """A name for some of the groups: the settings that they share and no other has, or else all names."""
    shared = dict(set.intersection(*(set(group.settings.items()) for group in some)))
    having = [group for group in groups if shared.items() <= group.settings.items()]
    whole = all(group.runs[0].whole for group in some)
    if shared and whole and len(having) == len(some) > 1:
        return ", ".join(f"{key}={value}" for key, value in some[0].settings.items() if key in shared)
    return "; ".join(group.name for group in some)


def footnotes(groups: Sequence[Group]) -> list[str]:
    """Lines for a table of the groups: their remarks, and the meaning of the spread."""
    alike, own = remarks(groups)
    lines = [alike] if alike else []
    alike_groups: dict[str, list[Group]] = {}
    for group, notes in zip(groups, own, strict=True):
        if notes:
            alike_groups.setdefault("; ".join(notes), []).append(group)
    lines += [f"{_named(noted, groups)}: {notes}" for notes, noted in alike_groups.items()]
    if any(run.gate and run.stopped for group in groups for run in group.runs):
        lines.append("A stopped or resumed run has its whole budget: its end may depend on its results.")
    spread = any(group.json()["spread"] is not None for group in groups)
    return [*lines, *([f"The number after +- is {SPREAD}."] if spread else [])]
