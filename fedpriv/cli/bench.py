"""``fedpriv bench``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, OfSettings, RayAddress, app, print_table, refusing, say
from fedpriv.cli.progress import shown
from fedpriv.cli.simulate import ConfigFile, Settings, given, require_ray
from fedpriv.config.schema import Config
from fedpriv.tasks.metrics import counted

if TYPE_CHECKING:
    from fedpriv.bench import Figures

_HELP = """Measure how long each part of a simulated round takes on this machine, and suggest faster settings.

Settings are those of `fedpriv simulate`. The rounds are run as in a simulation, with a ledger. The time of a
round reveals the size of its cohort: show the figures only to those who may see the data.

\b
Examples:
  fedpriv bench
  fedpriv bench --set model=mlp --set optimizer=dp2-rmsprop
  fedpriv bench --set clients=1000000000 --set sampling-rate=2.5e-7 \\
                --set actors=2 --rounds 100
"""


@app.command(cls=OfSettings, help=_HELP, short_help="Measure the parts of a round on this machine.")
def bench(
    config_file: ConfigFile = None,
    settings: Settings = None,
    rounds: Annotated[int, typer.Option(help="Rounds to measure.")] = 40,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    with refusing():  # before the slow imports of a run
        config = Config.parse(given(config_file, settings, None, None, False))
        require_ray(ray_address, config)
        validation.integer("--rounds", rounds, minimum=1)
    with refusing(), shown("loading data", err=True):
        from fedpriv.bench import PARTS, WARM, measure
        from fedpriv.simulation.run import check

        check(config)
    every = rounds + WARM
    with refusing(1), shown("first round", err=True, still=True) as bar:

        def observe(done: int) -> None:
            bar.advance(done, every, f"round {done}/{every}")
            if done == every:
                bar.wait("timing evaluations and gradients")

        figures = measure(config, rounds, observe)
    if as_json:
        typer.echo(json.dumps({"parts": figures.parts, **asdict(figures), "overhead": figures.overhead}))
        return
    whole = figures.round
    rows = [(part, f"{1000 * figures.parts[part]:.2f}", f"{figures.shares[part]:.0%}") for part in PARTS]
    print_table(("part", "ms", "of a round"), [*rows, ("round", f"{1000 * whole:.2f}", "100%")])
    say(f"Outside the clipped sum: {figures.overhead:.0%} of a round.")
    for line in _beside(config, figures):
        say(line)
    for line in figures.advice or ("no part stands out",):
        say(f"- {line}")


def _beside(config: Config, figures: Figures) -> Iterator[str]:
    """Evaluations, throughput and memory, and what clipping costs, in sentences."""
    each, compared = figures.evaluation / config.evaluate_every, figures.compared
    yield (
        f"An evaluation with its files takes {1000 * figures.evaluation:.2f} ms every "
        f"{config.evaluate_every} rounds, which is {1000 * each:.2f} ms a round more."
    )
    who = counted(figures.actors, "actor") if figures.actors else "this process"
    memory = f"{figures.memory / 2**20:,.0f} MiB here"
    if figures.actors:
        memory += f", {figures.actors_memory / 2**20:,.0f} MiB in actors"
    yield (
        f"{figures.examples_per_second:,.0f} examples/s on {figures.device} by {who} with "
        f"{counted(figures.threads, 'thread')}; peak memory {memory}."
    )
    yield (
        f"{compared.examples:,} examples in one process: the ordinary gradient takes "
        f"{1000 * compared.ordinary:.2f} ms, the clipped sum {1000 * compared.clipped:.2f} ms, which is "
        f"{compared.clipped / compared.ordinary:.2f} times as long."
    )
