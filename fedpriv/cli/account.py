"""``fedpriv account`` and ``fedpriv calibrate``."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedpriv._internal import validation
from fedpriv.accounting import METHODS
from fedpriv.accounting.answers import SAMPLINGS, sampling_of
from fedpriv.accounting.events import Sampling
from fedpriv.cli.app import AsJson, app, print_table, refusing, say
from fedpriv.tasks.metrics import counted

if TYPE_CHECKING:
    from fedpriv.accounting import Event
    from fedpriv.accounting.totals import Total

_T = TypeVar("_T")

_TITLE = 90  # characters in a line of a picture's title

_BOUNDS = ", ".join(METHODS.only(lambda method: method.kind == "bound"))
_ESTIMATES = ", ".join(METHODS.only(lambda method: method.kind == "estimate"))

Delta = Annotated[float, typer.Option(help="Delta, in (0, 1).")]
Rate = Annotated[float | None, typer.Option(help="Sampling rate q, in [0, 1].", show_default=False)]
Steps = Annotated[
    int | None,
    typer.Option(help="Number of releases T [default: the length of the CSV].", show_default=False),
]
Noise = Annotated[
    str | None,
    typer.Option(
        help="Noise multiplier z, or a CSV with one number a step. z is the standard deviation of the noise "
        "over the clip norm, under both relations.",
        show_default=False,
    ),
]
_SAMPLER_WORDS = (name if name == kind else f"{name} (or {kind})" for name, kind in SAMPLINGS.items())
SamplerName = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(_SAMPLER_WORDS)} [default: poisson].",
        show_default=False,
    ),
]
Relation = Annotated[str | None, typer.Option(help="add-remove or replace-one [default: by the sampler].")]

_ACCOUNT_HELP = f"""Compute epsilon of subsampled Gaussian releases, from a schedule or from runs' ledgers.

The methods {_BOUNDS} give upper bounds; {_ESTIMATES} gives an ESTIMATE, which can be
several times too small. A ledger is verified first: a changed line is refused with its number, and a missing
end by its head, the file beside it, and by its anchor. Several ledgers give the total of runs on the same
data, with what it assumes. Where releases have both relations, all count under add-remove; with fixed-size
cohorts among them, under replace-one.

\b
Examples:
  fedpriv account --sampling-rate 0.01 --steps 1000 --noise-multiplier 1 \\
                  --delta 1e-5
  fedpriv account --ledger runs/demo --plot epsilon.png
  fedpriv account --ledger runs/a --ledger runs/b --delta 1e-6
