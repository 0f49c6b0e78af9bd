"""The plot of a run: curves.png."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.accounting import METHODS
from fedpriv.mechanism.units import Level
from fedpriv.report.adversaries import described
from fedpriv.report.notices import noise
from fedpriv.report.summary import enforced_guarantee, round_0
from fedpriv.tasks import metrics as metrics_module

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(
    summary: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    spending: Sequence[tuple[int, float]],
) -> bytes:
    """The figure of :func:`draw` as a PNG file."""
    return plotting.png(draw(summary, metrics, spending))


def draw(
    summary: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    spending: Sequence[tuple[int, float]],
) -> Figure:
    """The test score and the spent epsilon by round.

    Args:
        summary: the run's report.
        metrics: the records of its evaluations. Round 0 is plotted, too, if the report has its scores.
        spending: (round, upper bound of the epsilon spent by then), in order. The bound may be the epsilon of
            a later round, so that it is constant for some rounds and then jumps.
    """
    figure, [axes] = plotting.panels(8, 4.5)
    metrics = [*round_0(summary), *metrics]
    rounds = [m["round"] for m in metrics]
    measure = metrics_module.shown(metrics[-1] if metrics else {})
    heights = measure.heights(metrics)
    axes.plot(rounds, heights, color="tab:blue", marker=".")
    axes.set(xlabel="round", ylabel=measure.axis, ylim=measure.limits(heights))
    axes.yaxis.label.set_color("tab:blue")
    plotting.rule(axes)
    axes.set_xlim(0, 1.05 * max([1, *rounds, *(at for at, _ in spending)]))  # also where no score is finite
    title = f"{summary['data set']}, {summary['model']}, {summary['optimizer']}, "
    privacy = summary["privacy"]
    title += noise(privacy["placement"], Level(privacy["level"]).by_silo)
    budget = summary["privacy"]["budget"]
    if budget is not None:
        right = axes.twinx()
        by_round = _every_round(spending)
        at, spent = zip(*by_round, strict=True)
        right.plot(at, spent, color="tab:red", linestyle="--")
        spent_by = dict(by_round)
        known = [spent_by.get(r, math.nan) for r in rounds]
        right.plot(rounds, known, color="tab:red", linestyle="", marker=".")
        right.axhline(budget["epsilon"], color="tab:red", linewidth=0.8, linestyle=":")
        across = right.get_yaxis_transform()
        right.text(0.01, 1.01 * budget["epsilon"], "budget", color="tab:red", transform=across)
        found = enforced_guarantee(summary)
        kind = found.get("kind", "")
        right.set(ylim=(0, 1.15 * budget["epsilon"]))
        label = METHODS[budget["held by"]].label
        bound = "" if kind == "estimate" else ", at most"
        right.set_ylabel(f"epsilon spent{bound} ({label}, {kind})", color="tab:red")
        title += f"\nbudget epsilon {budget['epsilon']:g}, delta {budget['delta']:.1e}"
        if found:
            title += f"\nagainst {described(found['against'], privacy['unit'])}"
    if summary["remark"]:
        title += f"\n{summary['remark']}"
    axes.set_title(title, fontsize=10)
    return figure


def _every_round(spending: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Epsilon by the end of each round from 0 on, without the jumps of ``spending``.

    In each run of equal epsilons, only the last round's epsilon is exact. Between exact values the curve is
    the chord or, if epsilon is concave, the smaller extension of the neighbouring chords. It is never below
    the spent epsilon or above the bound in ``spending``.

    >>> [(at, round(epsilon, 2)) for at, epsilon in _every_round([(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.4)])]
    [(0, 0.0), (1, 1.0), (2, 1.6), (3, 2.0), (4, 2.4)]
    """
    points = [(0, 0.0)]
    for at, epsilon in spending:
        if epsilon == points[-1][1]:
            points.pop()
        points.append((at, epsilon))
    if points[0][0]:  # the first rounds spent nothing
        points.insert(0, (0, 0.0))
    slopes = [(after[1] - before[1]) / ((after[0] - before[0]) or 1) for before, after in pairwise(points)]
    curve = points[:1]
    for number, ((start, low), (end, high)) in enumerate(pairwise(points)):
        for at in range(start + 1, end):
            bounds = [high]
            if number:
                bounds.append(low + slopes[number - 1] * (at - start))
            if number + 1 < len(slopes):
                bounds.append(high - slopes[number + 1] * (end - at))
            curve.append((at, max(low + slopes[number] * (at - start), min(bounds))))
        curve.append((end, high))
    return curve
