"""Runs side by side, from the folders that they left: a table and a picture.

Runs are told apart by the settings in which they differ. Those that differ in nothing but their seed or
folder are repetitions of one run, shown by their mean and spread.
"""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv import _check
from fedpriv.config import Config, read_file
from fedpriv.measures import Measure, shown

HEADER = ("runs of", "number", "on the test set", "epsilon spent", "delta", "against", "kind")
_FILLED = ("learning-rate", "rho-c", "rho-mu", "delta", "noise-decay", "noise-period", "pda-horizon")
_ALIKE = ("seed", "out", "overwrite", "engine", "actors", "cpus-per-actor", "gpus-per-actor", "memory-budget")


@dataclass(frozen=True)
class Run:
    """What one folder holds.

    Attributes:
        folder: where it is.
        config: resolved.
        metrics: the records of its evaluations, at least one.
        report: as in report.json.
    """

    folder: Path
    config: Config
    metrics: tuple[Mapping[str, Any], ...]
    report: Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs of one configuration.

    Attributes:
        settings: those in which it differs from the other groups, by key.
        runs: at least one.
    """

    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The settings as a person would give them; the optimizer where there is no other group."""
        told = self.settings or {"optimizer": self.runs[0].config.optimizer}
        return ", ".join(f"{key}={value}" for key, value in told.items())

    @property
    def measure(self) -> Measure:
        """What the score is."""
        return shown(self.runs[0].metrics[-1])

    @property
    def finals(self) -> list[float]:
        """Each run's last score; NaN where its model has none."""
        values = (run.metrics[-1][self.measure.key] for run in self.runs)
        return [math.nan if value is None else value for value in values]

    def json(self) -> dict[str, Any]:
        """The group as report data; the spread is the standard deviation of single runs, None of one."""
        gate = _gate(self.runs[0])
        finals, spent = self.finals, [_gate(run)["epsilon"] for run in self.runs]
        known = all(math.isfinite(value) for value in finals)
        return {
            "settings": dict(self.settings),
            "folders": [str(run.folder) for run in self.runs],
            "measure": self.measure.key,
            "mean": statistics.fmean(finals) if known else None,
            "spread": statistics.stdev(finals) if known and len(finals) > 1 else None,
            "epsilon spent": None if None in spent else max(spent),
            "delta": gate["delta"],
            "against": gate["against"],
            "kind": gate["kind"],
            "remarks": sorted({run.report["remark"] for run in self.runs if run.report["remark"]}),
        }


def _gate(run: Run) -> dict[str, Any]:
    """What the view that gates the budget says; None for all of it where there is no noise."""
    privacy = run.report["privacy"]
    for view in privacy["views"]:
        if view["gates the budget"]:
            cell = view["epsilon"][privacy["budget"]["held by"]]
            return {"against": view["against"], "delta": view["delta"], **cell}
    return dict.fromkeys(("against", "delta", "epsilon", "kind"))


def read(folders: Sequence[str | Path]) -> list[Group]:
    """The runs in these folders, or in the folders in them where one holds no run itself, in groups.

    Raises ArgumentError where there is no run, or one that has not ended or was not evaluated, or where two
    are scored by different measures.
    """
    found = [_run(folder) for given in folders for folder in _of_runs(Path(given))]
    if not found:
        raise _check.ArgumentError("FOLDER is missing; name output folders of runs")
    tables = [_settings(run.config) for run in found]
    differ = [key for key in tables[0] if key not in _ALIKE and any(t[key] != tables[0][key] for t in tables)]
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run, table in zip(found, tables, strict=True):
        groups.setdefault(tuple(table[key] for key in differ), []).append(run)
    made = [Group(dict(zip(differ, values, strict=True)), tuple(runs)) for values, runs in groups.items()]
    measures = {group.measure.words for group in made}
    if len(measures) > 1:
        raise _check.fail("FOLDER", " and ".join(sorted(measures)), "be runs that are scored alike")
    return made


def _settings(config: Config) -> dict[str, Any]:
    """The settings by key, "auto" for a value that follows from the others: it tells no run apart."""
    table = config.table()
    zeros: dict[str, Any] = {key.replace("-", "_"): 0 for key in _FILLED}
    filled = config.changed(**zeros).resolved().table()
    return table | {key: "auto" for key in _FILLED if table[key] == filled[key]}


