"""The command line: ``fedpriv simulate | compare | account | calibrate | data``.

Exit codes: 0 a run ended (also at its budget, or on Ctrl-C with a valid folder), 1 something failed
while running, 2 the request was refused before any work started.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpriv import __version__, _check

# Set before anything imports Flower or Ray.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

app = typer.Typer(
    help="Differentially private federated learning: simulate, compare, account.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="Data sets: what there is, how to get it, what it looks like.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")

ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="TOML file of settings.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; repeatable.")
]
Out = Annotated[str | None, typer.Option(help="Output folder [default: runs/<date and time>].")]
Seed = Annotated[int | None, typer.Option(help="Make the run reproducible, and NOT private.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@contextmanager
def _refusing(code: int = 2) -> Iterator[None]:
    """One clear line and an exit code for what people can get wrong; a traceback for what we did."""
    from fedpriv.accounting import LedgerError, UnsupportedEvent
    from fedpriv.data import DataError

    try:
        yield
    except (_check.ArgumentError, UnsupportedEvent, DataError, LedgerError, FileExistsError) as error:
        typer.echo(f"fedpriv: {error}", err=True)
        raise typer.Exit(code) from None


def _settings_help() -> str:
    from fedpriv.config import Config

    lines = ["Settings (in CONFIG.toml, or --set KEY=VALUE), with their defaults:", "", "\b"]
    for name, field in Config.model_fields.items():
        default = json.dumps(field.default)
        lines.append(f"  {name.replace('_', '-')} = {default}")
        lines.append(f"      {field.description}")
    return "\n".join(lines)


_SIMULATE_HELP = """Run a simulated federation until its rounds or its privacy budget end.

Without arguments it runs the demo: 100,000 virtual clients with one handwritten digit each (data that
comes with the installation), central noise, epsilon 3. Training never logs anything about clients' data;
accuracy is measured on the public test set.

The output folder gets config.toml (resolved), metrics.jsonl, ledger.jsonl, model.safetensors, report.md,
report.json and curves.png. Ctrl-C ends the run cleanly and leaves a valid folder.

\b
Examples:
  fedpriv simulate
  fedpriv simulate --set epsilon=1 --set rounds=300 --out runs/tight
  fedpriv simulate --set dataset=infinite-mnist --set clients=250000 --set sampling-rate=0.001
  fedpriv simulate --set unit=example --set clients=10 --set examples-per-client=5000
  fedpriv simulate my.toml --seed 1 --json
