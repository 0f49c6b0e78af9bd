"""``fedpriv account`` and ``fedpriv calibrate``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedpriv.cli.app import AsJson, app, print_table, refusing

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
    method: Annotated[str, typer.Option(help="pld, rdp, gdp-clt, tcdp, zcdp, advanced or all.")] = "all",
    as_json: AsJson = False,
) -> None:
    from fedpriv.accounting import METHODS, answers

    with refusing():
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
    rows = [
        [name, "-", "", cell["error"]]
        if "error" in cell
        else [name, _figure(cell["epsilon"]), _figure(cell.get("epsilon_lower")), cell["kind"]]
        for name, cell in result["methods"].items()
    ]
    title = f"epsilon at delta {delta:g}"
    print_table(("method", "epsilon", "lower bound", "kind"), rows, title)


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
    method: Annotated[str, typer.Option(help="As of `fedpriv account`; gdp-clt is an estimate.")] = "pld",
    as_json: AsJson = False,
) -> None:
    from fedpriv.accounting import answers

    with refusing():
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
        f"{_figure(result['epsilon'])} by {result['method']}"
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
