"""``fedpriv audit``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpriv._internal import validation
from fedpriv._internal.files import quoted
from fedpriv._internal.validation import FedprivError
from fedpriv.cli.app import AsJson, OfSettings, app, refusing, say
from fedpriv.cli.progress import shown
from fedpriv.cli.simulate import ConfigFile, Seed, Settings, given
from fedpriv.config.schema import Config

_HELP = """Attack a run with these settings, and test whether it leaks more than its ledger claims.

A fair coin decides for each client (or example, by unit) whether it takes part as a canary. The strongest
adversary guesses which canaries took part. The run is in violation if more guesses are right than its ledger
allows, or if noise or cohorts are not the accounted ones; the exit code is then 1. Settings are those of
`fedpriv simulate`, at either level. Data, model and engine are used with --own-data only. --view chooses the
adversary: who sees all released answers (models), who sees the last model alone (last-model), the server that
sees each message, with secure aggregation each message of its protocol (server), or parties that collude
(parties). --deployment audits a deployment whose nodes are all yours, with the settings of `deploy run`.

\b
Examples:
  fedpriv audit
  fedpriv audit --set optimizer=dp-srm --set epsilon=8 \\
                --set rounds=20 --set sampling-rate=0.05
"""


@app.command(cls=OfSettings, help=_HELP, short_help="Test whether a run leaks more than it claims.")
def audit(
    config_file: ConfigFile = None,
    settings: Settings = None,
    canaries: Annotated[
        int,
        typer.Option(
            help="Number of canaries; 0: one for each unit, at most 100,000 (5,000 with local steps, 2,000 "
            "where each client's message is seen, 200 of your own units). More canaries detect smaller leaks."
        ),
    ] = 0,
    own_data: Annotated[
        bool,
        typer.Option(
            "--own-data",
            help="Audit the run's own data, model and engine: coins leave out, or replace, some units.",
        ),
    ] = False,
    view: Annotated[
        str,
        typer.Option(
            help="What the adversary sees: models, last-model, server or parties; auto: server under local "
            "noise, else models."
        ),
    ] = "auto",
    runs: Annotated[
        int,
        typer.Option(help="Repeat a small run so often, with a guess about one unit each time; 1: one run."),
    ] = 1,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the verdict and of each bound, in (0, 1).")
    ] = 0.99,
    picture: Annotated[
        Path | None, typer.Option(help="A PNG file for the attack's curve beside the claim's.")
    ] = None,
    flower_app: Annotated[
        Path | None,
        typer.Option(
            help="Write an app to this folder that audits own data on Flower's engine or your SuperNodes by "
            "`flwr run`. Nothing is run."
        ),
    ] = None,
    deployment: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Audit a deployment (`fedpriv deploy`) on its server's machine, as the owner of all nodes.",
        ),
    ] = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    if deployment is not None:
        with refusing():
            _require_plain(own_data, runs, picture, flower_app)
            table = given(config_file, settings, None, seed, False)
        return _audit_deployment(deployment, table, canaries, view, confidence, as_json)
    with refusing():  # before the slow imports of a run
        config = Config.parse(given(config_file, settings, None, seed, False))
        if flower_app is not None:
            return _write_app(flower_app, config, canaries, view, confidence, runs)
    with refusing(), shown("loading data and calibrating noise", err=True) as bar:
        from fedpriv.auditing.auditor import audit as run_audit

        rounds = config.rounds

        def observe(done: int) -> None:
            bar.advance(done, rounds, f"round {done}/{rounds}")
            if done == rounds:
                bar.wait("computing bounds")

        if own_data:
            from fedpriv.auditing.auditor import audit_own_data
            from fedpriv.simulation.run import check, make_engine

            check(config, audited=True)
            finding = audit_own_data(config, make_engine, canaries, confidence, observe, view, runs)
        else:
            finding = run_audit(config, canaries, confidence, observe, view, runs)
    if picture is not None:
        with refusing():
            picture.write_bytes(finding.picture())
    if as_json:
        typer.echo(json.dumps(finding.json()))
    else:
        from fedpriv.auditing.statement import lines

        for line in lines(config, finding):
            say(line)
    raise typer.Exit(1 if finding.violated else 0)


def _require_plain(own_data: bool, runs: int, picture: Path | None, flower_app: Path | None) -> None:
    """Raises ArgumentError for an option that an audit of a deployment does not have."""
    given = {"own-data": own_data or None, "runs": None if runs == 1 else runs}
    for name, value in {**given, "picture": picture, "flower-app": flower_app}.items():
        if value is not None:
            raise validation.fail(f"--{name}", value, "be left out with --deployment")


def _audit_deployment(
    folder: Path, table: Mapping[str, Any], canaries: int, view: str, confidence: float, as_json: bool
) -> None:
    """Audits a run on a deployment, and exits with 1 if it is in violation or fails."""
    with refusing():
        from fedpriv.deployment import audits, runs
        from fedpriv.deployment.folders import read_server
        from fedpriv.simulation import nodes_audit

        server, owners = read_server(folder), audits.owners(folder)
        config = runs.checked(server, {**table, "audit": True}, audit=True)
        place = server.folder / audits.FOLDER
        source = nodes_audit.prepare(place, config, owners, canaries, view, confidence)
    run = 0
    try:
        with refusing(1):
            run = audits.start(server, {**table, "audit": True}, source)
            say(
                f"run {run} audits the deployment, and is charged to the nodes' ledgers like any run",
                err=True,
            )
            audits.wait(server, run, (lambda line: None) if as_json else typer.echo)
    except KeyboardInterrupt:
        if run:
            say(f"run {run} goes on; `fedpriv deploy stop {quoted(folder)} {run}` ends it", err=True)
        raise typer.Exit(130) from None
    finally:
        found = nodes_audit.finish(place)
    if found is None:
        with refusing(1):
            raise FedprivError(f"the audit wrote no finding; `flwr log {run}` and the nodes' logs say why")
    if as_json:
        typer.echo(json.dumps(found))
    raise typer.Exit(1 if found["violated"] else 0)


def _write_app(folder: Path, config: Config, canaries: int, view: str, confidence: float, runs: int) -> None:
    """Writes the app that audits this configuration, and says how to run it."""
    from fedpriv.deployment import flower_app
    from fedpriv.simulation import audit_app

    if runs != 1:
        raise validation.fail("runs", runs, "be 1 in a Flower app", "each run of the app is one")
    config = audit_app.prepared(config, canaries, view, confidence)
    server = audit_app.source(canaries, view, confidence)
    flower_app.write(folder, config, server)
    say(f"an app that audits this run is in {folder}; start it with `flwr run {folder}`")
