"""The text of a run's report: report.md, made from report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedpriv.accounting import METHODS
from fedpriv.accounting.events import Relation
from fedpriv.federated import availability
from fedpriv.federated.stop_reason import StopReason
from fedpriv.mechanism.placement import Distributed
from fedpriv.report.adversaries import described
from fedpriv.report.notices import weak
from fedpriv.report.summary import (
    CHANCE,
    LEDGER_HEAD,
    ODDS,
    SIMULATED_COHORTS,
    described_optimizer,
    ended_on_its_own,
)
from fedpriv.tasks import metrics


def markdown(summary: Mapping[str, Any]) -> str:
    """The text of report.md for the dict of report.json."""
    result, privacy = summary["result"], summary["privacy"]
    lines = ["# Run report", ""]
    if summary["remark"]:
        lines += [f"> **{summary['remark']}**", ""]
    if summary["reproducibility"]["seed"] is not None:
        lines += [
            "> Anyone who knows the seed can subtract the noise. The guarantees below hold only for the same "
            "run without a seed.",
            "",
        ]
    if cohorts := summary["privacy"].get(SIMULATED_COHORTS):  # a report of version 0.1.0 has no such entry
        lines += [
            f"> The noise on the mean is that of {cohorts}. The guarantees below are those of a run with "
            "such cohorts. This run, whose own are smaller, protects nobody.",
            "",
        ]
    lines += [_headline(result, privacy, summary["optimizer"]), ""]
    lines += _absences(privacy)
    lines += ["## What is protected", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in _rows(summary)), ""]
    lines += _guarantees(privacy, result)
    lines += _each_silo(privacy)
    lines += ["## What is not covered", "", *(f"- {text}" for text in privacy["not covered"]), ""]
    lines += ["## Versions", "", ", ".join(f"{k} {v}" for k, v in summary["versions"].items()), ""]
    return "\n".join(lines)


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The rows of the first table: (name, value)."""
    privacy = summary["privacy"]
    rows = [
        ("privacy unit", privacy["unit"]),
        ("number of units", f"{privacy['units']:,}"),
        (
            "neighbouring data",
            f"{privacy['relation']} one unit".replace("-", "/", 1)
            if privacy["relation"] == Relation.ADD_REMOVE
            else "replace one unit",
        ),
        ("sampling", privacy["sampler"]),
        *_silo_rows(privacy),
        ("noise placement", privacy["placement"] + (", in each silo" if privacy["silos"] else "")),
        ("who is trusted", privacy["trust"]),
        ("data set and model", f"{summary['data set']}, {summary['model']}"),
        ("optimizer", described_optimizer(summary)),
        *([("loss", summary["loss"])] if summary.get("loss") else []),
        *_start_rows(summary.get("initial weights")),
        *_regulariser_rows(summary["regulariser"]),
        *_averaging_rows(summary["averaging"]),
        (
            f"releases charged{' to each silo' if privacy['silos'] else ''}",
            f"{privacy['releases']}{', including absent nodes' if privacy[availability.KEY] else ''}",
        ),
        (
            "noise multiplier of the first and the last release (noise std / largest norm that one unit "
            "adds)",
            _pair(privacy["noise multiplier"]),
        ),
    ]
    if head := privacy.get(LEDGER_HEAD):  # a report of version 0.1.0 has none
        lines = metrics.counted(head["length"], "line")
        rows.append(("head of the ledger", f"{lines} after the header; hash of the last `{head['chain']}`"))
    if privacy["placement"] == Distributed.name:
        rows.append(("smallest number of replies for a release, n_min", privacy["fewest replies"]))
    if privacy["max participations"] is not None:
        unit = privacy["unit"].partition(":")[0]
        rows.append((f"largest number of releases that one {unit} is in", privacy["max participations"]))
    return rows


def _start_rows(path: str | None) -> list[tuple[str, str]]:
    """Where the model started from; a report of version 0.1.0 has no such entry."""
    if not path:
        return []
    return [("starting weights", f"the file {path}; what it was trained on is not covered by this epsilon")]