"""


@app.command(help=_ACCOUNT_HELP, short_help="Compute epsilon of a schedule or a ledger.")
def account(
    delta: Annotated[
        float | None,
        typer.Option(help="Delta, in (0, 1) [default: that of the ledgers' runs].", show_default=False),
    ] = None,
    sampling_rate: Rate = None,
    steps: Steps = None,
    noise_multiplier: Noise = None,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run's ledger or folder, instead of a schedule. Repeat it for the total of runs on "
            "the same data.",
            show_default=False,
        ),
    ] = None,
    anchor: Annotated[
        Path | None,
        typer.Option(
            help="The file of the ledger's anchor [default: where the ledger says].", show_default=False
        ),
    ] = None,
    anchor_command: Annotated[
        str | None,
        typer.Option(help="The command of the ledgers' anchor (ledger-anchor-command).", show_default=False),
    ] = None,
    sampler: SamplerName = None,
    relation: Relation = None,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)} or all.")] = "all",
    plot: Annotated[
        Path | None,
        typer.Option(
            help="PNG file to draw of epsilon against releases.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from fedpriv.accounting import api, totals
    from fedpriv.cli.ledgers import as_json_data, delta_of, print_ledgers, title

    total: Total | None = None
    with refusing():
        validation.choice("--method", method, (*METHODS, "all"))
        methods, of_what = list(METHODS) if method == "all" else [method], ""
        if not ledger:
            _require_ledger(anchor=anchor, anchor_command=anchor_command)
            if delta is None:
                raise validation.ArgumentError("--delta is missing; a schedule needs one, such as 1e-5")
            events = _schedule(
                sampling_rate, steps, noise_multiplier, sampling_of(sampler, "--sampler"), relation
            )
        elif (sampling_rate, steps, noise_multiplier, sampler, relation) == (None,) * 5:
            total = totals.of_files(ledger, anchor, anchor_command, "--ledger")
            events, of_what = list(total.events), title(total)
            delta = delta_of(ledger) if delta is None else delta
        else:
            raise validation.fail("--ledger", str(ledger[0]), "be given without a schedule")
        if total is None:
            result = api.of_events(events, delta, methods)
        else:
            cells = api.table(methods, functools.partial(total.epsilon, delta))
            result = {"delta": delta, "methods": cells, **as_json_data(total)}
        if plot is not None:
            _plot(plot, events, delta, methods, "; ".join(total.notes) if total else "")
    if as_json:
        typer.echo(json.dumps(result))
        return
    _print(result, f"epsilon at delta {delta:g}{of_what}")
    if total is not None:
        print_ledgers(total)
    if plot is not None:
        typer.echo(f"{plot}: epsilon against releases")


def _require_ledger(**options: object) -> None:
    """Raises ArgumentError for an option that needs a ledger."""
    for key, value in options.items():
        if value is not None:
            raise validation.fail(f"--{key.replace('_', '-')}", str(value), "be given with --ledger")


def _schedule(
    rate: float | None, steps: int | None, noise: str | None, sampler: Sampling, relation: str | None
) -> list[Event]:
    from fedpriv.accounting import api

    multipliers = _number_or_file("--noise-multiplier", _given("--noise-multiplier", noise), steps)
    steps = _steps(steps, multipliers)
    relation = relation or sampler.relation
    return api.schedule(_rate(rate, sampler), steps, multipliers, sampler, relation)


def _plot(path: Path, events: Sequence[Event], delta: float, methods: Sequence[str], notes: str) -> None:
    from fedpriv._internal.files import atomic
    from fedpriv.accounting import plots

    picture = plots.draw(plots.curves(events, delta, methods), fill(notes, _TITLE))
    with atomic(path) as file:
        file.write(picture)


def _print(result: dict[str, Any], title: str) -> None:
    rows = [
        [name, "-", "", cell["error"]]
        if "error" in cell
        else [name, _figure(cell["epsilon"]), _figure(cell.get("epsilon_lower")), cell["kind"]]
        for name, cell in result["methods"].items()
    ]
    print_table(("method", "epsilon", "lower bound", "kind"), rows, title)


_CALIBRATE_HELP = """Find the noise by which a schedule spends a budget, or its number of steps, or its rate.

\b
Examples:
  fedpriv calibrate --epsilon 1 --delta 1e-5 --sampling-rate 0.01 --steps 1000
  fedpriv calibrate --solve-for steps --noise-multiplier 1 \\
                    --epsilon 1 --delta 1e-5 --sampling-rate 0.01
  fedpriv calibrate --solve-for sampling-rate --noise-multiplier 1 \\
                    --epsilon 1 --delta 1e-5 --steps 1000
