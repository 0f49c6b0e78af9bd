"""What a run's epsilon means, in words, numbers and a picture.

``summarise`` makes report.json, ``markdown`` report.md and ``curves`` curves.png, from public
configuration, charged events and public test-set metrics alone.
"""

from __future__ import annotations

import io
import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedpriv import __version__, measures
from fedpriv.accounting import METHODS
from fedpriv.accounting.events import Event
from fedpriv.config import Config
from fedpriv.endings import Ending
from fedpriv.plan import Plan
from fedpriv.sampling import FixedSize
from fedpriv.views import views

NOT_PRIVATE = "reproducible, not private"
NO_NOISE = "not private: no noise is added"

TRUST = {
    "none": "Nobody is protected: no noise is added.",
    "central": (
        "Clients trust the server, which sees their exact contributions, and the channel to it. Protected "
        "against everyone who sees the released models, all rounds of them."
    ),
    "local": (
        "Clients trust nobody: each adds all of the noise to its own message. Protected against the "
        "server and everyone else."
    ),
    "distributed": (
        "Clients trust that at least n_min of them add their share of the noise. Protected against "
        "everyone who sees the released models, all rounds of them; against the server ONLY if it sees "
        "nothing but the sum, as under secure aggregation, which this run does not itself provide, AND "
        "everyone takes part in every release: it draws the cohorts, so that sampling hides nobody from it."
    ),
}

BY_SILO = (
    "Each silo trusts itself alone: it adds all the noise to its own sums before anything leaves it. "
    "Examples are protected against the server, the other silos and everyone who sees the models, all "
    "rounds of them; not against their own silo."
)

CENTRALISED = (
    "Centralised: one party holds all examples, trains the model and adds the noise, and whoever gave an "
    "example trusts it. Protected against everyone who sees the released models, all rounds of them."
)

_SILO_NOTES = (
    "a silo's own people, who see its examples",
    "an example that lies in several silos: their epsilons add; so do those of one person's examples",
    "which silos replied, and when",
)

NOT_COVERED = (
    "hyper-parameters, architecture and data set: choosing them on private data costs privacy that is "
    "not counted here",
    "the number of runs: this epsilon is of this run alone; runs on the same data compose",
    "the test score steered nothing here, but if it is used to choose among runs it is optimistic",
    "floating-point noise is simulation grade: an adversary who reads the last bits may learn more",
    "side channels: timing, message sizes and who was online",
)

NOTHING_COVERED = (
    "anything: no noise is added, so nothing bounds what the released models tell of any unit",
    "the test score steered nothing here, but if it is used to choose among runs it is optimistic",
)


def remark(config: Config) -> str | None:
    """What every output of a run must carry: that it is not private, and why; None where it is.

    >>> remark(Config.parse({"seed": 7}))
    'reproducible, not private (seed 7)'
    """
    notes = []
    if config.placement == "none":
        notes.append(NO_NOISE)
    if config.seed >= 0:
        notes.append(f"{NOT_PRIVATE} (seed {config.seed})")
    return "; ".join(notes) or None


def noise(placement: str) -> str:
    """The placement in words.

    >>> noise("none"), noise("central")
    ('no noise', 'central noise')
    """
    return f"{'no' if placement == 'none' else placement} noise"


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
        "privacy": {
            "level": config.level,
            "silos": _silos(config) if plan.by_silo else None,
            "unit": _unit_text(plan),
            "units": plan.units,
            "relation": _relation(events, plan),
            "sampler": _sampler_text(plan),
            "placement": config.placement,
            "trust": _trust(config),
            "budget": None
            if plan.budget is None
            else {
                "epsilon": plan.budget.epsilon,
                "delta": plan.budget.delta,
                "held by": config.accounting,
            },
            "releases": len(events),
            "noise multiplier": {
                "first": events[0].noise_multiplier if events else None,
                "last": events[-1].noise_multiplier if events else None,
            },
            "fewest replies": plan.setup.placement.min_replies,
            "max participations": _participations(plan, events),
            "views": views(plan, events, silos),
            "not covered": [
                *(() if plan.budget else NOTHING_COVERED),
                *_notes(plan),
                *(NOT_COVERED if plan.budget else ()),
            ],
        },
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


def _trust(config: Config) -> str:
    if config.level == "client" and config.placement == "central":
        return BY_SILO
    if config.centralised and config.placement == "central":
        return CENTRALISED
    among = config.sampler == "fixed-size" if config.placement == "central" else config.placement != "none"
    return TRUST[config.placement] + (_colluding(config) if among and config.clients > 1 else "")


