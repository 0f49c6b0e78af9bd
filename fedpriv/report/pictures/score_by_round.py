"""The score against rounds: a line for each method and budget, with the interval of its repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.report.pictures import methods
from fedpriv.report.pictures.points import Point
from fedpriv.report.summary import round_0
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Score against rounds"
_MOST_PANELS = 6


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture; None where no method was evaluated at two rounds."""
    measure, drawn = ended[0].measure, methods.of_one_measure(ended)
    lines, alike = methods.lines(drawn, ("seed",), _points)
    if all(len(line.points) < 2 for line in lines):
        return None
    guessing = methods.chance(drawn)
    most = methods.capacity(guessing)
    kept = lines[: most * _MOST_PANELS]
    panels = methods.panels(kept, most)
    figure, all_axes = methods.grid(len(panels))
    for axes, (key, part) in zip(all_axes, panels, strict=True):
        for line, (color, dashes, marker) in zip(part, plotting.STYLES, strict=False):
            at = [point.at for point in line.points if point.at is not None]
            means = [point.mean for point in line.points]
            style: dict[str, Any] = {"color": color, "linestyle": ":" if line.reference else dashes}
            every = max(1, len(at) // 10)
            axes.plot(at, means, marker=marker, markersize=4, markevery=every, label=line.label(key), **style)
            methods.band(axes, line.points, color)
        axes.set_xlabel("round")
        plotting.rule(axes)
        if key:
            axes.set_title(methods.words({key: part[0].settings.get(key)}), fontsize=10)
    points = [point for line in kept for point in line.points]
    sentences = methods.fit(all_axes, measure, [end for point in points for end in point.range], guessing)
    methods.finish(figure, all_axes, measure.axis)
    plotting.title(figure, [", ".join(methods.shared(drawn)), *filter(None, [alike])])
    if len(lines) > len(kept):
        sentences.append(f"{len(lines) - len(kept)} more methods are not shown.")
    sentences.append("A run that somebody stops because of its score costs its whole budget.")
    footer = methods.footer(drawn, points, about)
    plotting.footer(figure, [*footer, *sentences, *methods.left_out(ended, drawn)])
    return figure


def _points(cells: Sequence[Ended]) -> list[Point]:
    """A point for each round at which all runs were evaluated, from 0 on."""
    records_of = [[*round_0(cell.run.report), *cell.evaluations] for cell in cells]
    by_round = [{record["round"]: record for record in records} for records in records_of]
    rounds = sorted(set.intersection(*(set(records) for records in by_round)))
    measure = cells[0].measure
    return [Point.of_records(at, measure, [records[at] for records in by_round]) for at in rounds]
