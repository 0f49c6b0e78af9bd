"""``fedpriv train``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.cli.app import AsJson, OfSettings, app, refusing
from fedpriv.cli.simulate import ConfigFile, Out, Overwrite, Seed, Settings, given, new, run_one
from fedpriv.config.schema import Config

if TYPE_CHECKING:
    from fedpriv.cli.simulate import Job

_HELP = """Train without federation: one party holds all examples, and the privacy unit is an example.

This is the baseline of a federated run, as in the papers' tables. It takes any model, data set and optimizer
of `fedpriv simulate`, and leaves the same ledger, report and output folder. The party that holds the data
adds the noise. It trains on the whole training set. With examples-per-client=N it trains on N examples;
endless data sets need that setting. The settings unit, clients, partition, work and engine are fixed.

With placement=none and clip-norm=inf the optimizer runs without privacy: the upper limit.

\b
Examples:
  fedpriv train --set dataset=digits --set sampling-rate=0.1 --set epsilon=8
  fedpriv train --set dataset=infinite-digits --set examples-per-client=50000
  fedpriv train --set dataset=digits --set sampling-rate=0.1 \\
                --set placement=none --set clip-norm=inf
"""


@app.command("train", cls=OfSettings, help=_HELP, short_help="Train without federation, as a baseline.")
def train(
    config_file: ConfigFile = None,
    settings: Settings = None,
    out: Out = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    with refusing():  # before the slow imports of a run
        values = given(config_file, settings, out, seed, overwrite)
        Config.parse(values)

    def prepared() -> Job:
        from fedpriv.config.centralised import resolve

        return new(resolve(values))

    run_one(prepared, as_json)