"""


@app.command(help=_CALIBRATE_HELP, short_help="Find the noise that spends a budget.")
def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")],
    delta: Delta,
    sampling_rate: Rate = None,
    steps: Steps = None,
    relative_noise: Annotated[
        str | None, typer.Option(help="CSV of relative noise r_t, one number a step [default: constant].")
    ] = None,
    solve_for: Annotated[str, typer.Option(help="What to find: noise, steps or sampling-rate.")] = "noise",
    noise_multiplier: Noise = None,
    sampler: SamplerName = None,
    relation: Relation = None,
    method: Annotated[
        str, typer.Option(help=f"A method of `fedpriv account`; {_ESTIMATES} is an estimate.")
    ] = "pld",
    as_json: AsJson = False,
) -> None:
    from fedpriv.accounting import api

    with refusing():
        drawn = sampling_of(sampler, "--sampler")
        kind: dict[str, Any] = {
            "target": epsilon,
            "delta": delta,
            "method": validation.choice("--method", method, METHODS),
            "sampler": drawn,
            "relation": relation or drawn.relation,
        }
        validation.choice("--solve-for", solve_for, ("noise", "steps", "sampling-rate"))
        if solve_for == "noise":
            _absent("--noise-multiplier", noise_multiplier, solve_for)
            noise = None if relative_noise is None else _numbers("--relative-noise", relative_noise, steps)
            steps = _steps(steps, noise)
            rate = _rate(sampling_rate, drawn)
            result = api.calibration(**kind, sampling_rate=rate, steps=steps, relative_noise=noise)
        elif solve_for == "steps":
            _absent("--steps", steps, solve_for)
            _absent("--relative-noise", relative_noise, solve_for)
            multiplier = _number("--noise-multiplier", _given("--noise-multiplier", noise_multiplier))
            rate = _rate(sampling_rate, drawn)
            result = api.solve_steps(**kind, sampling_rate=rate, noise_multiplier=multiplier)
        else:
            _absent("--sampling-rate", sampling_rate, solve_for)
            _absent("--relative-noise", relative_noise, solve_for)
            if not drawn.samples:
                raise validation.fail("--sampler", sampler, "draw cohorts where --solve-for is sampling-rate")
            multipliers = _number_or_file(
                "--noise-multiplier", _given("--noise-multiplier", noise_multiplier), steps
            )
            steps = _steps(steps, multipliers)
            result = api.solve_rate(**kind, steps=steps, noise_multiplier=multipliers)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        say(_sentence(result))


def _sentence(result: dict[str, Any]) -> str:
    if "steps" in result:
        found = counted(result["steps"], "release")
        if not result["steps"]:
            return f"{found}: a single one would pass the budget, by {result['method']}"
    elif "sampling_rate" in result:
        found = f"sampling rate {result['sampling_rate']:.6g}"
    else:
        found = f"noise multiplier {result['noise_multiplier_first']:.6g}"
        if result["noise_multiplier_last"] != result["noise_multiplier_first"]:
            last = result["noise_multiplier_last"]
            found = f"scale {result['scale']:.6g}: {found} at the first release, {last:.6g} at the last"
    return f"{found}; spends epsilon {_figure(result['epsilon'])} by {result['method']}"


def _given(name: str, value: _T | None) -> _T:
    if value is None:
        raise validation.ArgumentError(f"{name} is missing; a schedule needs it")
    return value


def _steps(steps: int | None, numbers: float | list[float] | None) -> int:
    """The number that was given, or as many as a file holds."""
    return len(numbers) if steps is None and isinstance(numbers, list) else _given("--steps", steps)


def _absent(name: str, value: object, solve_for: str) -> None:
    if value is not None:
        raise validation.fail(name, value, f"be left out where --solve-for is {solve_for}")


def _rate(rate: float | None, sampler: Sampling) -> float:
    if not sampler.samples and rate not in (None, 1):
        raise validation.fail("--sampling-rate", rate, "be left out, or 1, where everyone takes part")
    return 1.0 if not sampler.samples and rate is None else _given("--sampling-rate", rate)


def _figure(value: float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.4f}" if value == 0 or value >= 0.01 else f"{value:.3g}"


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise validation.fail(name, text, "be a number") from None


def _number_or_file(name: str, text: str, steps: int | None) -> float | list[float]:
    try:
        return float(text)
    except ValueError:
        return _numbers(name, text, steps)


def _numbers(name: str, path: str, steps: int | None) -> list[float]:
    from fedpriv._internal.files import read_numbers

    return read_numbers(name, path, steps)
