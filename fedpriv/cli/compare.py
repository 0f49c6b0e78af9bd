"""``fedpriv compare``: a sweep over placements of the noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import (
    AsJson,
    OfSettings,
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
from fedpriv.cli.simulate import ConfigFile, Out, Overwrite, Seed, Settings, given
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS

if TYPE_CHECKING:
    from fedpriv.config.plan import Plan
    from fedpriv.simulation.compare import Row


@app.command(
    cls=OfSettings,
    short_help="Compare placements of the noise at one budget.",
    help="""Run the same federation under each placement of the noise at the same budget.

Each placement spends the budget against the adversary that it defends against. The table shows epsilon
against the server and against those who see the models. Settings are those of `fedpriv simulate`. The
placement `client` stands for level=client: each silo adds noise to its own steps.

It is a sweep over placements. The runs go side by side, in processes of their own (engine=in-process unless
it is set), each in a folder of its own inside --out. --seeds 5 repeats each of them with five seeds and shows
means with their 95 % intervals. The same command continues a comparison that was interrupted or killed: runs
that have ended are not run again.

All runs are on the same data, so their epsilons add up; the output gives the total. The run without noise
(`none`) is not private: do not publish its model. Leave it out (--placements) if the data is.

Exit codes: 0 all runs have ended, 1 a run failed, 2 the comparison was refused, 130 it was interrupted.

\b
Examples:
  fedpriv compare
  fedpriv compare --placements none,central,local --set epsilon=8
  fedpriv compare --seeds 5 --out runs/noise
  fedpriv compare --placements central,distributed,local --dry-run
""",
)
def compare(
    config_file: ConfigFile = None,
    settings: Settings = None,
    placements: Annotated[
        str, typer.Option(help=f"Comma-separated: {', '.join(PLACEMENTS)}, client, secure-aggregation.")
    ] = ",".join(PLACEMENTS),
    out: Out = None,
    seed: Seed = None,
    seeds: Annotated[
        int, typer.Option(help="Runs of each placement, with seeds from --seed (1) on; 0: one each.")
    ] = 0,
    jobs: Annotated[int, typer.Option(help="Runs side by side; 0: one for each core.")] = 0,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the noise and the epsilons, and run nothing.")
    ] = False,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    with refusing():  # before the slow imports of a run
        validation.integer("--jobs", jobs)
        validation.integer("--seeds", seeds)
        values = given(config_file, settings, out, seed, overwrite)
        config = Config.parse({"engine": "in-process", **values})
    with uncharged(), refusing(), shown("loading data and calibrating noise", as_json):
        from fedpriv.runs.run_dir import default_folder
        from fedpriv.simulation import compare as comparison
        from fedpriv.simulation import compare_runs
        from fedpriv.simulation.run import check

        checked = check(config)
        names = [
            validation.choice("--placements", name.strip(), comparison.COMPARED)
            for name in placements.split(",")
        ]
        chosen = comparison.plans(config, list(dict.fromkeys(names)))
        compare_runs.require_used(values, config, chosen)
        if dry_run:
            _show_noise(chosen, as_json)
            return
        sweep = compare_runs.as_sweep(config, chosen, compare_runs.seeds_of(config, seeds))
        jobs, folder = sweep.jobs(jobs), Path(config.out or default_folder())
        removed = compare_runs.begin(folder, sweep, config.overwrite)
    for text in (
        *_each_once({comparison.name(plan): checked.warnings(plan) for plan in chosen if plan.budget}),
        *checked.notes,
        *removed,
    ):
        note(text, err=as_json)
    again = f"the same command with --out {folder} and without --overwrite continues the comparison"
    with refusing(1, folder, lambda: again), ending_cleanly() as check_end:
        from fedpriv.cli.sweep_display import Lines, LiveTable, Silent

        kind = Silent if as_json else LiveTable if on_terminal() else Lines
        with kind(check_end) as watch:
            rows, board, interrupted = compare_runs.run(sweep, folder, jobs, watch)
    _conclude(rows, chosen, folder, as_json)
    for name, why in board.failed.items():
        say(f"{name} FAILED: {why}", bold=True, err=as_json)
    if interrupted or board.failed:
        say(again, err=as_json)
        raise typer.Exit(130 if interrupted else 1)


def _show_noise(chosen: list[Plan], as_json: bool) -> None:
    """The noise and the epsilons of the plans."""
    from fedpriv.simulation import compare as comparison
    from fedpriv.simulation import noise_table

    rows = noise_table.rows(chosen)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    print_table(noise_table.HEADER, [noise_table.cells(row) for row in rows])
    say(f"All rows: {comparison.task(chosen[0].config)}.")
    for row in rows:
        if "remark" in row:
            note(f"{row['placement']}: {row['remark']}")
    for sentence in (*noise_table.NOTES, "Nothing was run."):
        say(sentence)


def _conclude(rows: list[Row], chosen: list[Plan], folder: Path, as_json: bool) -> None:
    """The table, and what goes with it."""
    from fedpriv.simulation import compare as comparison

    if as_json:
        for sentence in comparison.adding_up(rows):
            note(sentence, err=True)
        typer.echo(json.dumps([row.json() for row in rows]))
        return
    typer.echo()
    if left := comparison.left_out(chosen, rows):
        say(left, bold=True)
    if rows:
        print_table(comparison.header(rows), [comparison.cells(row) for row in rows])
    for row in rows:
        for text in comparison.warnings(row):
            say(f"{row.placement}: {text}", bold=True)
    for sentence in comparison.notes(rows):
        say(sentence)
    if rows:
        say(
            f"{folder}/compare.png shows the test score against rounds; {folder}/results.csv has all "
            "evaluations"
        )


def _each_once(notes: dict[str, list[str]]) -> list[str]:
    """The notes on several runs, each once; one that is not on all of them begins with their names."""
    found = []
    for text in dict.fromkeys(text for of_run in notes.values() for text in of_run):
        runs = [name for name, of_run in notes.items() if text in of_run]
        found.append(text if len(runs) == len(notes) else f"{', '.join(runs)}: {text}")
    return found
