"""A run's report for people: what report.md says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedpriv.accounting import METHODS
from fedpriv.federated import availability
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report.summary import in_one_piece
from fedpriv.tasks import metrics


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
    lines += _absences_markdown(privacy)
    lines += ["## What is protected", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in _rows(summary)), ""]
    lines += _views_markdown(privacy, result)
    lines += ["## What is not covered", "", *(f"- {text}" for text in privacy["not covered"]), ""]
    lines += ["## Versions", "", ", ".join(f"{k} {v}" for k, v in summary["versions"].items()), ""]
    return "\n".join(lines)


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The first table's."""
    privacy = summary["privacy"]
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
        *_start_rows(summary.get("initial weights")),
        *_regulariser_rows(summary["regulariser"]),
        *_averaging_rows(summary["averaging"]),
        (
            f"releases charged{' to each silo' if privacy['silos'] else ''}",
            f"{privacy['releases']}{', also to those that were absent' if privacy[availability.KEY] else ''}",
        ),
        (
            "noise multiplier, first and last (noise std over the most that one unit adds)",
            _pair(privacy["noise multiplier"]),
        ),
    ]
    if privacy["placement"] == "distributed":
        rows.append(("fewest replies that are released, n_min", privacy["fewest replies"]))
    if privacy["max participations"] is not None:
        rows.append(("releases a client gives data to, at most", privacy["max participations"]))
    return rows


def _start_rows(path: str | None) -> list[tuple[str, str]]:
    """Where the model started from; a report of version 0.1.0 has no such entry."""
    if not path:
        return []
    return [("starting weights", f"the file {path}; what it was trained on is not covered by this epsilon")]


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
    size = metrics.counted(silos["examples of each"], "example")
    each = f"{metrics.counted(silos['number'], 'silo')} of {size}, disjoint"
    steps = f"{metrics.counted(silos['private steps a round'], 'private step')} a round in each silo"
    return [("who takes private steps", f"{each}; {steps}, whose change the server averages")]


_DRAWN = "all rounds up to the one that had been drawn at random were run"


def _headline(result: Mapping[str, Any], privacy: Mapping[str, Any], optimizer: str) -> str:
    measure = metrics.shown(result)
    evaluated = measure.key in result
    reached = f"Test {measure.said(result[measure.key])}" if evaluated else "No model was evaluated"
    reached += f" after {metrics.counted(result['rounds'], 'round')} (public test set)"
    if resumed := result["resumed after rounds"]:
        reached += f", taken up again after round {', '.join(map(str, resumed))}"
    ending, budget = StopReason(result["stopped"]), privacy["budget"]
    drawn = ending == StopReason.ROUNDS and optimizer == "rrpsgd"
    reached += f"; {_DRAWN if drawn else ending.sentence}"
    if budget is None:
        return f"{reached}. **No privacy: epsilon is infinite.**"
    return (
        f"{reached}. Budget: epsilon {budget['epsilon']:g} at delta "
        f"{budget['delta']:.3g}, held by {METHODS[budget['held by']].label}."
    )


_SPANS = 5  # absences of one node that are told one by one


def _absences_markdown(privacy: Mapping[str, Any]) -> list[str]:
    """Which nodes gave nothing to which releases, and what that means."""
    absent = privacy[availability.KEY]
    if not absent:
        return []
    steps = privacy["silos"]["private steps a round"] if privacy["silos"] else None
    lines = []
    for partition in sorted({told["partition"] for told in absent}):
        spans = [told for told in absent if told["partition"] == partition]
        missed = sum(told["to release"] - told["from release"] + 1 for told in spans)
        said = [_span(told, steps) for told in spans[:_SPANS]]
        if len(spans) > _SPANS:
            said.append(f"and {len(spans) - _SPANS} times more")
        of_all = f"{missed} of {privacy['releases']} releases"
        lines.append(f"- partition {partition}, {of_all}: {'; '.join(said)}")
    others = (
        "the model moved by the mean of the others' changes"
        if steps
        else "the sum was of the others' examples alone, and divided as if all had been there"
    )
    return [
        "## Who was absent",
        "",
        "The nodes of these partitions gave nothing, for any silo that they hold:",
        "",
        *lines,
        "",
        f"In these releases {others}. What was charged for the absent stands, in the server's ledger and in "
        "the numbers below, though they gave nothing: the server pays before it asks, and an answer may have "
        "been on its way. The ledger of a node that keeps one has what it answered.",
        "",
    ]


def _span(told: Mapping[str, Any], steps: int | None) -> str:
    """One absence, in rounds where each is of ``steps`` releases."""
    first, last = told["from release"], told["to release"]
    if steps:
        first, last = (first - 1) // steps + 1, last // steps
    name = "round" if steps else "release"
    why = ", then ".join(told["why"])
    if not told["back"]:
        return f"from {name} {first} on ({why})"
    span = f"in {name} {first}" if first == last else f"in {name}s {first} to {last}"
    return f"{span} ({why}), and then back"


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
