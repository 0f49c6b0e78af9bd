"""``fedpriv simulate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpriv._internal import ray_cluster, validation
from fedpriv._internal.settings import by_key
from fedpriv.cli.app import (
    AsJson,
    OfSettings,
    RayAddress,
    app,
    ending_cleanly,
    note,
    refusing,
    uncharged,
)
from fedpriv.cli.progress import shown
from fedpriv.config.reading import read_assignment, read_file
from fedpriv.config.schema import Config

if TYPE_CHECKING:
    from fedpriv.config.plan import Plan
    from fedpriv.runs.checkpoints import Checkpoint
    from fedpriv.runs.runner import Status
    from fedpriv.simulation.run import Checked

    # A plan, its folder, what it is resumed from, and what its check has found.
    Job = tuple[Plan, Path, Checkpoint | None, Checked]

_PREPARING = "loading data and calibrating noise"

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", show_default=False, help="TOML file of settings.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting. May be repeated.")
]
Out = Annotated[str | None, typer.Option(help="Output folder [default: runs/<date and time>].")]
Seed = Annotated[int | None, typer.Option(help="Make the run reproducible, and NOT private.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing output folder and its ledger.")
]


_SIMULATE_HELP = """Run a simulated federation until its rounds or its privacy budget end.

Without arguments it runs the demo: 100,000 virtual clients, each with one handwritten digit (the data comes
with the installation), central noise, epsilon 3. No statistic of clients' data is logged. The model is
evaluated on the public test set.

The output folder receives config.toml (with all defaults filled in), metrics.jsonl, ledger.jsonl,
model.safetensors, state.safetensors, report.md, report.json and curves.png. Ctrl-C ends the run after its
round and leaves a valid folder, with exit status 0; `fedpriv resume` continues the run.

Where a setting is given twice, the last one counts.

\b
Examples:
  fedpriv simulate
  fedpriv simulate --set epsilon=1 --set rounds=300 --out runs/tight
  fedpriv simulate --set dataset=infinite-mnist --set clients=250000
  fedpriv simulate --set unit=example --set clients=10 \\
                   --set examples-per-client=5000
  fedpriv simulate my.toml --seed 1 --json
"""


@app.command("simulate", cls=OfSettings, help=_SIMULATE_HELP, short_help="Run a simulated federation.")
def simulate(
    config_file: ConfigFile = None,
    settings: Settings = None,
    out: Out = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    with refusing():  # before the slow imports of a run
        config = Config.parse(given(config_file, settings, out, seed, overwrite))
        require_ray(ray_address, config)
    run_one(lambda: new(config), as_json)


def require_ray(address: str | None, config: Config) -> None:
    """Raises ArgumentError where a Ray cluster was named for a run in one process, or none is there."""
    if address and config.in_process:
        raise validation.fail("--ray-address", address, "be left out: engine is 'in-process'")
    if not config.in_process:
        ray_cluster.resources()


def new(config: Config) -> Job:
    """The run of this configuration, which is checked."""
    from fedpriv.config.plan import make_plan
    from fedpriv.runs.run_dir import RunFolder, default_folder
    from fedpriv.simulation.run import check

    checked = check(config)
    return (
        make_plan(config),
        RunFolder.check(config.out or default_folder(), config.overwrite),
        None,
        checked,
    )


def run_one(prepared: Callable[[], Job], as_json: bool) -> None:
    """Run the prepared job and show its progress; impossible settings are refused before any work."""
    with uncharged():
        with refusing(), shown(_PREPARING, as_json):
            from fedpriv.cli import display
            from fedpriv.federated.stop_reason import divergence
            from fedpriv.runs.run_dir import RunFolder
            from fedpriv.runs.runner import execute
            from fedpriv.simulation.run import make_engine

            plan, folder, resumed, checked = prepared()
        display.announce(plan, folder, resumed, checked, err=as_json)
        with refusing(), shown(display.engine_start(plan.config), as_json):
            engine = make_engine(plan.config)
            output = RunFolder(folder) if resumed else RunFolder.create(folder, plan.config.overwrite)
    with (
        refusing(1, folder, lambda: display.resume_hint(plan, folder)),
        shown("first round", as_json) as bar,
        ending_cleanly() as check_end,
    ):
        show = display.follow(bar)

        def after_round(status: Status) -> None:
            show(status)
            check_end()

        result = execute(plan, engine, output, after_round, resumed)
    if as_json:
        if diverged := divergence(result.stopped, result.metrics):
            note(diverged, err=True)
        for sentence in result.notes:
            note(sentence, err=True)
        typer.echo(json.dumps({"out": str(folder), **result.report}))
    else:
        display.conclude(plan, result, str(folder))


def given(
    config_file: Path | None, settings: list[str] | None, out: str | None, seed: int | None, overwrite: bool
) -> dict[str, Any]:
    """The settings that a command line gives, by key: the last value of each, before those of the file.

    Raises ArgumentError for what cannot be read.
    """
    chosen = dict[str, Any]()
    for text in settings or []:
        chosen |= by_key(dict([read_assignment(text)]))
    if out is not None:
        chosen["out"] = out
    if seed is not None:
        chosen["seed"] = validation.integer("--seed", seed)
    if overwrite:
        chosen["overwrite"] = True
    return (by_key(_of_file(config_file)) if config_file else {}) | chosen


def _of_file(path: Path) -> dict[str, Any]:
    """The table of a configuration file. Raises ArgumentError, with a hint for a setting in its place."""
    if "=" in path.name and not path.exists():
        raise validation.fail("CONFIG", str(path), "be an existing TOML file", f"write --set {path}")
    return read_file(path)
