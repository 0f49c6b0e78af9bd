"""What an audit found, in sentences."""

from __future__ import annotations

import math

from fedpriv.auditing.finding import Finding
from fedpriv.config.schema import Config
from fedpriv.report.notices import noise
from fedpriv.tasks.metrics import counted


def lines(config: Config, found: Finding) -> tuple[str, ...]:
    """The finding in sentences, the last of which is the verdict."""
    unit = f"{config.unit}s"
    guessed = (
        f"of the run's own {unit} with a coin each" if found.own_data else f"canaries in place of {unit}"
    )
    surely = f"at {found.confidence:.10%}".rstrip("%").rstrip("0").rstrip(".") + " % confidence"
    if found.planted:
        guessed = f"canaries planted among the run's own {unit}"
    if found.runs > 1:
        of = "planted canaries" if found.planted else unit
        guessed = f"runs, with a coin for one of the {of} in each"
    cut = "" if found.stopped.complete else f" ({found.stopped.short})"
    verdict = f"VIOLATED: the run leaks more than its ledger says, {surely}"
    if not found.leaks:
        verdict = f"VIOLATED: there is {found.oddest}, {surely}"
    if not (found.leaks or found.irregular):
        verdict = "VIOLATED: nodes answered what their own ledgers do not say"
    if not found.violated:
        verdict = f"consistent with its ledger, {surely}; an audit finds faults and proves no protection"
    return (
        "audit run, not for use: its model was trained "
        + ("without units that coins left out" if found.own_data and not found.planted else "on canaries"),
        f"{found.canaries:,} {guessed}, {config.optimizer}, "
        f"{counted(found.releases, 'release')}{cut}, {noise(config.placement)}",
        f"the adversary: {found.view.sees}",
        f"claimed: epsilon {found.claimed:.4g} at delta {found.delta:.3g}; guesses can then be right "
        f"{found.allowed:.2%} of the time at most, on average",
        f"observed: the best guesses were right {found.right / found.canaries:.2%} of the time "
        f"(p-value {found.p_value:.2g}{'' if found.leaks else ': no more than by chance'})",
        f"noise and cohorts: {found.oddest if found.irregular else 'as accounted'} "
        f"(p-value {found.noise_p_value:.2g})",
        _measured(found),
        f"attack at false positive rates of {_rates(found)}",
        f"proved by {'these runs' if found.runs > 1 else 'this run'} alone: epsilon is at least "
        f"{found.proved:.3g}, and at least {found.proved_by_curves:.3g} if the noise is the ledger's times "
        "one factor",
        *_ledgers(found),
        verdict,
    )


def _rates(found: Finding) -> str:
    """The true positive rates at small false positive rates, and those that the claim allows."""
    rows = found.true_rates.items()
    return "; ".join(
        f"{rate:.1%}: {true:.2%} found, {most:.2%} allowed on average" for rate, (true, most) in rows
    )


def _ledgers(found: Finding) -> tuple[str, ...]:
    if found.wrong_ledgers is None:
        return ()
    return (f"the nodes' own ledgers: {'; '.join(found.wrong_ledgers) or 'charged what was answered'}",)


def _measured(found: Finding) -> str:
    if 2 * found.right <= found.canaries or found.allowed == 1:
        return "measured: no epsilon, since guesses are no better than chance or could all be right"
    if math.isinf(found.measured):
        return f"measured: epsilon is at least {found.measured_least:.3g}; more canaries or rounds tell more"
    most = "any" if math.isinf(found.measured_most) else f"{found.measured_most:.3g}"
    return f"measured: epsilon {found.measured:.3g}, between {found.measured_least:.3g} and {most}"
