"""What a run's epsilon means, in numbers and a picture; in words in :mod:`fedpriv.report_text`.

``summarise`` makes report.json and ``curves`` curves.png, from public configuration, charged events and
public test-set metrics alone.
"""

from __future__ import annotations

import io
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedpriv import __version__, measures, promises
from fedpriv.accounting import METHODS
from fedpriv.accounting.events import Event
from fedpriv.config import Config
from fedpriv.endings import Ending
from fedpriv.plan import Plan
from fedpriv.remarks import NOT_PRIVATE, noise, remark
from fedpriv.views import views


def summarise(
    plan: Plan,
    events: Sequence[Event],
    metrics: Sequence[Mapping[str, Any]],
    stopped: Ending,
    silos: Mapping[str, Sequence[Event]] | None = None,
    resumed: Sequence[int] = (),
) -> dict[str, Any]:
    """Everything report.json holds. ``events`` are the gate's, as charged; ``silos`` are each silo's, at the
    client level; ``resumed`` are the rounds after which the run was taken up again."""
    config = plan.config
    last = dict(metrics[-1]) if metrics else {}
    return {
        "remark": remark(config),
        "result": {
            **measures.scores(last),
            "measured on": "public test set",
            "rounds": last.get("round", 0),
            "stopped": stopped,
            "resumed after rounds": list(resumed),
        },
        "privacy": _privacy(plan, events, silos),
        "reproducibility": {
            "seed": config.asked_seed,
            "note": NOT_PRIVATE if config.seed >= 0 else "all that is random from OS entropy",
        },
        "data set": config.dataset,
        "model": config.model,
        "optimizer": config.optimizer,
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
        "unit": promises.unit(plan),
        "units": plan.units,
        "relation": _relation(events, plan),
        "sampler": promises.sampling(plan),
        "placement": config.placement,
        "trust": promises.trust(config),
        "budget": None
        if budget is None
        else {"epsilon": budget.epsilon, "delta": budget.delta, "held by": config.accounting},
        "releases": len(events),
        "noise multiplier": {
            "first": events[0].noise_multiplier if events else None,
            "last": events[-1].noise_multiplier if events else None,
        },
        "fewest replies": plan.setup.placement.min_replies,
        "max participations": _participations(plan, events),
        "views": views(plan, events, silos),
        "not covered": promises.not_covered(plan),
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


def _relation(events: Sequence[Event], plan: Plan) -> str:
    event = events[0] if events else plan.setup.event(1.0)
    return event.relation


def curves(
    summary: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    spending: Sequence[tuple[int, float]],
) -> bytes:
    """curves.png: the test score and epsilon spent against rounds; ``spending`` has (round, epsilon)."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    rounds = [m["round"] for m in metrics]
    measure = measures.shown(metrics[-1] if metrics else {})
    heights = measure.heights(metrics)
    axes.plot(rounds, heights, color="tab:blue", marker=".")
    axes.set(xlabel="round", ylabel=measure.axis, xlim=(0, None), ylim=measure.limits(heights))
    axes.yaxis.label.set_color("tab:blue")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    title = f"{summary['data set']}, {summary['model']}, {summary['optimizer']}, "
    placement = summary["privacy"]["placement"]
    title += noise(placement)
    budget = summary["privacy"]["budget"]
    if budget is not None:
        right = axes.twinx()
        # In steps up to each point: what a release costs is spent before it is made.
        at, spent = zip((0, 0.0), *spending, strict=True)
        right.plot(at, spent, color="tab:red", linestyle="--", drawstyle="steps-pre")
        right.axhline(budget["epsilon"], color="tab:red", linewidth=0.8, linestyle=":")
        across = right.get_yaxis_transform()
        right.text(0.01, 1.01 * budget["epsilon"], "budget", color="tab:red", transform=across)
        kind = gate(summary).get("kind", "")
        right.set(ylim=(0, 1.15 * budget["epsilon"]))
        right.set_ylabel(f"epsilon spent ({METHODS[budget['held by']].label}, {kind})", color="tab:red")
        title += f"\nbudget epsilon {budget['epsilon']:g}, delta {budget['delta']:.1e}"
    if summary["remark"]:
        title += f"\n{summary['remark']}"
    axes.set_title(title, fontsize=10)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def in_one_piece(result: Mapping[str, Any]) -> bool:
    """Whether a report's result is of a run that ended by itself and was never taken up: nobody has ended it
    for what it had released."""
    return Ending(result["stopped"]).whole and not result["resumed after rounds"]


def gate(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the view that gates the budget says by the method that holds it: "against", "delta", "epsilon",
    "kind"; {} where there is no noise, or no release."""
    privacy = summary["privacy"]
    for view in privacy["views"]:
        if view["gates the budget"]:
            cell: dict[str, Any] = view["epsilon"][privacy["budget"]["held by"]]
            return {"against": view["against"], "delta": view["delta"], **cell}
    return {}
