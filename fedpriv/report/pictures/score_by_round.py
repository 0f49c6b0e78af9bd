"""The score against rounds: a line for each method and budget, with the interval of its repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.report.pictures import curves, methods
from fedpriv.report.pictures.curves import Style
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point
from fedpriv.report.summary import round_0
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Score against rounds"


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture; None where no method was evaluated at two rounds."""
    lines, alike = methods.lines(methods.of_one_measure(ended), ("seed",), _points)
    if all(len(line.points) < 2 for line in lines):
        return None
    more = "A run that somebody stops because of its score costs its whole budget."
    return curves.of_scores(ended, lines, alike, about, _draw_line, _axis, [more])


def _draw_line(axes: Axes, line: Line, label: str, style: Style) -> None:
    color, dashes, marker = style
    at = [point.at for point in line.points if point.at is not None]
    means = [point.mean for point in line.points]
    own: dict[str, Any] = {"color": color, "linestyle": ":" if line.reference else dashes}
    every = max(1, len(at) // 10)
    axes.plot(at, means, marker=marker, markersize=4, markevery=every, label=label, **own)
    methods.band(axes, line.points, color)


def _axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    plotting.rule(axes)


def _points(cells: Sequence[Ended]) -> list[Point]:
    """A point for each round at which all runs were evaluated, from 0 on."""
    records_of = [[*round_0(cell.run.report), *cell.evaluations] for cell in cells]
    by_round = [{record["round"]: record for record in records} for records in records_of]
    rounds = sorted(set.intersection(*(set(records) for records in by_round)))
    measure = cells[0].measure
    return [Point.of_records(at, measure, [records[at] for records in by_round]) for at in rounds]
