"""The last score against the epsilon of the budget: a line for each method, and references without noise.

Of one budget it is a chart of dots with intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv._internal import plotting
from fedpriv.report.pictures import curves, methods
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point
from fedpriv.report.sweep_results import Ended
from fedpriv.tasks.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Score against epsilon"


def draw(ended: Sequence[Ended], about: str) -> Figure:
    """The picture.

    Args:
        ended: the cells that have ended, at least one.
        about: how many cells and settings there are, in words.
    """
    measure, drawn = ended[0].measure, methods.of_one_measure(ended)
    lines, alike = methods.lines(drawn, ("epsilon", "seed"), _points)
    points = [point for line in lines for point in line.points]
    budgets = sorted({point.at for point in points if point.at is not None})
    guessing = methods.chance(drawn)
    if len(budgets) > 1:
        figure, axes = _curves(lines, budgets, methods.capacity(guessing))
        ends = [end for point in points for end in point.range]
        sentences = methods.fit(axes, measure, ends, guessing)
        methods.finish(figure, axes, measure.axis)
    else:
        figure = _dots(lines)
        figure.axes[0].set_xlabel(f"{measure.axis}, at the last evaluation")
        sentences = _limit(figure.axes[0], measure, guessing)
    plotting.title(figure, [", ".join(methods.shared(drawn)), *filter(None, [alike])])
    footer = methods.footer(drawn, points, about)
    plotting.footer(figure, [*footer, *sentences, *methods.left_out(ended, drawn)])
    return figure


def _limit(axes: Axes, measure: Metric, guessing: float | None) -> list[str]:
    """Draw guessing where it is near, and keep the axis to what scores can be; says where it is cut."""
    low, high = axes.get_xlim()
    near = guessing is not None and low - 0.6 * (high - low) <= guessing <= high
    if near and guessing is not None:
        axes.axvline(guessing, color="#555555", linestyle=(0, (1, 3)), linewidth=1.2)
        axes.annotate("guessing", (guessing, 1), xycoords=("data", "axes fraction"), fontsize=8, va="bottom")
        low = min(low, guessing - 0.03 * (high - low))
    low = 0.0 if low < 0.25 * (high - low) else low
    axes.set_xlim(low, min(high, 100.0) if measure.fraction else high)
    if low:
        plotting.cut(axes, horizontal=True)
    return methods.axis_notes("horizontal", low, measure, guessing, near)


def _points(cells: Sequence[Ended]) -> list[Point]:
    by_budget: dict[float | None, list[Ended]] = {}
    for cell in cells:
        by_budget.setdefault(cell.budget, []).append(cell)
    return [
        Point.of(budget, by_budget[budget])
        for budget in sorted(by_budget, key=lambda budget: -1 if budget is None else budget)
    ]


def _curves(lines: Sequence[Line], budgets: Sequence[float], most: int) -> tuple[Figure, list[Axes]]:
    """The scores by budget, in as many panels as the lines need."""
    return curves.in_panels(lines, most, curves.draw_line, lambda axes: budget_axis(axes, budgets))


def budget_axis(axes: Axes, budgets: Sequence[float]) -> None:
    """The horizontal axis of budgets: logarithmic, with a mark at each."""
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("epsilon of the whole budget")
    plotting.rule(axes, whole=False)


def _dots(lines: Sequence[Line]) -> Figure:
    """The scores of one budget: a dot and an interval for each method, in the order of the sweep.

    A dot's row names its method. So the colour only tells references from the others.
    """
    figure, [axes] = plotting.panels(7, 1.2 + 0.32 * len(lines))
    for row, line in enumerate(lines):
        color, _, marker = plotting.STYLES[6 if line.reference else 0]
        for point in line.points:
            low, high = point.range
            ends = [[point.mean - low], [high - point.mean]] if point.half else None
            axes.errorbar(point.mean, row, xerr=ends, color=color, fmt=marker, capsize=3)
    axes.set_yticks(range(len(lines)), [line.label() for line in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    names = max(text.get_window_extent().width for text in axes.get_yticklabels())
    figure.set_size_inches(5 + names / figure.dpi, figure.get_size_inches()[1])
    return figure
