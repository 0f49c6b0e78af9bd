"""The summary of a run (report.json); :mod:`fedpriv.report.markdown` turns it into text.

``summarise`` uses only public configuration, charged events and metrics on the public test set.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedpriv._internal.version import __version__
from fedpriv.accounting.attack_odds import attack_odds
from fedpriv.accounting.events import Event
from fedpriv.accounting.head import Head
from fedpriv.accounting.methods.base import UnsupportedEvent
from fedpriv.config.builders import SCORED_ON
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated import availability
from fedpriv.federated.stop_reason import StopReason
from fedpriv.optimizers.user import name_of, settings_of
from fedpriv.report import privacy_statement
from fedpriv.report.adversaries import each_silo, views
from fedpriv.report.notices import NOT_PRIVATE, noise_cohorts, noise_to_signal, remark
from fedpriv.tasks import metrics as metrics_module

_UNTRAINED = "before round 1"
LEDGER_HEAD = "ledger head"
ODDS = "attack odds"
CHANCE = "accuracy of guessing"
NOISE_TO_SIGNAL = "noise to signal"
SIMULATED_COHORTS = "simulated noise of"
_MOST_RATIOS = 200  # of a schedule in a report


def summarise(
    plan: Plan,
    events: Sequence[Event],
    metrics: Sequence[Mapping[str, Any]],
    stopped: StopReason,
    silos: Mapping[str, Sequence[Event]] | None = None,
    resumed: Sequence[int] = (),
    absent: Sequence[Mapping[str, Any]] = (),
    untrained: Mapping[str, float | None] | None = None,
    head: Head | None = None,
    dimension: int | None = None,
    chance: float | None = None,
) -> dict[str, Any]:
    """The content of report.json.

    Args:
        plan: the run's plan.
        events: the charged events of the enforced guarantee.
        metrics: the run's metrics on the public test set, one record per evaluation.
        stopped: why the run ended.
        silos: each silo's charged events, if silos take private steps.
        resumed: the rounds after which the run was resumed.
        absent: the absences of nodes (:mod:`fedpriv.federated.availability`).
        untrained: the scores before round 1, where they are known.
        head: where the run's ledger ends.
        dimension: of the trained parameters, where it is known.
        chance: the accuracy of guessing on the public test set, where the score is an accuracy.
    """
    config = plan.config
    last = dict(metrics[-1]) if metrics else {}
    return {
        "remark": remark(config),
        "result": {
            **metrics_module.scores(last),
            "measured on": SCORED_ON[config.test_part],
            "rounds": last.get("round", 0),
            "stopped": stopped,
            "resumed after rounds": list(resumed),
            **({_UNTRAINED: dict(untrained)} if untrained else {}),
            CHANCE: chance,
        },
        "privacy": _privacy(plan, events, silos)
        | {availability.KEY: _absences(config, absent)}
        | {LEDGER_HEAD: head.to_json() if head else None}
        | {NOISE_TO_SIGNAL: _noise_to_signal(plan, dimension)},
        "reproducibility": {
            "seed": config.asked_seed,
            "note": NOT_PRIVATE if config.seed >= 0 else "all that is random from OS entropy",
        },
        "data set": config.dataset,
        "model": config.model,
        **({"loss": config.loss} if config.loss else {}),
        **({"initial weights": config.initial_weights} if config.initial_weights else {}),
        **_optimizer(plan),
        "averaging": config.averaging or None,
        "regulariser": None
        if config.regulariser == "none"
        else {"kind": config.regulariser, "lambda": config.regularisation},
        "versions": versions(),
    }


def _optimizer(plan: Plan) -> dict[str, Any]:
    """What ran; with its settings where it was an object, since config.toml cannot have them."""
    given = plan.optimizer_object
    if given is None:
        return {"optimizer": plan.config.optimizer}
    settings = settings_of(given)
    return {"optimizer": name_of(given), **({"optimizer settings": settings} if settings else {})}


def described_optimizer(summary: Mapping[str, Any]) -> str:
    """The optimizer of a report, with its settings where the report has them."""
    settings = summary.get("optimizer settings", {})
    return ", ".join([summary["optimizer"], *(f"{name}={value}" for name, value in settings.items())])


def _privacy(
    plan: Plan, events: Sequence[Event], silos: Mapping[str, Sequence[Event]] | None
) -> dict[str, Any]:
    config, budget = plan.config, plan.budget
    return {
        "level": config.level,
        "silos": _silos(plan, silos) if plan.by_silo else None,
        "unit": privacy_statement.unit(plan),
        "units": plan.units,
        "relation": _relation(events, plan),
        "sampler": privacy_statement.sampling(plan),
        "placement": config.placement,
        SIMULATED_COHORTS: noise_cohorts(config) if config.simulates_noise else None,
        "trust": privacy_statement.trust(config),
        "budget": None
        if budget is None
        else {"epsilon": budget.epsilon, "delta": budget.delta, "held by": config.accounting},
        "releases": len(events),
        "noise multiplier": {
            "first": events[0].noise_multiplier if events else None,
            "last": events[-1].noise_multiplier if events else None,
        },
        "fewest replies": plan.mechanism.placement.min_replies,
        "max participations": _participations(plan, events),
        "views": views(plan, events, silos),
        ODDS: _odds(plan, events),
        "not covered": privacy_statement.not_covered(plan),
    }


def _odds(plan: Plan, events: Sequence[Event]) -> dict[str, Any] | None:
    """Bounds for every attack on one unit, by what was charged; None where no certified bound is known."""
    if plan.budget is None or not events or plan.config.simulates_noise:
        return None
    try:
        odds = attack_odds(plan.of_worst_client(events))
    except UnsupportedEvent:
        return None
    return {"right": odds.accuracy, "found": {str(rate): bound for rate, bound in odds.found.items()}}


def _noise_to_signal(plan: Plan, dimension: int | None) -> list[list[float]] | None:
    """[release, :func:`fedpriv.report.notices.noise_to_signal`] wherever it changes, and of the last release;
    None where it is not known. Of a long schedule it has equally spaced releases."""
    ratios = noise_to_signal(plan, dimension) if dimension else []
    if not ratios:
        return None
    changes = [n for n, ratio in enumerate(ratios) if n == 0 or ratio != ratios[n - 1]]
    if len(changes) > _MOST_RATIOS:
        changes = changes[:: math.ceil(len(changes) / _MOST_RATIOS)]
    return [[n + 1, ratios[n]] for n in dict.fromkeys([*changes, len(ratios) - 1])]


def versions() -> dict[str, str]:
    """The versions of this package, of Python and of the libraries that its numbers depend on."""
    names = ("torch", "numpy", "scipy", "flwr", "ray", "dp-accounting")
    return {
        "fedpriv": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _participations(plan: Plan, events: Sequence[Event]) -> int | None:
    """The largest number of releases that a client can have taken part in, under local noise."""
    if plan.max_participations is None or plan.capped:
        return plan.max_participations
    return len(events)


def _silos(plan: Plan, silos: Mapping[str, Sequence[Event]] | None) -> dict[str, Any]:
    config = plan.config
    sizes = config.silo_sizes
    found = {
        "number": config.clients,
        "examples of each": config.examples_per_client,
        "private steps a round": config.silo_steps,
    }
    if config.unequal_silos:
        found |= {"smallest": int(sizes.min()), "largest": int(sizes.max())}
    if len(plan.schedules) == 1 or silos is None or plan.budget is None:
        return found
    return {**found, "epsilon of each": each_silo(plan, silos)}


def _absences(config: Config, absent: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """The absences; None if the privacy unit is a client, since they are then private."""
    return list(absent) if config.privacy_unit.in_silos else None


def _relation(events: Sequence[Event], plan: Plan) -> str:
    event = events[0] if events else plan.mechanism.event(1.0)
    return event.relation


def ended_on_its_own(result: Mapping[str, Any]) -> bool:
    """Whether the run ended on its own and was never resumed, so that nobody stopped it because of
    results.
    """
    return StopReason(result["stopped"]).complete and not result["resumed after rounds"]


def round_0(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One record as those of metrics.jsonl, of the public model before its first release; none where a report
    has no such scores, as those of version 0.1.0."""
    scores = summary["result"].get(_UNTRAINED)
    return [{"round": 0, **scores, "epsilon": 0.0}] if scores else []


def enforced_guarantee(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The enforced guarantee of a report: {"against", "delta", "epsilon", "kind", ...}.

    It is the view that gates the budget, by the accounting method of the budget. It is {} if there was no
    noise or no release.
    """
    privacy = summary["privacy"]
    for view in privacy["views"]:
        if view["gates the budget"]:
            cell: dict[str, Any] = view["epsilon"][privacy["budget"]["held by"]]
            return {"against": view["against"], "delta": view["delta"], **cell}
    return {}
