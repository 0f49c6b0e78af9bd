"""``fedpriv bench``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fedpriv import _check
from fedpriv.cli.app import AsJson, OfSettings, app, failing, print_table, refusing
from fedpriv.cli.simulate import ConfigFile, Settings, given, settings_help
from fedpriv.config import Config

_HELP = """Time a simulation's rounds on this machine by their parts, and say what would make them cheaper.

Takes the settings of `fedpriv simulate` and runs some rounds as it would, ledger and all. How long a cohort
takes tells how large it was: the figures are for whoever holds the data.

\b
Examples:
  fedpriv bench
  fedpriv bench --set model=mlp --set optimizer=dp2-rmsprop
  fedpriv bench --set clients=1000000000 --set sampling-rate=2.5e-7 --set actors=2 --rounds 100
"""


@app.command(cls=OfSettings, help=_HELP, epilog=settings_help())
def bench(
    config_file: ConfigFile = None,
    settings: Settings = None,
    rounds: Annotated[int, typer.Option(help="Rounds to measure.")] = 40,
    as_json: AsJson = False,
) -> None:
    from fedpriv.bench import PARTS, measure
    from fedpriv.simulate import check

    with refusing():
        config = Config.parse(given(config_file, settings, None, None, False))
        check(config)
        _check.integer("--rounds", rounds, minimum=1)
    with failing():
        figures = measure(config, rounds)
    if as_json:
        typer.echo(json.dumps({**asdict(figures), "overhead": figures.overhead}))
        return
    whole = figures.round
    rows = [
        (part, f"{1000 * figures.parts[part]:.2f}", f"{figures.parts[part] / whole:.0%}") for part in PARTS
    ]
    print_table(("part", "ms", "of a round"), [*rows, ("round", f"{1000 * whole:.2f}", "100%")])
    typer.echo(f"outside the clipped sum: {figures.overhead:.0%} of a round")
    typer.echo(
        f"an ordinary gradient over the expected cohort: {1000 * figures.ordinary:.2f} ms; clipped, in one "
        f"process: {1000 * figures.clipped:.2f} ms, {figures.clipped / figures.ordinary:.2f} times as much"
    )
    for line in figures.advice or ("nothing stands out",):
        typer.echo(f"- {line}")
