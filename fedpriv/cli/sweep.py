"""``fedpriv sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv._internal import validation
from fedpriv._internal.files import quoted
from fedpriv.cli.app import (
    AsJson,
    RayAddress,
    app,
    ending_cleanly,
    note,
    on_terminal,
    print_table,
    refusing,
    say,
    uncharged,
)
from fedpriv.cli.progress import shown

if TYPE_CHECKING:
    from fedpriv.simulation.sweeps.driver import Board
    from fedpriv.simulation.sweeps.estimate import Estimate
    from fedpriv.simulation.sweeps.plans import Sweep

_HELP = """Run a grid of settings, one run for each cell, and put the results into one table and one picture.

SWEEP.toml has a table [settings] for all cells, a table [grid] with a list for each axis, and may have tables
[[override]] with `when = {KEY = VALUE}` and settings for the cells that match. All settings of `fedpriv
simulate` can be used. All cells are checked before the first one runs. A table [tune] with values for
settings chooses them for each method first, by scores on public examples that the cells' scores leave out.

Each cell is a run in a folder of its own inside --out, in a process of its own. Cells run side by side. A
cell that fails does not stop the others. Ctrl-C ends the running cells after their rounds. The same command
continues a sweep that was interrupted or killed: finished cells are not run again.

The folder receives results.csv (a row for each cell and evaluation), sweep.png and sweep.svg.

Exit codes: 0 all cells have ended, 1 a cell failed, 2 the sweep was refused, 130 it was interrupted.

\b
Examples:
  fedpriv sweep sweep.toml --out runs/sweep
  fedpriv sweep sweep.toml --out runs/sweep --dry-run
"""


@app.command(help=_HELP, short_help="Run a grid of settings.")
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="TOML file of the sweep.")],
    out: Annotated[Path, typer.Option(help="Folder of the sweep: a new one, or one that holds it.")],
    jobs: Annotated[int, typer.Option(help="Cells side by side; 0: one for each core.")] = 0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the cells, their noise and about how long they take; keep nothing."
        ),
    ] = False,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    with refusing():  # before the slow imports of a run
        validation.integer("--jobs", jobs)
        from fedpriv.simulation.sweeps import definition

        definition.cells(definition.read(file))
    with uncharged(), refusing(), shown("checking all cells", as_json):
        from fedpriv.report import search_record
        from fedpriv.simulation.sweeps import plans, tuning

        found = plans.prepare(file)
        plans.require_folder(out, found.definition)
        jobs = found.jobs(jobs)
    for text in found.notes:
        note(text, err=as_json)
    if dry_run:
        _show_cells(found, out, jobs, as_json)
        return
    say(f"{found.about}; {jobs} side by side", err=as_json)
    with refusing(1, out, lambda: _continued(file, out)), ending_cleanly() as check_end:
        from fedpriv.cli.sweep_display import Lines, LiveTable, Silent

        kind = Silent if as_json else LiveTable if on_terminal() else Lines
        with kind(check_end) as watch:
            outcome = tuning.run(found, out, jobs, watch)
    for line in search_record.lines(out):
        say(line, err=as_json)
    _conclude(outcome.sweep, outcome.folder, outcome.board, as_json)
    if outcome.interrupted:
        say(f"interrupted; {_continued(file, out)}", err=as_json)
        raise typer.Exit(130)
    if outcome.board.failed:
        say(f"{_continued(file, out)}: it runs the failed cells again", err=as_json)
        raise typer.Exit(1)


def _continued(file: Path, out: Path) -> str:
    return f"`fedpriv sweep {quoted(file)} --out {quoted(out)}` continues the sweep"


def _show_cells(found: Sweep, out: Path, jobs: int, as_json: bool) -> None:
    """The cells with their noise, which of them have ended, and how long the others take."""
    from fedpriv.simulation import noise_table
    from fedpriv.simulation.sweeps.cell import ended
    from fedpriv.simulation.sweeps.estimate import estimate

    with shown("measuring rounds", as_json):
        time = estimate(found, out, jobs)
    rows = []
    for cell in found.cells:
        plan = found.plans[cell.name]
        noisy = plan.budget is not None
        first = plan.mechanism.planned_events()[0].noise_multiplier if noisy else None
        mean = noise_table.noise(plan)[noise_table.MEAN] if noisy and not plan.by_silo else None
        how = ended(out / cell.name)
        state = how.short if how else "begun" if (out / cell.name).exists() else "not begun"
        row = {"cell": cell.name, "rounds": plan.rounds, "noise multiplier": first, noise_table.MEAN: mean}
        rows.append({**row, "ended": state})
    if as_json:
        about = {"settings tried": found.tried, "seconds": time and time.seconds}
        typer.echo(json.dumps({"cells": rows, **about}))
        return
    header = (
        "cell",
        "rounds",
        "noise multiplier at round 1",
        f"{noise_table.MEAN} of a parameter, in clip norms",
        "ended",
    )
    texts = [
        [
            str(row["cell"]),
            str(row["rounds"]),
            "no noise" if row["noise multiplier"] is None else f"{row['noise multiplier']:.4g}",
            "" if row[noise_table.MEAN] is None else f"{row[noise_table.MEAN]:.4g}",
            str(row["ended"]),
        ]
        for row in rows
    ]
    print_table(header, texts)
    say(f"{found.about}. Nothing was kept.")
    say(_time_text(time))


def _time_text(time: Estimate | None) -> str:
    from fedpriv.cli.bar import clock
    from fedpriv.tasks.metrics import counted

    if time is None:
        return "Cells that run on Ray have no estimate of their time."
    if not time.runs:
        return "All runs have ended."
    some = "" if time.measured == time.kinds else f"{time.measured} of "
    return (
        f"About {clock(time.seconds)} for {counted(time.runs, 'run')} on this machine, {time.jobs} side by "
        f"side, by a few rounds of {some}{counted(time.kinds, 'kind')} of cells."
    )


def _conclude(found: Sweep, out: Path, board: Board, as_json: bool) -> None:
    """The best and all other settings in a table, and where the files are."""
    from fedpriv.cli.app import terminal_width
    from fedpriv.report import comparison, comparison_table
    from fedpriv.simulation.sweeps import driver

    ended = driver.read_ended(found, out)
    about = {
        "cells": len(found.cells),
        "settings tried": found.tried,
        "ended": len(ended),
        "failed": board.failed,
    }
    if as_json:
        from fedpriv.report.sweep_results import rows

        typer.echo(json.dumps({"out": str(out), **about, "rows": rows(ended, found.tried)}))
        return
    if ended:
        groups = comparison.grouped([cell.run for cell in ended])
        table = comparison_table.table(groups, terminal_width())
        print_table(table.header, table.rows)
        for line in (*table.about, *table.notes):
            say(line)
    for name, why in board.failed.items():
        say(f"{name} FAILED: {why}", bold=True)
    say(f"{found.about}: the best of many is optimistic.")
    if ended:
        say(f"{out}/results.csv has all evaluations; {out}/sweep.png shows the last scores")
