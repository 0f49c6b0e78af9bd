"""The runs of a comparison: a sweep over placements, and over seeds where runs are repeated.

Each run is a cell of a sweep (:mod:`fedpriv.simulation.sweeps`): it has a folder of its own, is never run
again once it has ended, and is resumed where it was interrupted or killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv._internal import run_files, validation
from fedpriv._internal.settings import Needs, Scalar
from fedpriv.config.builders import make_source, make_test
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report.run_folders import TABLE
from fedpriv.runs.checkpoints import objects_of
from fedpriv.runs.result import Result, load_result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute, notes_on
from fedpriv.simulation import compare as comparisons
from fedpriv.simulation.compare import Row
from fedpriv.simulation.run import make_engine, simulate
from fedpriv.simulation.sweeps import cell as cells
from fedpriv.simulation.sweeps import driver, plans
from fedpriv.simulation.sweeps.definition import Cell, Definition
from fedpriv.simulation.sweeps.driver import Board, Watch
from fedpriv.simulation.sweeps.plans import Sweep

_ANCHORS = ("ledger-anchor", "ledger-anchor-command")
# What a comparison decides for each run, or what is no part of what is compared.
_OWN = ("placement", "seed", "out", "overwrite", *_ANCHORS)


def require_used(given: Mapping[str, Any], config: Config, chosen: Sequence[Plan]) -> None:
    """Raises ArgumentError for a setting that was given and that no compared run has.

    Args:
        given: the settings that somebody gave, by key.
        config: all settings.
        chosen: the plans to compare.
    """
    table, filled, defaults = config.table(), config.resolved().table(), Config.all_fields()
    tables = [(plan.config.table(), plan.config.without_effect()) for plan in chosen]
    names = ", ".join(comparisons.name(plan) for plan in chosen)
    placed = config.placement
    if "placement" in given and any(plan.config.placement != placed for plan in chosen):
        hint = f"it compares {names}; choose with placements"
        raise validation.fail("placement", placed, "be left out of a comparison of placements", hint)
    for key in given:
        if key in _OWN or table[key] == defaults[key].default:
            continue
        values = (table[key], filled[key])  # plans have what 0 stands for filled in
        if not any(_has(used, idle, key, values) for used, idle in tables):
            allowed = f"be left out: none of {names} uses it with this value"
            raise validation.fail(key, table[key], allowed, "or compare a placement that does")


def _has(table: Mapping[str, Scalar], idle: Mapping[str, Needs], key: str, values: Sequence[Scalar]) -> bool:
    """Whether a setting has an effect in a run, at one of these values."""
    return not (key in idle and idle[key].strict) and table[key] in values


def seeds_of(config: Config, count: int) -> list[int]:
    """The seeds of so many repetitions, from the configuration's on; none for 0."""
    first = config.seed if config.seed >= 0 else 1
    return list(range(first, first + validation.integer("seeds", count)))


def as_sweep(config: Config, chosen: Sequence[Plan], seeds: Sequence[int] = ()) -> Sweep:
    """The comparison as a sweep.

    Args:
        config: the settings that all runs share.
        chosen: the plans to compare.
        seeds: of the repetitions; none: each plan once, with its own seed.
    """
    found, plan_of, several = list[Cell](), dict[str, Plan](), len(seeds) > 1
    for plan in chosen:
        placement, anchor = comparisons.name(plan), plan.config.ledger_anchor
        for seed in seeds or [plan.config.seed]:
            name = f"{placement},seed={seed}" if several else placement
            own = plan.config.changed(seed=seed) if seed != plan.config.seed else plan.config
            if several and anchor:  # an anchor is that of one ledger
                own = own.changed(ledger_anchor=f"{anchor}.{seed}")
            found.append(Cell(name, {"placement": placement, **({"seed": seed} if several else {})}, own))
            plan_of[name] = plan
    return Sweep(_definition(config, chosen, seeds), tuple(found), plan_of, ())


def _definition(config: Config, chosen: Sequence[Plan], seeds: Sequence[int]) -> Definition:
    """What the folder of a comparison says that it holds."""
    defaults = Config.all_fields()
    settings = {
        key: value
        for key, value in config.table().items()
        if key not in _OWN and value != defaults[key].default
    }
    grid: dict[str, list[Scalar]] = {"placement": [comparisons.name(plan) for plan in chosen]}
    own = list(seeds) or [config.seed]
    return Definition(settings, {**grid, "seed": own}, ())