def _of_runs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise _check.fail("FOLDER", str(folder), "be an existing folder")
    inside = [folder] if _holds_run(folder) else sorted(filter(_holds_run, folder.iterdir()))
    if not inside:
        raise _check.fail("FOLDER", str(folder), "hold a run, or folders of runs", "no config.toml is in it")
    return inside


def _holds_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file()


def _run(folder: Path) -> Run:
    config = Config.parse(read_file(folder / "config.toml"))
    try:
        report = json.loads((folder / "report.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        metrics = tuple(json.loads(line) for line in lines)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        hint = f"no {name} is in it; fedpriv resume ends an interrupted one"
        raise _check.fail("FOLDER", str(folder), "hold a run that has ended", hint) from None
    except (OSError, ValueError):
        raise _check.fail("FOLDER", str(folder), "hold an intact report.json and metrics.jsonl") from None
    if not metrics:
        raise _check.fail("FOLDER", str(folder), "hold a run that was evaluated")
    return Run(folder, config, metrics, report)


def cells(group: Group) -> list[str]:
    """The group as text, in the order of ``HEADER``."""
    data, measure = group.json(), group.measure
    score = measure.said(data["mean"])
    if data["spread"] is not None:
        score += f" +- {measure.text(data['spread'])}"
    spent = data["epsilon spent"]
    if spent is None:
        return [group.name, str(len(group.runs)), score, "infinite", "", "nobody", ""]
    kind = "an ESTIMATE" if data["kind"] == "estimate" else data["kind"]
    promise = [f"{spent:.4g}", f"{data['delta']:.3g}", data["against"], kind]
    return [group.name, str(len(group.runs)), score, *promise]


def picture(groups: Sequence[Group]) -> bytes:
    """A PNG of the scores against rounds and, where any is private, against the epsilon spent by then: means,
    with the range of a group's runs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    private = any(run.report["privacy"]["budget"] for group in groups for run in group.runs)
    figure = Figure(figsize=(11 if private else 7, 4.8), layout="constrained")
    by_round, *others = figure.subplots(1, 1 + private, sharey=True, squeeze=False)[0]
    for number, group in enumerate(groups):
        rounds, spent, heights = _curves(group)
        means = [statistics.fmean(column) for column in heights]
        label = group.name + (f" ({len(group.runs)} runs)" if len(group.runs) > 1 else "")
        style = {"color": f"C{number % 10}", "marker": ".", "linestyle": ("-", "--", ":")[number // 10 % 3]}
        for axes, at in ((by_round, rounds), *((axes, spent) for axes in others)):
            if at:
                axes.plot(at, means, label=label, **style)
                band = [list(map(edge, heights)) for edge in (min, max)]
                axes.fill_between(at, *band, color=style["color"], alpha=0.15, linewidth=0)
    by_round.set(xlabel="round", ylabel=groups[0].measure.axis)
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in others:
        kinds = {group.json()["kind"] for group in groups}
        axes.set(xlabel=f"epsilon spent{' (some are ESTIMATES)' if 'estimate' in kinds else ''}")
    for axes in (by_round, *others):
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    figure.legend(*by_round.get_legend_handles_labels(), fontsize=8, ncols=2, loc="outside lower center")
    if remarks := sorted({remark for group in groups for remark in group.json()["remarks"]}):
        figure.suptitle("; ".join(remarks), fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _curves(group: Group) -> tuple[list[int], list[float], list[list[float]]]:
    """The rounds that all runs were evaluated at, the most epsilon spent by then (none without noise), and
    the scores of all runs there."""
    by_round = [{record["round"]: record for record in run.metrics} for run in group.runs]
    rounds = sorted(set.intersection(*(set(records) for records in by_round)))
    spent = [[records[r]["epsilon"] for records in by_round] for r in rounds]
    known = all(value is not None for column in spent for value in column)
    heights = [group.measure.heights([records[r] for records in by_round]) for r in rounds]
    return rounds, [max(column) for column in spent] if known else [], heights
