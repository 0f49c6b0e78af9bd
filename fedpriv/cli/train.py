"""``fedpriv train``."""

from __future__ import annotations

from fedpriv.cli.app import AsJson, OfSettings, app
from fedpriv.cli.simulate import (
    ConfigFile,
    Out,
    Overwrite,
    Seed,
    Settings,
    given,
    new,
    run_one,
)

_HELP = """Train without federation: one party holds all examples, and one example is the privacy unit.

The baseline of a federated run, as in the papers' tables: any model, data set and optimizer of
`fedpriv simulate`, the same ledger, report and output folder. Whoever holds the data adds the noise.
The whole training set is used; examples-per-client=N takes N examples, and is needed where the data set has
no end. The keys unit, clients, partition, work and engine are set already.

placement=none with clip-norm=inf is the optimizer without privacy: the upper limit.

\b
Examples:
  fedpriv train --set dataset=digits --set sampling-rate=0.1 --set epsilon=8
  fedpriv train --set dataset=infinite-digits --set examples-per-client=50000
  fedpriv train --set dataset=digits --set sampling-rate=0.1 --set placement=none --set clip-norm=inf
"""


@app.command(cls=OfSettings, help=_HELP)
def train(
    config_file: ConfigFile = None,
    settings: Settings = None,
    out: Out = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    from fedpriv.config.centralised import settle

    run_one(lambda: new(settle(given(config_file, settings, out, seed, overwrite))), as_json)