def _colluding(config: Config) -> str:
    """What the other parties are taken to know, where they know more than the models."""
    parties = ("client", "silo")[config.unit == "example"]
    if not config.colluding_parties:
        return f" Other {parties}s are not meant: they know what they did themselves, which is not counted."
    number = measures.counted(min(config.colluding_parties, config.clients - 1), parties)
    that = "What is said of the released models" if config.placement == "local" else "That"
    return f" {that} holds against {number} who may pool what they know of themselves (colluding-parties)."


def _silos(config: Config) -> dict[str, int]:
    return {
        "number": config.clients,
        "examples of each": config.examples_per_client,
        "private steps a round": config.silo_steps,
    }


def _unit_text(plan: Plan) -> str:
    if plan.config.centralised and not plan.by_silo:
        return "example: one example of the training set"
    if plan.config.unit == "example":
        return "example: one example of one silo"
    if plan.config.partition == "one-example":
        return "client: a client and its one example"
    if plan.config.partition == "natural":
        return "client: a user of the data set with all their training examples"
    return "client: a client with all its examples"


def _relation(events: Sequence[Event], plan: Plan) -> str:
    event = events[0] if events else plan.setup.event(1.0)
    return event.relation


def _sampler_text(plan: Plan) -> str:
    sampler, event = plan.setup.sampler, plan.setup.observer_event(1.0)
    if isinstance(sampler, FixedSize):
        text = f"fixed size {sampler.size} of {sampler.population}, without replacement"
        if sampler.known:
            text += f"; counted as {event.cohort} of the {event.population} whom no colluder knows"
    else:
        kinds = {
            "poisson": f"Poisson, each unit with probability {event.rate:g}",
            "none": "everyone in every release",
        }
        text = kinds[event.sampling]
    if event.truncation:
        text += f", cut to the public cap of {plan.setup.placement.shares}"
    return f"{text}; each silo draws its own, secretly" if plan.by_silo else text


def _notes(plan: Plan) -> list[str]:
    notes = list(_SILO_NOTES) if plan.by_silo else []
    if plan.config.dataset.startswith("infinite"):
        notes.append(
            "images deformed from one source digit count as separate units: the unit is the drawn image, "
            "not the person who wrote the digit"
        )
    elif not plan.by_silo and (plan.config.unit == "example" or plan.config.partition == "one-example"):
        notes.append("a person who gave several examples: each is a unit of its own, and their epsilons add")
    if plan.config.partition == "natural":
        notes.append(
            "what a user has in the public test part: it is scored, and public examples taken from it"
        )
    if plan.config.public_examples:
        notes.append(
            f"{plan.config.public_examples} public examples, out of the test part: the optimizer learns from "
            "them as they are, and the score is of the others"
        )
    if plan.setup.placement.min_replies and plan.setup.observer_event(1.0).truncation:
        notes.append(
            "dropouts: where too few clients reply, a round releases nothing; that this happened tells "
            "something of the cohort's size, which is counted only for the case that all reply"
        )
    return notes


def markdown(summary: Mapping[str, Any]) -> str:
    """report.md."""
    result, privacy = summary["result"], summary["privacy"]
    lines = ["# Run report", ""]
    if summary["remark"]:
        lines += [f"> **{summary['remark']}**", ""]
    if summary["reproducibility"]["seed"] is not None:
        lines += [
            "> Who holds the seed can subtract the noise. What is said below holds for the same run without "
            "a seed.",
            "",
        ]
    lines += [_headline(result, privacy, summary["optimizer"]), ""]
    lines += ["## What is protected", ""]
    rows = [
        ("privacy unit", privacy["unit"]),
        ("number of units", f"{privacy['units']:,}"),
        (
            "neighbouring data",
            f"{privacy['relation']} one unit".replace("-", "/", 1)
            if privacy["relation"] == "add-remove"
            else "replace one unit",
        ),
        ("sampling", privacy["sampler"]),
        *_silo_rows(privacy),
        ("noise placement", privacy["placement"] + (", in each silo" if privacy["silos"] else "")),
        ("who is trusted", privacy["trust"]),
        ("data set and model", f"{summary['data set']}, {summary['model']}"),
        ("optimizer", summary["optimizer"]),
        *_regulariser_rows(summary["regulariser"]),
        *_averaging_rows(summary["averaging"]),
        (f"releases charged{' to each silo' if privacy['silos'] else ''}", privacy["releases"]),
        (
            "noise multiplier, first and last (noise std over the most that one unit adds)",
            _pair(privacy["noise multiplier"]),
        ),
    ]
    if privacy["placement"] == "distributed":
        rows.append(("fewest replies that are released, n_min", privacy["fewest replies"]))
    if privacy["max participations"] is not None:
        rows.append(("releases a client gives data to, at most", privacy["max participations"]))
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += _views_markdown(privacy, result)
    lines += ["## What is not covered", "", *(f"- {text}" for text in privacy["not covered"]), ""]
    lines += ["## Versions", "", ", ".join(f"{k} {v}" for k, v in summary["versions"].items()), ""]
    return "\n".join(lines)