def _regulariser_rows(regulariser: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if regulariser is None:
        return []
    text = f"{regulariser['kind']}, lambda {regulariser['lambda']:g}; it uses no data and is not clipped"
    return [("regulariser", text)]


def _averaging_rows(decay: float | None) -> list[tuple[str, str]]:
    if decay is None:
        return []
    text = f"exponential moving average of all released models, decay {decay:g}; this costs no privacy"
    return [("model", text)]


def _silo_rows(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    silos = privacy["silos"]
    if silos is None:
        return []
    size = metrics.counted(silos["examples of each"], "example")
    if "smallest" in silos:
        size = f"{silos['smallest']} to {metrics.counted(silos['largest'], 'example')}"
    each = f"{metrics.counted(silos['number'], 'silo')} of {size}, disjoint"
    steps = f"{metrics.counted(silos['private steps a round'], 'private step')} per round in each silo"
    return [("who takes private steps", f"{each}; {steps}; the server averages the silos' model changes")]


_DRAWN = "all rounds up to the randomly drawn last round were run"


def _headline(result: Mapping[str, Any], privacy: Mapping[str, Any], optimizer: str) -> str:
    measure = metrics.shown(result)
    evaluated = measure.key in result
    reached = f"Test {measure.labelled(result[measure.key])}" if evaluated else "No model was evaluated"
    if evaluated and (chance := result.get(CHANCE)) is not None:
        reached += f" (guessing the most frequent label: {measure.text(chance)})"
    reached += f" after {metrics.counted(result['rounds'], 'round')} ({result['measured on']})"
    if resumed := result["resumed after rounds"]:
        reached += f", resumed after round {', '.join(map(str, resumed))}"
    ending, budget = StopReason(result["stopped"]), privacy["budget"]
    drawn = ending == StopReason.ROUNDS and optimizer == "rrpsgd"
    reached += f"; {_DRAWN if drawn else ending.sentence}"
    if budget is None:
        return f"{reached}. **No privacy: epsilon is infinite.**"
    return (
        f"{reached}. Budget: epsilon {budget['epsilon']:g} at delta "
        f"{budget['delta']:.3g}, enforced by {METHODS[budget['held by']].label} accounting."
    )


_MAX_SPANS = 5  # absences of one node that are listed one by one


def _absences(privacy: Mapping[str, Any]) -> list[str]:
    """The section on absent nodes: who contributed nothing to which releases, and what this means."""
    absent = privacy[availability.KEY]
    if not absent:
        return []
    steps = privacy["silos"]["private steps a round"] if privacy["silos"] else None
    lines = []
    for partition in sorted({dropout["partition"] for dropout in absent}):
        spans = [dropout for dropout in absent if dropout["partition"] == partition]
        missed = sum(dropout["to release"] - dropout["from release"] + 1 for dropout in spans)
        texts = [_span(dropout, steps) for dropout in spans[:_MAX_SPANS]]
        if len(spans) > _MAX_SPANS:
            texts.append(f"and {len(spans) - _MAX_SPANS} more times")
        of_all = f"{missed} of {privacy['releases']} releases"
        lines.append(f"- partition {partition}, {of_all}: {'; '.join(texts)}")
    others = (
        "the server averaged the model changes of the other silos only"
        if steps
        else "the sum contained only the other nodes' examples, but was divided as if all nodes had replied"
    )
    return [
        "## Absent nodes",
        "",
        "The nodes of these partitions contributed nothing, for any of their silos:",
        "",
        *lines,
        "",
        f"In these releases {others}. The server's ledger and the numbers below still include the charges "
        "for absent nodes: the server charges before it sends a request, and an absent node may have "
        "answered. If a node keeps its own ledger, that ledger lists what the node answered.",
        "",
    ]


def _span(dropout: Mapping[str, Any], steps: int | None) -> str:
    """The text of one absence, in rounds if a round has ``steps`` releases, otherwise in releases."""
    first, last = dropout["from release"], dropout["to release"]
    if steps:
        first, last = (first - 1) // steps + 1, last // steps
    name = "round" if steps else "release"
    why = ", then ".join(dropout["why"])
    if not dropout["back"]:
        return f"from {name} {first} on ({why})"
    span = f"in {name} {first}" if first == last else f"in {name}s {first} to {last}"
    return f"{span} ({why}), then back"


def _guarantees(privacy: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    lines = ["## Epsilon", ""]
    if not privacy["views"]:
        none = privacy["budget"] is None
        return [*lines, "Epsilon is infinite: no noise was added." if none else "Nothing was released.", ""]
    lines += [
        *_meaning(privacy, result),
        *_odds(privacy, result),
        *_warnings(privacy),
        "A bound is certified: the true epsilon is at most this number, and at least the lower bound if "
        "there is one. An estimate is not certified: GDP-CLT can understate epsilon several-fold. It is "
        "shown for comparison with papers that report it.",
        "",
        "| adversary | method | epsilon | lower bound | kind |",
        "|---|---|---|---|---|",
    ]
    for view in privacy["views"]:
        against = described(view["against"], privacy["unit"])
        if view["gates the budget"]:
            against += " (the enforced guarantee)"
        if view.get("relation", privacy["relation"]) != privacy["relation"]:
            against += "; here one unit is replaced"
        for method, cell in view["epsilon"].items():
            if "error" in cell:
                lines.append(f"| {against} | {METHODS[method].label} | not supported | | |")
                continue
            value, lower = (_figure(cell.get(key)) for key in ("epsilon", "epsilon_lower"))
            lines.append(f"| {against} | {METHODS[method].label} | {value} | {lower} | {cell['kind']} |")
    return [*lines, ""]


def _each_silo(privacy: Mapping[str, Any]) -> list[str]:
    """Each silo's own epsilon, where silos sample at different rates."""
    found = (privacy["silos"] or {}).get("epsilon of each")
    if not found:
        return []
    lines = [
        "## Each silo's own epsilon",
        "",
        "All silos have one noise multiplier, and smaller sampling rates lose less. The enforced guarantee "
        "is that of the silo that loses most. For several silos in a row, epsilon is a bound for each.",
        "",
        "| silos | examples (public) | sampling rate | epsilon | kind |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        who = ", ".join(map(str, one["silos"][:8])) + (", ..." if len(one["silos"]) > 8 else "")
        sizes, rates = (_ends(one[key]) for key in ("examples", "rate"))
        lines.append(f"| {who} | {sizes} | {rates} | {_figure(one['epsilon'])} | {one['kind']} |")
    return [*lines, ""]


def _ends(ends: list[float]) -> str:
    low, high = ends
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _meaning(privacy: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """The enforced guarantee as a sentence: a bound on what an adversary can conclude about one unit.

    If somebody stops a run because of its results, the spent epsilon depends on the data. Then only the
    budget's epsilon is a valid bound; the spent one would need a privacy odometer (Rogers et al. 2016).
    """
    enforced = privacy["budget"]["held by"]
    view = next(view for view in privacy["views"] if view["gates the budget"])
    value = view["epsilon"][enforced].get("epsilon")
    if not isinstance(value, float):
        return []
    lines = []
    if not ended_on_its_own(result):
        lines = [
            f"The run was stopped or resumed, and it spent epsilon {value:.4g}. If you stopped it because of "
            "its results, report the full budget: the smaller spent epsilon holds only for runs that end on "
            "their own. The statement for the full budget:",
            "",
        ]
        value = privacy["budget"]["epsilon"]
    unit = privacy["unit"].partition(":")[0]
    against = described(view["against"], privacy["unit"])
    change = f"any one {unit} is added to the data or removed from it"
    if privacy["relation"] == Relation.REPLACE_ONE:
        change = f"any one {unit} is replaced by another"
    hedge = "" if view["epsilon"][enforced]["kind"] == "bound" else ", but only IF the estimate is right"
    if cohorts := privacy.get(SIMULATED_COHORTS):
        lines += [f"SIMULATED, not private. Of a run with {cohorts} it would hold:", ""]
    return [
        *lines,
        f"Epsilon {value:.4g} at delta {view['delta']:.3g} against {against}: whatever "
        f"they see and know, the probability of any conclusion grows to at most e^{value:.4g}{_power(value)} "
        f"times its value, plus delta, if {change}{hedge}.",
        "",
    ]


def _warnings(privacy: Mapping[str, Any]) -> list[str]:
    """What is unusual about the budget, in sentences."""
    budget = privacy["budget"]
    found = [] if budget is None else weak(budget["epsilon"], budget["delta"])
    return [line for text in found for line in (f"NOTE: {text}.", "")]


def _odds(privacy: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """What the spent epsilon bounds of every attack, in a sentence; a report of version 0.1.0 has no odds."""
    odds = privacy.get(ODDS)
    if odds is None:
        return []
    begin = "For an attack this means"
    if not ended_on_its_own(result):
        begin = "If the run was not stopped because of its results, the spent epsilon means for an attack"
    found = ", and ".join(
        f"with {_percent(float(rate))} false alarms finds it at most {_percent(bound)} of the time"
        for rate, bound in odds["found"].items()
    )
    return [
        f"{begin}: who guesses at even odds whether one unit's data were there (or which of "
        f"two) is right at most {_percent(odds['right'])} of the time; a test for one unit {found}. These "
        "are bounds for every attack on what was spent, by PLD; no attack need reach them.",
        "",
    ]


def _percent(share: float) -> str:
    """A share as a percentage with three figures, rounded up."""
    return f"{min(100.0, math.ceil(share * 1e4 - 1e-9) / 100):.3g} %"


def _power(value: float) -> str:
    """The text " = e^value", or nothing if a float cannot hold the number."""
    return f" = {math.exp(value):.3g}" if value < 700 else ""


def _figure(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.4g}"


def _pair(values: Mapping[str, float | None]) -> str:
    first, last = values["first"], values["last"]
    return "none" if first is None or last is None else f"{first:.4g}, {last:.4g}"
