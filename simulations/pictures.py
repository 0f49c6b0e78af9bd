"""Draws the pictures of a sweep in this folder from its committed results; runs nothing.

    python simulations/pictures.py simulations/cohorts/sweep.toml score-by-setting sweep
    python simulations/pictures.py simulations/non_iid/local_steps.toml sweep
    cd simulations/central_vs_local && python ../pictures.py sweep.toml unclipped.toml sweep
    cd simulations/central_vs_local && python ../pictures.py sweep.toml million.toml population

Several sweeps are drawn into one picture, which takes its name from the first. The pictures are those of
`fedpriv report`, and `sweep`; each becomes a PNG file beside the sweep's. What epsilon means is worked out
anew from the sweep's file and `tuning.json`, for runs that charged all planned releases. The scores are those
of `results.csv`. It needs the sweep's data set.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedpriv._internal.files import atomic
from fedpriv._internal.plotting import png
from fedpriv.config.builders import make_source, make_test
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report.comparison import Run
from fedpriv.report.notices import most_frequent
from fedpriv.report.pictures import KINDS
from fedpriv.report.pictures.methods import reference
from fedpriv.report.summary import CHANCE, summarise
from fedpriv.report.sweep_results import SPENT, Ended
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.plans import Sweep

SCORE = "accuracy"


def beside(file: Path, name: str) -> Path:
    """A file of this sweep; of a sweep that is not `sweep.toml` it has its name in front."""
    return file.with_name(name if file.stem == "sweep" else f"{file.stem}_{name}")


def read(file: Path) -> tuple[Sweep, list[Ended]]:
    """The sweep and its cells, as its folder of runs would have them."""
    found = plans.prepare(file)
    if found.definition.tuning:
        tuning = json.loads(beside(file, "tuning.json").read_text())
        chosen = [(one["method"], one["chosen"]) for one in tuning["methods"]]
        found = plans.tuned(found.definition, chosen, tuning["runs"])
    with beside(file, "results.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    reports: dict[int, dict[str, Any]] = {}
    guessing = chance(found.cells[0].config)
    cells = []
    for cell in found.cells:
        plan = found.plans[cell.name]
        records = [record(row) for row in rows if _is_of(row, cell.settings)]
        if [at["round"] for at in records] != sorted({at["round"] for at in records}) or not records:
            raise SystemExit(f"{beside(file, 'results.csv')} has not one row a round for {cell.name}")
        if plan.by_silo:
            raise SystemExit(f"{cell.name} charges each silo by itself, which results.csv does not have")
        if id(plan) not in reports:
            reports[id(plan)] = summarise(plan, plan.events, records, StopReason.ROUNDS)
        report = reports[id(plan)]
        result = {**report["result"], CHANCE: guessing}
        run = Run(file.with_name(cell.name), cell.config, tuple(records), {**report, "result": result})
        cells.append(Ended(cell.settings, run, found.axes))
    return found, cells


def record(row: Mapping[str, str]) -> dict[str, Any]:
    """A row of results.csv as a line of metrics.jsonl."""
    spent = float(row[SPENT]) if row[SPENT] else None
    return {"round": int(row["round"]), SCORE: float(row[SCORE]) if row[SCORE] else None, "epsilon": spent}


def _is_of(row: Mapping[str, str], settings: Mapping[str, Any]) -> bool:
    """Whether a row is of the cell with these settings."""
    return all(_same(row[key], value) for key, value in settings.items())


def _same(text: str, value: Any) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(text) and float(text) == value
    return text == str(value)


def alike(cells: Sequence[Ended]) -> list[Ended]:
    """The cells of several sweeps, each with the settings that tell cells of the others apart.

    A run without noise is a reference, and keeps its own: it belongs to every panel that they do not split.
    """
    keys = dict.fromkeys(key for cell in cells for key in cell.settings)
    found = []
    for cell in cells:
        if not reference(cell.run.config):
            table, idle = cell.run.config.table(), cell.run.config.without_effect()
            filled = {key: None if key in idle else table[key] for key in keys}
            cell = replace(cell, settings=filled)
        found.append(cell)
    return found


def chance(config: Config) -> float:
    """The accuracy of guessing on the test examples of a cell."""
    _, y, *_ = make_test(config, make_source(config), torch.device("cpu"))
    return most_frequent(y.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="+", help=f"files of sweeps, then pictures: sweep, {', '.join(KINDS)}")
    what = parser.parse_args().what
    files = [Path(one) for one in what if one.endswith(".toml")]
    names = [one for one in what if not one.endswith(".toml")]
    if unknown := [name for name in names if name not in (*KINDS, "sweep")]:
        parser.error(f"no picture is called {unknown[0]}; there are sweep, {', '.join(KINDS)}")
    if not files or not names:
        parser.error("name the file of a sweep and a picture")
    sweeps = [read(file) for file in files]
    cells = alike([cell for _, ended in sweeps for cell in ended])
    about = "; ".join(found.about for found, _ in sweeps)
    for name in names:
        figure = KINDS["score-by-epsilon" if name == "sweep" else name][1](cells, about)
        if figure is None:
            raise SystemExit(f"{name} cannot be drawn of these runs")
        path = beside(files[0], f"{name}.png")
        with atomic(path) as file:
            file.write(png(figure))
        print(path)


if __name__ == "__main__":
    main()
