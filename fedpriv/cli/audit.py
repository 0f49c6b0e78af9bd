"""``fedpriv audit``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv.cli.app import AsJson, OfSettings, app, refusing, say
from fedpriv.cli.progress import shown
from fedpriv.cli.simulate import ConfigFile, Seed, Settings, given
from fedpriv.config.schema import Config
from fedpriv.tasks.metrics import counted

if TYPE_CHECKING:
    from fedpriv.auditing.finding import Finding

_HELP = """Attack a run with these settings, and test whether it leaks more than its ledger claims.

A fair coin decides for each client (or example, by unit) whether it takes part as a canary. The strongest
adversary guesses which canaries took part. The run is in violation if more guesses are right than its ledger
allows, or if noise or cohorts are not the accounted ones; the exit code is then 1. Settings are those of
`fedpriv simulate`, at either level. Data, model and engine are used with --own-data only. --view chooses the
adversary: who sees all released answers (models), who sees the last model alone (last-model), the server that
sees each message, with secure aggregation each message of its protocol (server), or parties that collude
(parties).

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
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    with refusing():  # before the slow imports of a run
        config = Config.parse(given(config_file, settings, None, seed, False))
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

            check(config)
            finding = audit_own_data(config, make_engine, canaries, confidence, observe, view, runs)
        else:
            finding = run_audit(config, canaries, confidence, observe, view, runs)
    if picture is not None:
        with refusing():
            picture.write_bytes(finding.picture())
    if as_json:
        typer.echo(json.dumps(finding.json()))
    else:
        for line in _lines(config, finding):
            say(line)
    raise typer.Exit(1 if finding.violated else 0)


def _lines(config: Config, found: Finding) -> tuple[str, ...]:
    """The finding in sentences."""
    from fedpriv.report.notices import noise

    unit = f"{config.unit}s"
    planted = (
        f"of the run's own {unit} with a coin each" if found.own_data else f"canaries in place of {unit}"
    )
    surely = f"at {found.confidence:.10%}".rstrip("%").rstrip("0").rstrip(".") + " % confidence"
    if found.runs > 1:
        planted = f"runs, with a coin for one of the {unit} in each"
    cut = "" if found.stopped.complete else f" ({found.stopped.short})"
    verdict = f"VIOLATED: the run leaks more than its ledger says, {surely}"
    if not found.leaks:
        verdict = f"VIOLATED: there is {found.oddest}, {surely}"
    if not found.violated:
        verdict = f"consistent with its ledger, {surely}; an audit finds faults and proves no protection"
    return (
        "audit run, not for use: its model was trained "
        + ("without units that coins left out" if found.own_data else "on canaries"),
        f"{found.canaries:,} {planted}, {config.optimizer}, "
        f"{counted(found.releases, 'release')}{cut}, {noise(config.placement)}",
        f"the adversary: {found.view.sees}",
        f"claimed: epsilon {found.claimed:.4g} at delta {found.delta:.3g}; guesses can then be right "
        f"{found.allowed:.2%} of the time at most",
        f"observed: the best guesses were right {found.right / found.canaries:.2%} of the time "
        f"(p-value {found.p_value:.2g})",
        f"noise and cohorts: {found.oddest if found.irregular else 'as accounted'} "
        f"(p-value {found.noise_p_value:.2g})",
        _measured(found),
        f"attack at false positive rates of {_rates(found)}",
        f"proved by {'these runs' if found.runs > 1 else 'this run'} alone: epsilon is at least "
        f"{found.proved:.3g}, and at least {found.proved_by_curves:.3g} if the noise is the ledger's times "
        "one factor",
        verdict,
    )


def _rates(found: Finding) -> str:
    """The true positive rates at small false positive rates, and those that the claim allows."""
    rows = found.true_rates.items()
    return "; ".join(
        f"{rate:.1%}: {true:.2%} found, {most:.2%} allowed at most" for rate, (true, most) in rows
    )


def _measured(found: Finding) -> str:
    if 2 * found.right <= found.canaries or found.allowed == 1:
        return "measured: no epsilon, since guesses are no better than chance or could all be right"
    if math.isinf(found.measured):
        return f"measured: epsilon is at least {found.measured_least:.3g}; more canaries or rounds tell more"
    most = "any" if math.isinf(found.measured_most) else f"{found.measured_most:.3g}"
    return f"measured: epsilon {found.measured:.3g}, between {found.measured_least:.3g} and {most}"