def begin(folder: str | Path, sweep: Sweep, overwrite: bool) -> list[str]:
    """Make the comparison's folder ready: a new one, or one that holds this comparison.

    With ``overwrite`` earlier runs in it are removed.

    Returns:
        what to know about removed ledgers, in sentences.

    Raises ArgumentError where the folder cannot be used.
    """
    path, notes, objects = Path(folder), list[str](), objects_of(sweep.cells[0].config)
    if not overwrite:
        try:
            plans.claim(path, sweep.definition, objects)
        except validation.ArgumentError as error:
            error.args = (f"{error} (or give overwrite)", *error.args[1:])
            raise
        return notes
    for own in (path, *(path / cell.name for cell in sweep.cells)):
        if own == path or own.exists():
            notes.append(RunFolder.create(own, overwrite=True).replaced)
    for name in (TABLE, driver.PARQUET, *driver.PICTURES):
        (path / name).unlink(missing_ok=True)
    plans.write(path, sweep.definition, objects)
    return list(filter(None, notes))


def run(sweep: Sweep, folder: Path, jobs: int, watch: Watch) -> tuple[list[Row], Board, bool]:
    """Run the cells side by side in processes of their own; (rows, how far it is, whether interrupted)."""
    board, interrupted = driver.run(sweep, folder, jobs, watch)
    found = {cell.name: _loaded(folder / cell.name) for cell in sweep.cells}
    config = sweep.cells[0].config
    y = make_test(config, make_source(config), torch.device("cpu")).y
    rows = _rows(sweep, {name: result and _noted(result, y) for name, result in found.items()})
    comparisons.write(RunFolder(folder), rows, list(dict.fromkeys(sweep.plans.values())))
    return rows, board, interrupted


def _loaded(folder: Path) -> Result | None:
    """The run in a folder; None where it has none that left a report."""
    return load_result(folder) if (folder / run_files.REPORT).is_file() else None


def _noted(result: Result, y: Tensor) -> Result:
    """The result with the notes that its run had, which no file has."""
    return replace(result, notes=tuple(notes_on(result.stopped, result.metrics, y)))


def run_here(
    sweep: Sweep,
    folder: Path | None = None,
    show: Callable[[str, Status], None] = lambda name, status: None,
) -> list[Row]:
    """Run the cells one after the other in this process, where objects are.

    Args:
        sweep: the comparison.
        folder: where outputs go; a folder that holds this comparison is continued. None: nowhere.
        show: called with a cell's name after each of its rounds.
    """
    if folder is None:
        return _rows(sweep, _run_in_turn(sweep, None, show))
    with cells.held(folder / driver.LOCKS / "sweep.lock"):
        rows = _rows(sweep, _run_in_turn(sweep, folder, show))
        driver.write(sweep, folder)
        comparisons.write(RunFolder(folder), rows, list(dict.fromkeys(sweep.plans.values())))
    return rows


def _run_in_turn(sweep: Sweep, folder: Path | None, show: Callable[[str, Status], None]) -> dict[str, Result]:
    """The results by the cells' names, up to one that is interrupted."""
    results: dict[str, Result] = {}
    for cell in sweep.cells:

        def observe(status: Status, name: str = cell.name) -> None:
            show(name, status)

        found = results[cell.name] = _run_cell(cell, sweep.plans[cell.name], folder, observe)
        if found.stopped == StopReason.INTERRUPTED:
            break
    return results


def _run_cell(cell: Cell, plan: Plan, folder: Path | None, show: Callable[[Status], None]) -> Result:
    own = plan if cell.config.seed == plan.config.seed else make_plan(cell.config)
    if folder is None:
        return simulate(own.config, show, None, own)
    path = folder / cell.name
    if cells.ended(path) is not None:
        return load_result(path)
    with cells.held(folder / driver.LOCKS / f"{cell.name}.lock"):
        continued, checkpoint = cells.prepared(path, cell.config)
        output = RunFolder(path) if checkpoint else RunFolder.create(path, overwrite=True)
        return execute(continued, make_engine(continued.config), output, show, checkpoint)


def _rows(sweep: Sweep, results: Mapping[str, Result | None]) -> list[Row]:
    """A row for each placement that has a result."""
    by_placement: dict[str, list[Result]] = {}
    for cell in sweep.cells:
        if (result := results.get(cell.name)) is not None:
            by_placement.setdefault(str(cell.settings["placement"]), []).append(result)
    plan_of = {str(cell.settings["placement"]): sweep.plans[cell.name] for cell in sweep.cells}
    return [Row(name, plan_of[name], tuple(found)) for name, found in by_placement.items()]
