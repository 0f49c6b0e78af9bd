"""A run's report as a picture: curves.png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv import measures, pictures
from fedpriv.accounting import METHODS
from fedpriv.remarks import noise
from fedpriv.report import gate


def curves(
    summary: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    spending: Sequence[tuple[int, float]],
) -> bytes:
    """curves.png: the test score and epsilon spent against rounds; ``spending`` has (round, epsilon)."""
    figure, [axes] = pictures.panels(8, 4.5)
    rounds = [m["round"] for m in metrics]
    measure = measures.shown(metrics[-1] if metrics else {})
    heights = measure.heights(metrics)
    axes.plot(rounds, heights, color="tab:blue", marker=".")
    axes.set(xlabel="round", ylabel=measure.axis, ylim=measure.limits(heights))
    axes.yaxis.label.set_color("tab:blue")
    pictures.rule(axes)
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
    return pictures.png(figure)
