"""The picture of a sweep: the last score against the epsilon of the budget, a line for each method.

A method is a set of settings besides epsilon and seed. Runs that differ in their seed are repetitions: a
point is their mean, and a band the 95 % confidence interval of the mean, by Student's t. A sweep of one
budget is a chart of dots with intervals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv._internal.settings import assignments
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.report.comparison import Group, remarks
from fedpriv.report.sweep_results import Ended, differing_meanings
from fedpriv.tasks.metrics import Metric, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = len(plotting.STYLES)  # in a panel
_COVERAGE = 0.95
_MOST_NAMED = 3  # methods in a sentence
_PARTS = {
    "unit": "privacy unit",
    "relation": "neighbours",
    "delta": "delta",
    "accounting": "accounting",
    "against": "adversary",
}


@dataclass(frozen=True)
class _Point:
    """The runs of one method and budget; the mean is NaN where one of them diverged."""

    budget: float | None
    mean: float
    half: float  # of the interval; 0 for one run
    runs: int


@dataclass(frozen=True)
class _Line:
    """A method: its settings, and its points by budget."""

    settings: Mapping[str, Any]
    points: tuple[_Point, ...]
    notes: tuple[str, ...] = ()

    def label(self, left_out: str = "") -> str:
        """The settings but one, with the number of runs of a point."""
        shown = {key: value for key, value in self.settings.items() if key != left_out}
        numbers = sorted({point.runs for point in self.points})
        runs = " to ".join(dict.fromkeys(map(str, (numbers[0], numbers[-1]))))
        return f"{_words(shown) or 'all runs'} ({'; '.join([f'n = {runs}', *self.notes])})"


def draw(ended: Sequence[Ended], about: str) -> Figure:
    """The picture.

    Args:
        ended: the cells that have ended, at least one.
        about: how many cells and settings the sweep has, in words.
    """
    measure = ended[0].measure
    drawn = [cell for cell in ended if cell.measure.key == measure.key]
    lines, alike = _lines(drawn)
    budgets = sorted({point.budget for line in lines for point in line.points if point.budget is not None})
    if len(budgets) > 1:
        figure = _curves(lines, budgets)
        figure.axes[0].set_ylabel(measure.axis)
    else:
        figure = _dots(lines)
        figure.axes[0].set_xlabel(f"{measure.axis}, at the last evaluation")
    _limit(figure.axes[0], measure, len(budgets) > 1)
    plotting.title(figure, [", ".join(_shared(drawn)), *filter(None, [alike])])
    plotting.footer(figure, [*_footer(drawn, lines, about), *_left_out(ended, drawn)])
    return figure


def _limit(axes: Axes, measure: Metric, vertical: bool) -> None:
    """No axis of a share goes below 0 or above 100 %, where an interval may."""
    if measure.fraction:
        low, high = axes.get_ylim() if vertical else axes.get_xlim()
        (axes.set_ylim if vertical else axes.set_xlim)(max(low, 0.0), min(high, 100.0))


def _lines(ended: Sequence[Ended]) -> tuple[list[_Line], str]:
    """The methods in the order of the sweep, and the remarks that hold for all of them."""
    methods: dict[tuple[tuple[str, Any], ...], list[Ended]] = {}
    for cell in ended:
        methods.setdefault(_method(cell), []).append(cell)
    groups = [Group(dict(key), tuple(cell.run for cell in cells)) for key, cells in methods.items()]
    alike, own = remarks(groups)
    return [
        _Line(group.settings, tuple(_points(cells)), tuple(notes))
        for group, cells, notes in zip(groups, methods.values(), own, strict=True)
    ], alike


def _method(cell: Ended) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in cell.settings.items() if key not in ("epsilon", "seed"))


def _points(cells: Sequence[Ended]) -> list[_Point]:
    by_budget: dict[float | None, list[Ended]] = {}
    for cell in cells:
        by_budget.setdefault(cell.budget, []).append(cell)
    found = []
    for budget in sorted(by_budget, key=lambda budget: -1 if budget is None else budget):
        heights = cells[0].measure.heights([cell.run.metrics[-1] for cell in by_budget[budget]])
        found.append(_Point(budget, *interval(heights), len(heights)))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(the mean, half the width of its 95 % confidence interval by Student's t); 0 for one value.

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)  # 4.303 / sqrt(3)
    (2.0, 2.484)
    """
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2 or math.isnan(mean):
        return mean, 0.0
    quantile = float(t.ppf((1 + _COVERAGE) / 2, len(values) - 1))
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def _panels(lines: Sequence[_Line]) -> list[tuple[str, list[_Line]]]:
    """The lines of each panel, at most MOST_LINES, with the setting that a panel's lines share, if any."""
    if len(lines) <= MOST_LINES:
        return [("", list(lines))]
    splits = []
    for key in dict.fromkeys(key for line in lines for key in line.settings):
        parts: dict[Any, list[_Line]] = {}
        for line in lines:
            parts.setdefault(line.settings.get(key), []).append(line)
        if max(map(len, parts.values())) <= MOST_LINES:
            splits.append([(key, part) for part in parts.values()])
    chunks = math.ceil(len(lines) / MOST_LINES)
    if splits and len(found := min(splits, key=len)) <= 2 * chunks:  # not a panel for each line
        return found
    return [("", list(lines[at : at + MOST_LINES])) for at in range(0, len(lines), MOST_LINES)]