def _regulariser_rows(regulariser: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if regulariser is None:
        return []
    text = f"{regulariser['kind']}, lambda {regulariser['lambda']:g}; it touches no data, and is not clipped"
    return [("regulariser", text)]


def _averaging_rows(decay: float | None) -> list[tuple[str, str]]:
    if decay is None:
        return []
    return [("model", f"an average of all released models, decay {decay:g}, which costs no privacy")]


def _silo_rows(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    silos = privacy["silos"]
    if silos is None:
        return []
    size = measures.counted(silos["examples of each"], "example")
    each = f"{measures.counted(silos['number'], 'silo')} of {size}, disjoint"
    steps = f"{measures.counted(silos['private steps a round'], 'private step')} a round in each silo"
    return [("who takes private steps", f"{each}; {steps}, whose change the server averages")]


_DRAWN = "all rounds up to the one that had been drawn at random were run"


def _headline(result: Mapping[str, Any], privacy: Mapping[str, Any], optimizer: str) -> str:
    measure = measures.shown(result)
    evaluated = measure.key in result
    reached = f"Test {measure.said(result[measure.key])}" if evaluated else "No model was evaluated"
    reached += f" after {measures.counted(result['rounds'], 'round')} (public test set)"
    if resumed := result["resumed after rounds"]:
        reached += f", taken up again after round {', '.join(map(str, resumed))}"
    ending, budget = Ending(result["stopped"]), privacy["budget"]
    drawn = ending == Ending.ROUNDS and optimizer == "rrpsgd"
    reached += f"; {_DRAWN if drawn else ending.sentence}"
    if budget is None:
        return f"{reached}. **No privacy: epsilon is infinite.**"
    return (
        f"{reached}. Budget: epsilon {budget['epsilon']:g} at delta "
        f"{budget['delta']:.3g}, held by {METHODS[budget['held by']].label}."
    )


def _views_markdown(privacy: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    lines = ["## Epsilon", ""]
    if not privacy["views"]:
        none = privacy["budget"] is None
        return [*lines, "Infinite: no noise was added." if none else "Nothing was released.", ""]
    lines += [
        *_meaning(privacy, result),
        "A bound is certified: the true epsilon is at most that (and at least the lower bound, where there "
        "is one). An estimate is not: GDP-CLT can understate several-fold and is shown as the number that "
        "papers print.",
        "",
        "| against | method | epsilon | lower bound | kind |",
        "|---|---|---|---|---|",
    ]
    for view in privacy["views"]:
        against = view["against"] + (" (gates the budget)" if view["gates the budget"] else "")
        for method, cell in view["epsilon"].items():
            if "error" in cell:
                lines.append(f"| {against} | {METHODS[method].label} | not supported | | |")
                continue
            value, lower = (_figure(cell.get(key)) for key in ("epsilon", "epsilon_lower"))
            lines.append(f"| {against} | {METHODS[method].label} | {value} | {lower} | {cell['kind']} |")
    return [*lines, ""]


def _meaning(privacy: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """The gate's epsilon as a sentence: what it lets an adversary learn about one unit.

    A person who ends a run by what it has released chooses among epsilons: then only the budget's holds, as
    of a filter; what was spent so far would need an odometer (Rogers et al. 2016).
    """
    held = privacy["budget"]["held by"]
    view = next(view for view in privacy["views"] if view["gates the budget"])
    value = view["epsilon"][held].get("epsilon")
    if not isinstance(value, float):
        return []
    lines = []
    if not in_one_piece(result):
        lines = [
            f"The run did not go through in one piece, and {value:.4g} is what it spent. Where it was ended "
            "for what it had released, that is no bound; the budget's epsilon is one, whenever a run ends:",
            "",
        ]
        value = privacy["budget"]["epsilon"]
    unit = privacy["unit"].split(":")[0]
    with_or_without = f"with any one {unit} in the data as without it"
    if privacy["relation"] == "replace-one":
        with_or_without = f"with any one {unit} as with another in its place"
    hedge = "" if view["epsilon"][held]["kind"] == "bound" else ", IF the estimate were right"
    return [
        *lines,
        f"Epsilon {value:.4g} at delta {view['delta']:.3g} against {view['against']}: whatever they see and "
        f"know, anything that they could conclude is at most e^{value:.4g}{_power(value)} times as likely, "
        f"plus delta, {with_or_without}, and the other way round{hedge}.",
        "",
    ]


def _power(value: float) -> str:
    """e^value, where it is a number that a float holds."""
    return f" = {math.exp(value):.3g}" if value < 700 else ""


def _figure(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.4g}"


def _pair(values: Mapping[str, float | None]) -> str:
    first, last = values["first"], values["last"]
    return "none" if first is None or last is None else f"{first:.4g}, {last:.4g}"


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
