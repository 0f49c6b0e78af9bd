"""A report's overview: as one sentence, and as a small table for notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedpriv.accounting import METHODS
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report.adversaries import described
from fedpriv.report.summary import described_optimizer, ended_on_its_own, enforced_guarantee
from fedpriv.tasks import metrics

_NEIGHBOURS = {"add-remove": "add or remove one unit", "replace-one": "replace one unit"}


def epsilon(report: Mapping[str, Any]) -> float:
    """Epsilon by the budget's accounting method; infinite without noise.

    If the run was interrupted or resumed, it is the budget's epsilon, because the end of the run may depend
    on its releases.
    """
    found, budget = enforced_guarantee(report), report["privacy"]["budget"]
    if budget is None:
        return math.inf
    if found and ended_on_its_own(report["result"]):
        return float(found["epsilon"])
    return float(budget["epsilon"]) if found else 0.0


def sentence(report: Mapping[str, Any]) -> str:
    """Score, epsilon, optimizer and data set in one line."""
    parts = [_score(report), _spent(report), f"{report['optimizer']} on {report['data set']}"]
    found = enforced_guarantee(report)
    if found:
        parts[1] += f" against {described(found['against'], report['privacy']['unit'])}"
    return "; ".join([*parts, *([report["remark"]] if report["remark"] else [])])


def rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The most important facts of a report, as (name, value)."""
    privacy, found = report["privacy"], enforced_guarantee(report)
    table = [("score", _score(report)), ("ended", StopReason(report["result"]["stopped"]).sentence)]
    table.append(("epsilon", _spent(report)))
    if found:
        label = METHODS[privacy["budget"]["held by"]].label
        table.append(("kind", f"{_kind(found['kind'])}, by {label}"))
        table.append(("against", described(found["against"], privacy["unit"])))
        table.append(("privacy unit", privacy["unit"]))
        table.append(("neighbouring data", _NEIGHBOURS[privacy["relation"]]))
    table.append(("noise", privacy["placement"]))
    table.append(("optimizer", described_optimizer(report)))
    table.append(("data set, model", f"{report['data set']}, {report['model']}"))
    return table


def html(report: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """The same as an HTML table without external resources."""
    cell = 'style="text-align:left;padding:2px 8px"'
    lines = [f"<tr><th {cell}>{escape(k)}</th><td {cell}>{escape(v)}</td></tr>" for k, v in rows(report)]
    warnings = [*([report["remark"]] if report["remark"] else []), *notes]
    paragraphs = "".join(f"<p><strong>{escape(text)}</strong></p>" for text in warnings)
    return f"<table>{''.join(lines)}</table>{paragraphs}"


def _score(report: Mapping[str, Any]) -> str:
    result = report["result"]
    measure = metrics.shown(result)
    if measure.key not in result:
        return "no model was evaluated"
    rounds = metrics.counted(result["rounds"], "round")
    return f"test {measure.labelled(result[measure.key])} after {rounds}"


def _spent(report: Mapping[str, Any]) -> str:
    """Epsilon, its budget, delta, and whether epsilon is a bound."""
    budget, found = report["privacy"]["budget"], enforced_guarantee(report)
    if budget is None:
        return "epsilon infinite: no noise was added"
    kind = f" ({_kind(found['kind'])})" if found else ""
    return f"epsilon {epsilon(report):.4g} of {budget['epsilon']:g} at delta {budget['delta']:.3g}{kind}"


def _kind(kind: str) -> str:
    return "an ESTIMATE, which can understate" if kind == "estimate" else f"an upper {kind}"
