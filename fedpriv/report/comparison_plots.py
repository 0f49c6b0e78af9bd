"""Plots of a comparison: curves of few groups, or the last scores of many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv._internal import plotting
from fedpriv.report.adversaries import described
from fedpriv.report.comparison import Group, remarks
from fedpriv.report.comparison_table import rank
from fedpriv.report.summary import round_0

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CURVES = 20  # ten colours, with solid and dashed lines
_AGAINST = ("tab:red", "tab:purple", "tab:blue", "tab:green", "tab:orange")
_MARKERS = "osD^v"  # one per cycle of the colours
_LOG_RATIO = 50  # the epsilon axis is logarithmic if the largest budget exceeds the smallest by this factor


def picture(groups: Sequence[Group]) -> bytes:
    """A PNG of the groups' mean scores, with the sample standard deviation of their runs.

    For up to MOST_CURVES groups: the scores by round, and if they have several budgets, the last scores by
    budget. For more groups: the last scores, best first.
    """
    return (curves if len(groups) <= MOST_CURVES else finals)(groups)


def curves(groups: Sequence[Group]) -> bytes:
    """The scores by round, and the last scores by the epsilon of the budget.

    The score is not drawn against the epsilon spent within a run: a run that somebody stops because of its
    score costs its whole budget.
    """
    budgets = {budget for group in groups if (budget := _budget(group)) is not None}
    both = len(budgets) > 1
    figure, (by_round, *others) = plotting.panels(11 if both else 7, 4.4, 1 + both)
    alike, own = remarks(groups)
    adversaries = {_adversary(group) for group in groups} - {""}
    heights = list[float]()
    for number, (group, notes) in enumerate(zip(groups, own, strict=True)):
        rounds, means, spreads = _course(group)
        label = _label(group, notes, named=len(adversaries) > 1)
        color, dashes = f"C{number % 10}", ("-", "--")[number // 10 % 2]
        lowest, highest = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        heights += highest
        by_round.plot(rounds, means, label=label, color=color, marker=".", linestyle=dashes)
        if len(group.runs) > 1:
            by_round.fill_between(rounds, lowest, highest, color=color, alpha=0.15, linewidth=0)
    limits = groups[0].measure.limits(heights)
    whole = f" (each private run's whole budget: epsilon {budgets.pop():g})" if len(budgets) == 1 else ""
    by_round.set(xlabel=f"round{whole}", ylabel=_score(groups), ylim=limits)
    plotting.rule(by_round, whole=True)
    for axes in others:
        _draw_by_budget(axes, groups)
        whom = "the adversary named in the legend" if len(adversaries) > 1 else adversaries.pop()
        level = f"\n{plotting.LEVEL}" if any(_budget(group) is None for group in groups) else ""
        axes.set(xlabel=f"epsilon of the whole budget,\nagainst {whom}{level}", ylim=limits)
        if max(budgets) > _LOG_RATIO * min(budgets):
            axes.set_xscale("log")
        plotting.rule(axes, whole=False)
    plotting.legend(figure, by_round)
    if alike:
        plotting.title(figure, [alike])
    return plotting.png(figure)


def _draw_by_budget(axes: Axes, groups: Sequence[Group]) -> None:
    """The last scores by budget; a line joins groups that differ in their epsilon alone."""
    series: dict[str, list[tuple[float, float, float, int]]] = {}
    for number, group in enumerate(groups):
        (mean, spread), budget = _end(group), _budget(group)
        if budget is None:
            plotting.level(axes, mean, f"C{number % 10}")
            continue
        others = {key: value for key, value in group.settings.items() if key != "epsilon"}
        series.setdefault(str(others), []).append((budget, mean, spread, number))
    for points in series.values():
        at, means, spreads, numbers = zip(*sorted(points), strict=True)
        axes.plot(at, means, color="tab:gray", linewidth=0.8)
        for x, mean, spread, number in zip(at, means, spreads, numbers, strict=True):
            axes.errorbar(x, mean, yerr=spread or None, color=f"C{number % 10}", marker="o", capsize=3)


def _budget(group: Group) -> float | None:
    """The epsilon of the budget; None without noise."""
    found = group.runs[0].report["privacy"]["budget"]
    return None if found is None else float(found["epsilon"])


def finals(groups: Sequence[Group]) -> bytes:
    """The last scores, best first, coloured by the adversary of epsilon."""
    figure, [axes] = plotting.panels(6, 1 + 0.19 * len(groups))
    alike, own = remarks(groups)
    rows = sorted(zip(groups, own, strict=True), key=lambda row: rank(row[0]))
    adversaries = sorted({_adversary(group) for group in groups} - {""})
    colors, markers = len(_AGAINST), len(_MARKERS)
    styles = {"": ("tab:gray", "o")} | {
        whom: (_AGAINST[number % colors], _MARKERS[number // colors % markers])
        for number, whom in enumerate(adversaries)
    }
    for whom, (color, marker) in styles.items():
        at = [place for place, (group, _) in enumerate(rows) if _adversary(group) == whom]
        ends = [_end(rows[place][0]) for place in at]
        if ends:
            means, spreads = zip(*ends, strict=True)
            label = f"against {whom}" if whom else "without noise"
            axes.errorbar(means, at, xerr=spreads, fmt=marker, markersize=4, color=color, label=label)
    axes.set_yticks(range(len(rows)), [_label(*row, spent=True) for row in rows], fontsize=8)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=_score(groups) + ", at the last evaluation")
    plotting.rule(axes, whole=False)
    names = max(text.get_window_extent().width for text in axes.get_yticklabels())
    figure.set_size_inches(5 + names / figure.dpi, figure.get_size_inches()[1])
    plotting.legend(figure, axes)
    if alike:
        plotting.title(figure, [alike])
    return plotting.png(figure)


def _adversary(group: Group) -> str:
    """The adversary of its epsilon; empty without noise."""
    return described(group.json()["against"] or "").partition(",")[0]


def _label(group: Group, notes: Sequence[str], named: bool = False, spent: bool = False) -> str:
    """The group's name with notes in brackets; also its adversary if ``named``, its epsilon if ``spent``."""
    data = group.json()
    texts = [f"{len(group.runs)} runs"] if len(group.runs) > 1 else []
    texts += [f"epsilon {data['epsilon']:.3g}"] if spent and data["epsilon"] is not None else []
    texts += [f"against {_adversary(group)}"] if named and _adversary(group) else []
    texts += ["an ESTIMATE"] if data["kind"] == "estimate" else []
    texts += notes
    return f"{group.name} ({'; '.join(texts)})" if texts else group.name


def _score(groups: Sequence[Group]) -> str:
    """The label of the scores' axis."""
    repeated = any(len(group.runs) > 1 for group in groups)
    return groups[0].measure.axis + (", +- standard deviation of runs" if repeated else "")


def _course(group: Group) -> tuple[list[int], list[float], list[float]]:
    """The rounds at which all runs were evaluated, from 0 on, with the mean of the runs' scores and their
    standard deviation (0 for one run)."""
    records_of = [[*round_0(run.report), *run.metrics] for run in group.runs]
    by_round = [{record["round"]: record for record in records} for records in records_of]
    rounds = sorted(set.intersection(*(set(records) for records in by_round)))
    heights = [group.measure.heights([records[r] for records in by_round]) for r in rounds]
    return rounds, [statistics.fmean(column) for column in heights], [*map(_spread, heights)]


def _end(group: Group) -> tuple[float, float]:
    """The mean of the last scores and their standard deviation, in the units of the axis."""
    heights = group.measure.heights([run.metrics[-1] for run in group.runs])
    return statistics.fmean(heights), _spread(heights)


def _spread(heights: Sequence[float]) -> float:
    known = all(math.isfinite(height) for height in heights)
    return statistics.stdev(heights) if known and len(heights) > 1 else 0.0
