"""A run's report as a picture: curves.png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv._internal import plotting
from fedpriv.accounting import METHODS
from fedpriv.report.notices import noise
from fedpriv.report.summary import gate
from fedpriv.tasks import metrics as metrics_module


def curves(
    summary: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    spending: Sequence[tuple[int, float]],
) -> bytes:
    """curves.png: the test score and epsilon spent against rounds.

    ``spending`` has (round, epsilon), of no less than what was spent by that round, in order; a round that
    is not in it counts as the next that is.
    """
    figure, [axes] = plotting.panels(8, 4.5)
    rounds = [m["round"] for m in metrics]
    measure = metrics_module.shown(metrics[-1] if metrics else {})
    heights = measure.heights(metrics)
    axes.plot(rounds, heights, color="tab:blue", marker=".")
    axes.set(xlabel="round", ylabel=measure.axis, ylim=measure.limits(heights))
    axes.yaxis.label.set_color("tab:blue")
    plotting.rule(axes)
    title = f"{summary['data set']}, {summary['model']}, {summary['optimizer']}, "
    placement = summary["privacy"]["placement"]
    title += noise(placement)
    if summary["privacy"]["level"] == "client" and placement != "none":
        title += " in each silo"
    budget = summary["privacy"]["budget"]
    if budget is not None:
        right = axes.twinx()
        at, spent = zip(*_every_round(spending), strict=True)
        right.plot(at, spent, color="tab:red", linestyle="--")
        # What metrics.jsonl has. In a run of many releases the curve between these points, and the points
        # too where they are many, are those of a later release: no less than what was spent by then.
        known = [m["epsilon"] for m in metrics]
        right.plot(rounds, known, color="tab:red", linestyle="", marker=".")
        right.axhline(budget["epsilon"], color="tab:red", linewidth=0.8, linestyle=":")
        across = right.get_yaxis_transform()
        right.text(0.01, 1.01 * budget["epsilon"], "budget", color="tab:red", transform=across)
        kind = gate(summary).get("kind", "")
        right.set(ylim=(0, 1.15 * budget["epsilon"]))
        held = METHODS[budget["held by"]].label
        bound = "" if kind == "estimate" else ", at most"
        right.set_ylabel(f"epsilon spent{bound} ({held}, {kind})", color="tab:red")
        title += f"\nbudget epsilon {budget['epsilon']:g}, delta {budget['delta']:.1e}"
    if summary["remark"]:
        title += f"\n{summary['remark']}"
    axes.set_title(title, fontsize=10)
    return plotting.png(figure)


def _every_round(spending: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A point for each round from 0 on: a line through points further apart would lie below what the rounds
    between them had spent.

    >>> _every_round([(1, 0.5), (3, 0.9)])
    [(0, 0.0), (1, 0.5), (2, 0.9), (3, 0.9)]
    """
    points = [(0, 0.0)]
    for at, epsilon in spending:
        points += [(r, epsilon) for r in range(points[-1][0] + 1, at)]
        points.append((at, epsilon))
    return points