def _curves(lines: Sequence[_Line], budgets: Sequence[float]) -> Figure:
    """The scores by budget, in as many panels as the lines need."""
    from matplotlib.ticker import NullFormatter

    panels = _panels(lines)
    figure, all_axes = plotting.panels(max(7.0, 4.6 * len(panels)), 4.4, len(panels))
    for axes, (key, part) in zip(all_axes, panels, strict=True):
        for line, style in zip(part, plotting.STYLES, strict=False):
            _draw_line(axes, line, line.label(key), style)
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("epsilon of the whole budget")
        plotting.rule(axes, whole=False)
        if key:
            axes.set_title(_words({key: part[0].settings.get(key)}), fontsize=10)
        # Below its panel, where the layout counts its height; a figure's legend could lie on the footer.
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.19 * max(len(part) for _, part in panels))
    return figure


def _draw_line(axes: Axes, line: _Line, label: str, style: tuple[str, Any, str]) -> None:
    """A method's points with their band; a level across the panel where it has no budget."""
    color, dashes, marker = style
    points = [point for point in line.points if point.budget is not None]
    if not points:
        [point] = line.points
        across: Any = {"transform": axes.get_yaxis_transform(), "linestyle": ":", "marker": marker}
        axes.plot([0.02, 0.98], [point.mean, point.mean], color=color, label=f"{label}, dotted", **across)
        if point.half:
            axes.axhspan(
                point.mean - point.half, point.mean + point.half, color=color, alpha=0.12, linewidth=0
            )
        return
    at = [point.budget for point in points if point.budget is not None]
    axes.plot(at, [point.mean for point in points], color=color, linestyle=dashes, marker=marker, label=label)
    lowest = [point.mean - point.half for point in points]
    highest = [point.mean + point.half for point in points]
    axes.fill_between(at, lowest, highest, color=color, alpha=0.15, linewidth=0)
    for x, low, high in zip(at, lowest, highest, strict=True):
        axes.vlines(x, low, high, color=color, linewidth=1, alpha=0.7)


def _dots(lines: Sequence[_Line]) -> Figure:
    """The scores of one budget: a dot and an interval for each method, in the order of the sweep."""
    figure, [axes] = plotting.panels(7, 1.2 + 0.32 * len(lines))
    for row, line in enumerate(lines):
        color, _, marker = plotting.STYLES[row % len(plotting.STYLES)]
        for point in line.points:
            axes.errorbar(point.mean, row, xerr=point.half or None, color=color, fmt=marker, capsize=3)
    axes.set_yticks(range(len(lines)), [line.label() for line in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    names = max(text.get_window_extent().width for text in axes.get_yticklabels())
    figure.set_size_inches(5 + names / figure.dpi, figure.get_size_inches()[1])
    return figure


def _shared(ended: Sequence[Ended]) -> list[str]:
    """The data set, the clients, the model and the optimizer, as far as all cells share them."""
    tables = [cell.run.config for cell in ended]
    texts = [
        {config.dataset for config in tables},
        {counted(config.clients, "client") for config in tables},
        {config.model for config in tables},
        {config.optimizer for config in tables},
        {f"{config.placement} noise" for config in tables if PLACEMENTS[config.placement].adds_noise},
    ]
    return [next(iter(values)) for values in texts if len(values) == 1]


def _footer(ended: Sequence[Ended], lines: Sequence[_Line], about: str) -> list[str]:
    """How many settings were tried, what intervals are, and what epsilon means, in sentences."""
    found = [f"{about[:1].upper()}{about[1:]}."]
    if any(point.runs > 1 for line in lines for point in line.points):
        found.append("Points: the mean of n runs; bands and bars: the 95 % confidence interval of the mean.")
    if any(math.isnan(point.mean) for line in lines for point in line.points):
        found.append("A point with a run that diverged is left out.")
    differing = differing_meanings(ended)
    meaning = next((cell.meaning for cell in ended if cell.meaning), {})
    if same := {part: value for part, value in meaning.items() if part not in differing}:
        values = "; ".join(f"{_PARTS[part]} = {_value(value)}" for part, value in same.items())
        found.append(f"Epsilon: {values}.")
    for part, values_of in differing.items():
        words = "; ".join(f"{_value(value)} ({_which(cells, ended)})" for value, cells in values_of.items())
        found.append(f"Epsilon does NOT mean the same for all curves. The {_PARTS[part]} differs: {words}.")
    return found


def _left_out(ended: Sequence[Ended], drawn: Sequence[Ended]) -> list[str]:
    """Which cells have another score than the picture's."""
    others = sorted({cell.measure.words for cell in ended if cell not in drawn})
    return [f"Cells that are scored by {' and '.join(others)} are not shown."] if others else []


def _which(cells: Sequence[Ended], ended: Sequence[Ended]) -> str:
    """The setting that tells these cells from the others; their methods where there is no such setting."""
    others = [cell for cell in ended if cell.meaning and all(cell is not one for one in cells)]
    for key in cells[0].settings:
        values = dict.fromkeys(cell.settings.get(key) for cell in cells)
        if not any(cell.settings.get(key) in values for cell in others):
            return " or ".join(_words({key: value}) for value in values)
    methods = list(dict.fromkeys(_words(dict(_method(cell))) for cell in cells))
    more = f" or {len(methods) - _MOST_NAMED} more" if len(methods) > _MOST_NAMED else ""
    return " or ".join(methods[:_MOST_NAMED]) + more


def _value(value: Any) -> str:
    """A part of epsilon's meaning; of a unit its description alone."""
    return f"{value:.3g}" if isinstance(value, float) else str(value).rpartition(": ")[2]


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(assignments({key: "-" if value is None else value for key, value in settings.items()}))
