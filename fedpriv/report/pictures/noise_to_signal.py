"""The noise of the update against rounds, over the largest signal that clipping lets through.

It follows from public quantities alone: the noise multipliers, the expected cohort and the number of
parameters (:func:`fedpriv.report.notices.noise_to_signal`). Nothing about the data is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.report.pictures import methods
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point
from fedpriv.report.summary import NOISE_TO_SIGNAL
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Noise to signal of the update by round"
_MOST_PANELS = 6
_LOG_RATIO = 10


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture; None where no report has the ratios."""
    drawn = [cell for cell in ended if cell.run.report["privacy"].get(NOISE_TO_SIGNAL)]
    if not drawn:
        return None
    lines = _merged(methods.lines(drawn, ("seed",), _points)[0])
    most = methods.MOST_LINES - 1  # beside the level where the noise is as long as the signal
    kept = lines[: most * _MOST_PANELS]
    panels = methods.panels(kept, most)
    figure, all_axes = methods.grid(len(panels))
    heights = [point.mean for line in kept for point in line.points]
    labelled = [[(_label(line, key), line) for line in part] for key, part in panels]
    styles = _styles([[label for label, _ in part] for part in labelled])
    for axes, (key, part), named in zip(all_axes, panels, labelled, strict=True):
        for label, line in named:
            at = [point.at for point in line.points if point.at is not None]
            color, dashes, marker = styles[label]
            style = {"color": color, "linestyle": dashes, "marker": marker, "markevery": max(1, len(at) // 8)}
            axes.plot(at, [point.mean for point in line.points], markersize=4, label=label, **style)
        plotting.level(axes, 1, "noise = largest signal")
        if max(heights) > _LOG_RATIO * min(*heights, 1.0):
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.1 * max(*heights, 1.0))
        axes.set_xlabel("round")
        plotting.rule(axes)
        if key:
            axes.set_title(methods.words({key: part[0].settings.get(key)}), fontsize=10)
    methods.finish(figure, all_axes, "noise norm / largest norm of the mean")
    plotting.title(figure, [", ".join(methods.shared(drawn)), *methods.marks(drawn)])
    footer = [
        *methods.simulated(drawn),
        f"{about[:1].upper()}{about[1:]}.",
        "The noise on the mean update has the norm sqrt(d) z C / m on average, with d parameters, the noise "
        "multiplier z of the sum, the clip norm C and the expected cohort m. The mean of clipped updates has "
        "at most the norm C, and often a much smaller one. All of it is public: no data was looked at.",
    ]
    if len(lines) > len(kept):
        footer.append(f"{len(lines) - len(kept)} more methods are not shown.")
    plotting.footer(figure, footer)
    return figure


def _label(line: Line, left_out: str) -> str:
    return methods.words({k: v for k, v in line.settings.items() if k != left_out}) or "all runs"


def _styles(panels: Sequence[Sequence[str]]) -> dict[str, tuple[str, Any, str]]:
    """A style for each label, the same in all panels, and another one for each label of a panel."""
    found: dict[str, int] = {}
    for labels in sorted(panels, key=len, reverse=True):
        for label in labels:
            taken = {found[other] for other in labels if other in found}
            free = [number for number in range(methods.MOST_LINES) if number not in taken]
            unused = [number for number in free if number not in found.values()]
            found.setdefault(label, (unused or free)[0])
    return {label: plotting.STYLES[number] for label, number in found.items()}


def _merged(lines: Sequence[Line]) -> list[Line]:
    """The lines, those that lie on each other as one, which has all of their values of each setting."""
    found: dict[tuple[tuple[float | None, float], ...], list[Line]] = {}
    for line in lines:
        mark = tuple((point.at, methods.alike(point.mean)) for point in line.points)
        found.setdefault(mark, []).append(line)
    return [
        Line(methods.together([line.settings for line in same]), same[0].points) for same in found.values()
    ]


def _points(cells: Sequence[Ended]) -> list[Point]:
    """The ratios of the first cell, which are those of all its repetitions, by round."""
    run = cells[0].run
    found = run.report["privacy"][NOISE_TO_SIGNAL]
    a_round = max(1.0, found[-1][0] / run.config.rounds)
    return [Point(release / a_round, ratio, 0.0, len(cells)) for release, ratio in found]