"""


@app.command(help=_SIMULATE_HELP, epilog=_settings_help())
def simulate(
    config_file: ConfigFile = None,
    settings: Settings = None,
    out: Out = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    from fedpriv.plan import make_plan
    from fedpriv.runs import RunFolder, execute
    from fedpriv.simulate import make_engine

    with _refusing():
        config = _config(config_file, settings, out, seed, overwrite)
        _check_data(config)
        plan = make_plan(config)
        folder = RunFolder.create(_out(config), config.overwrite)
    console = Console(stderr=as_json)
    _announce(console, plan)
    with _failing(), _progress(console, quiet=as_json) as show:
        result = execute(plan, make_engine(config), folder, show)
    if as_json:
        typer.echo(json.dumps({"out": str(folder.path), **result.report}))
        return
    _conclude(console, result, folder.path)


@contextmanager
def _failing() -> Iterator[None]:
    """Failures of engines are told in one line, exit code 1."""
    from fedpriv.flower.grids.base import GridError
    from fedpriv.flower.strategy import EngineError

    with _refusing(code=1):
        try:
            yield
        except (GridError, EngineError) as error:
            typer.echo(f"fedpriv: {error}", err=True)
            raise typer.Exit(1) from None


def _config(
    config_file: Path | None, settings: list[str] | None, out: str | None, seed: int | None, overwrite: bool
) -> Any:
    from fedpriv.config import Config, read_assignment, read_file

    values = read_file(config_file) if config_file else {}
    values.update(read_assignment(text) for text in settings or [])
    if out is not None:
        values["out"] = out
    if seed is not None:
        values["seed"] = _check.integer("--seed", seed)
    if overwrite:
        values["overwrite"] = True
    return Config.parse(values)


def _check_data(config: Any) -> None:
    from fedpriv.node import choose_device, make_source, make_task, make_view

    source = make_source(config)
    make_view(config, source)
    make_task(config, source)
    choose_device(config.device)


def _out(config: Any) -> str:
    return config.out or f"runs/{datetime.now():%Y%m%d-%H%M%S}"


def _announce(console: Console, plan: Any) -> None:
    config = plan.config
    console.print(
        f"{config.clients:,} clients on {config.dataset}, {config.model}, {config.optimizer}, "
        f"{plan.setup.rounds} rounds, {config.placement} noise",
        highlight=False,
    )
    if plan.budget is None:
        console.print("NOT PRIVATE: no noise is added, epsilon is infinite", style="bold")
        return
    console.print(
        f"budget epsilon {plan.budget.epsilon:g}, delta {plan.budget.delta:.3g}, held by "
        f"{config.accounting}; noise multiplier {plan.setup.scale:.4g} at the first round",
        highlight=False,
    )
    if config.accounting == "gdp-clt":
        console.print("gdp-clt is an ESTIMATE that can understate epsilon several-fold", style="bold")
    if config.seed >= 0:
        console.print("a seed was given: reproducible, NOT private", style="bold")


@contextmanager
def _progress(console: Console, quiet: bool, prefix: str = "") -> Iterator[Callable[[Any], None]]:
    """A bar on a terminal; plain lines, at each evaluation, elsewhere."""
    if quiet:
        yield lambda status: None
        return
    if not console.is_terminal:
        yield _Lines(prefix)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  epsilon {task.fields[epsilon]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(prefix or "round", total=None, accuracy="-", epsilon="-", rate="")

        def show(status: Any) -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(
                task,
                total=status.rounds,
                completed=status.round,
                accuracy=_percent(status.accuracy),
                epsilon=_spent(status),
                rate=f"{speed:.1f} rounds/s" if speed else "",
            )

        yield show


class _Lines:
    """One plain line at each new evaluation."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix} " if prefix else ""
        self._last: Any = None

    def __call__(self, status: Any) -> None:
        seen = (status.accuracy, status.epsilon)
        if status.accuracy is None or (seen == self._last and status.round < status.rounds):
            return
        self._last = seen
        typer.echo(
            f"{self._prefix}round {status.round}/{status.rounds}  accuracy {_percent(status.accuracy)}  "
            f"epsilon {_spent(status)}"
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _spent(status: Any) -> str:
    if status.budget is None:
        return "infinite"
    return f"{'-' if status.epsilon is None else format(status.epsilon, '.3f')} of {status.budget:g}"


def _conclude(console: Console, result: Any, folder: Path) -> None:
    ends = {
        "rounds": "all rounds done",
        "budget": "the next release would have passed the budget: stopped",
        "interrupted": "interrupted",
    }
    accuracy = result.metrics[-1]["accuracy"] if result.metrics else None
    console.print(f"{ends[result.stopped]}; test accuracy {_percent(accuracy)}", highlight=False)
    console.print(f"{folder}/report.md says what epsilon means; {folder}/curves.png shows the run", highlight=False)


@app.command(
    help="""Run the same federation with no, central, distributed and local noise at the same budget.

Each budget is read against the adversary that the placement defends against; the table has both views.
Settings are those of `fedpriv simulate`.
""",
)
def compare(
    config_file: ConfigFile = None,
    settings: Settings = None,
    placements: Annotated[str, typer.Option(help="Comma-separated placements.")] = (
        "none,central,distributed,local"
    ),
    out: Out = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    from fedpriv import compare as comparison
    from fedpriv.runs import RunFolder

    with _refusing():
        config = _config(config_file, settings, out, seed, overwrite)
        _check_data(config)
        names = [
            _check.choice("--placements", name.strip(), comparison.PLACEMENTS)
            for name in placements.split(",")
        ]
        chosen = comparison.plans(config, names)
        folder = RunFolder.create(_out(config), config.overwrite)
    console = Console(stderr=as_json)
    lines: dict[str, _Lines] = {}

    def show(placement: str, status: Any) -> None:
        if not as_json:
            lines.setdefault(placement, _Lines(placement))(status)

    with _failing():
        rows = comparison.compare(chosen, folder, show)
    if as_json:
        typer.echo(json.dumps([row.json() for row in rows]))
        return
    _print_table(console, rows)
    console.print(f"{folder.path}/compare.png shows accuracy against rounds and epsilon", highlight=False)


def _print_table(console: Console, rows: list[Any]) -> None:
    from rich.table import Table

    table = Table("placement", "defends against", "accuracy", "eps vs server", "eps vs model observers")
    for row in rows:
        data = row.json()
        cells = [data["epsilon against the server"], data["epsilon against who sees the models"]]
        table.add_row(
            data["placement"],
            data["defends against"],
            _percent(data["accuracy"]),
            *("infinite" if cell is None else f"{cell:.3g}" for cell in cells),
        )
    console.print(table)


Delta = Annotated[float, typer.Option(help="Delta, in (0, 1).")]
Rate = Annotated[float, typer.Option(help="Sampling rate q, in [0, 1].")]
Steps = Annotated[int, typer.Option(help="Number of releases T.")]
SamplerName = Annotated[str, typer.Option(help="poisson, without-replacement or none.")]
Relation = Annotated[str | None, typer.Option(help="add-remove or replace-one [default: the sampler's].")]


@app.command(help="Epsilon of a schedule of subsampled Gaussian releases, by one method or all.")
def account(
    sampling_rate: Rate,
    steps: Steps,
    noise_multiplier: Annotated[str, typer.Option(help="Noise multiplier z, or a CSV with one a step.")],
    delta: Delta,
    sampler: SamplerName = "poisson",
    relation: Relation = None,
    method: Annotated[str, typer.Option(help="pld, rdp, gdp-clt or all.")] = "all",
    as_json: AsJson = False,
) -> None:
    from fedpriv.accounting import METHODS, answers

    with _refusing():
        result = answers.account(
            sampling_rate=sampling_rate,
            steps=steps,
            noise_multiplier=_number_or_file("--noise-multiplier", noise_multiplier, steps),
            delta=delta,
            sampler=sampler,
            relation=relation or _default_relation(sampler),
            methods=list(METHODS) if method == "all" else [method],
        )
    if as_json:
        typer.echo(json.dumps(result))
        return
    from rich.table import Table

    table = Table("method", "epsilon", "lower bound", "kind", title=f"epsilon at delta {delta:g}")
    for name, cell in result["methods"].items():
        if "error" in cell:
            table.add_row(name, "-", "", cell["error"])
            continue
        table.add_row(name, _figure(cell["epsilon"]), _figure(cell.get("epsilon_lower")), cell["kind"])
    Console().print(table)


@app.command(help="The noise that makes a schedule spend a budget, and not more.")
def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")],
    delta: Delta,
    sampling_rate: Rate,
    steps: Steps,
    relative_noise: Annotated[
        str | None, typer.Option(help="CSV of relative noise r_t, one a step [default: constant].")
    ] = None,
    sampler: SamplerName = "poisson",
    relation: Relation = None,
    method: Annotated[str, typer.Option(help="pld, rdp or gdp-clt (an estimate).")] = "pld",
    as_json: AsJson = False,
) -> None:
    from fedpriv.accounting import answers

    with _refusing():
        noise = None
        if relative_noise is not None:
            noise = _numbers("--relative-noise", relative_noise, steps)
        result = answers.calibration(
            target=epsilon,
            delta=delta,
            sampling_rate=sampling_rate,
            steps=steps,
            relative_noise=noise,
            sampler=sampler,
            relation=relation or _default_relation(sampler),
            method=method,
        )
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(
        f"scale {result['scale']:.6g}: noise multiplier {result['noise_multiplier_first']:.6g} at the first "
        f"release, {result['noise_multiplier_last']:.6g} at the last; spends epsilon "
        f"{result['epsilon']:.6g} by {result['method']}"
    )


def _default_relation(sampler: str) -> str:
    return "replace-one" if sampler == "without-replacement" else "add-remove"


def _figure(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.4f}"


def _number_or_file(name: str, text: str, steps: int) -> float | list[float]:
    try:
        return float(text)
    except ValueError:
        return _numbers(name, text, steps)


def _numbers(name: str, path: str, steps: int) -> list[float]:
    from fedpriv.plan import read_numbers

    return read_numbers(name, path, steps)


@data_app.command("list", help="The data sets that there are, and which are at hand.")
def data_list() -> None:
    from rich.table import Table

    from fedpriv import data
    from fedpriv.data import catalogue

    cards = {card.name: card for card in catalogue.list_cards()}
    table = Table("data set", "at hand", "what it is", "licence")
    for name in data.names():
        card = cards.get(name)
        title = card.title if card else ""
        table.add_row(name, "yes" if _at_hand(name) else "no", title, card.licence if card else "")
    Console().print(table)
    typer.echo(f"data folder: {data.data_folder()}")


def _at_hand(name: str) -> bool:
    from fedpriv import data

    try:
        data.load(name)
    except data.DataError:
        return False
    return True


@data_app.command("fetch", help="Download a data set, verified against the SHA-256 of its card.")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from `fedpriv data list`.")],
    folder: Annotated[str | None, typer.Option(help="Data folder [default: $FEDPRIV_DATA].")] = None,
    optional: Annotated[bool, typer.Option("--optional", help="Also the files it works without.")] = False,
    sha256: Annotated[
        list[str] | None, typer.Option(metavar="FILE=DIGEST", help="Digest of a file the card lacks one for.")
    ] = None,
) -> None:
    from fedpriv.data import fetch as fetching

    with _refusing():
        digests = dict(_pair(text) for text in sha256 or [])
    with _refusing(code=1):
        typer.echo(fetching.fetch(name, folder, optional=optional, sha256=digests).summary)


def _pair(text: str) -> tuple[str, str]:
    name, equals, digest = text.partition("=")
    if not equals:
        raise _check.fail("--sha256", text, "be written FILE=DIGEST")
    return name, digest


@data_app.command("show", help="Draw a PNG grid of a data set's first training examples.")
def data_show(
    name: Annotated[str, typer.Argument(help="A name from `fedpriv data list`.")],
    out: Annotated[Path | None, typer.Option(help="PNG file [default: NAME.png].")] = None,
    count: Annotated[int, typer.Option(help="How many examples.")] = 64,
    first: Annotated[int, typer.Option(help="Skip this many training examples.")] = 0,
) -> None:
    import numpy as np

    from fedpriv import data
    from fedpriv.data import show

    with _refusing():
        _check.integer("--count", count, 1)
        _check.integer("--first", first)
        source = data.load(name)
        start = source.first + first
        written = show.save_grid(source, np.arange(start, start + count), out or Path(f"{name}.png"))
    typer.echo(f"{written}: {count} examples from index {start}")


def main() -> None:
    """The ``fedpriv`` command."""
    logging.basicConfig(level=logging.WARNING)
    app()


if __name__ == "__main__":
    main()
