"""What a run's epsilon means, in numbers; in words in :mod:`fedpriv.report.markdown`.

``summarise`` makes report.json from public configuration, charged events and public test-set metrics alone.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedpriv import __version__
from fedpriv.accounting.events import Event
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated import availability
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report import privacy_statement
from fedpriv.report.adversaries import views
from fedpriv.report.notices import NOT_PRIVATE, remark
from fedpriv.tasks import metrics as metrics_module


def summarise(
    plan: Plan,
    events: Sequence[Event],
    metrics: Sequence[Mapping[str, Any]],
    stopped: StopReason,
    silos: Mapping[str, Sequence[Event]] | None = None,
    resumed: Sequence[int] = (),
    absent: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Everything report.json holds. ``events`` are the gate's, as charged; ``silos`` are each silo's, at the
    client level; ``resumed`` are the rounds after which the run was taken up again; ``absent`` are its
    absences (:mod:`fedpriv.federated.availability`)."""
    config = plan.config
    last = dict(metrics[-1]) if metrics else {}
    return {
        "remark": remark(config),
        "result": {
            **metrics_module.scores(last),
            "measured on": "public test set",
            "rounds": last.get("round", 0),
            "stopped": stopped,
            "resumed after rounds": list(resumed),
        },
        "privacy": _privacy(plan, events, silos) | {availability.KEY: _absences(config, absent)},
        "reproducibility": {
            "seed": config.asked_seed,
            "note": NOT_PRIVATE if config.seed >= 0 else "all that is random from OS entropy",
        },
        "data set": config.dataset,
        "model": config.model,
        "initial weights": config.initial_weights or None,
        "optimizer": plan.optimizer_name,
        "averaging": config.averaging or None,
        "regulariser": None
        if config.regulariser == "none"
        else {"kind": config.regulariser, "lambda": config.regularisation},
        "versions": versions(),
    }


def _privacy(
    plan: Plan, events: Sequence[Event], silos: Mapping[str, Sequence[Event]] | None
) -> dict[str, Any]:
    config, budget = plan.config, plan.budget
    return {
        "level": config.level,
        "silos": _silos(config) if plan.by_silo else None,
        "unit": privacy_statement.unit(plan),
        "units": plan.units,
        "relation": _relation(events, plan),
        "sampler": privacy_statement.sampling(plan),
        "placement": config.placement,
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
        "not covered": privacy_statement.not_covered(plan),
    }


def versions() -> dict[str, str]:
    """Versions of this package and of what its numbers depend on."""
    names = ("torch", "numpy", "scipy", "flwr", "ray", "dp-accounting")
    return {
        "fedpriv": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _participations(plan: Plan, events: Sequence[Event]) -> int | None:
    """The most releases that a client can have given data to, under local noise."""
    if plan.max_participations is None or plan.capped:
        return plan.max_participations
    return len(events)


def _silos(config: Config) -> dict[str, int]:
    return {
        "number": config.clients,
        "examples of each": config.examples_per_client,
        "private steps a round": config.silo_steps,
    }


def _absences(config: Config, absent: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Who was absent; None where that is private."""
    return list(absent) if config.unit == "example" else None


def _relation(events: Sequence[Event], plan: Plan) -> str:
    event = events[0] if events else plan.mechanism.event(1.0)
    return event.relation


def in_one_piece(result: Mapping[str, Any]) -> bool:
    """Whether a report's result is of a run that ended by itself and was never taken up: nobody has ended it
    for what it had released."""
    return StopReason(result["stopped"]).whole and not result["resumed after rounds"]


def gate(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the view that gates the budget says by the method that holds it: "against", "delta", "epsilon",
    "kind"; {} where there is no noise, or no release."""
    privacy = summary["privacy"]
    for view in privacy["views"]:
        if view["gates the budget"]:
            cell: dict[str, Any] = view["epsilon"][privacy["budget"]["held by"]]
            return {"against": view["against"], "delta": view["delta"], **cell}
    return {}
