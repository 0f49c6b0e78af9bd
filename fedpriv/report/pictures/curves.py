"""Panels with a line for each method, and what several pictures of scores say below them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.report.pictures import methods
from fedpriv.report.pictures.methods import Line
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_PANELS = 6

Style = tuple[str, Any, str]  # colour, dashes and marker
Draw = Callable[["Axes", Line, str, Style], None]


def in_panels(
    lines: Sequence[Line], most: int, draw: Draw, axis: Callable[[Axes], None]
) -> tuple[Figure, list[Axes]]:
    """The lines in as many panels as they need.

    Args:
        lines: the methods.
        most: of a panel.
        draw: draws a line with this label and style.
        axis: sets up a panel's horizontal axis.
    """
    panels = methods.panels(lines, most)
    figure, all_axes = methods.grid(len(panels))
    for axes, (key, part) in zip(all_axes, panels, strict=True):
        for line, style in zip(part, plotting.STYLES, strict=False):
            draw(axes, line, line.label(key), style)
        axis(axes)
        if key:
            axes.set_title(methods.words({key: part[0].settings.get(key)}), fontsize=10)
    return figure, all_axes


def shown(lines: Sequence[Line], guessing: float | None) -> Sequence[Line]:
    """The lines that there is room for, beside the one of ``guessing`` in each panel."""
    return lines[: methods.capacity(guessing) * _MOST_PANELS]


def of_scores(
    ended: Sequence[Ended],
    lines: Sequence[Line],
    alike: str,
    about: str,
    draw: Draw,
    axis: Callable[[Axes], None],
    more: Sequence[str] = (),
) -> Figure:
    """The scores of methods, with a title and a footer.

    Args:
        ended: all cells.
        lines: the methods of those that are scored as the first one is.
        alike: the remarks that hold for all methods.
        about: how many cells and settings there are, in words.
        draw, axis: see :func:`in_panels`.
        more: further sentences of the footer.
    """
    measure, drawn = ended[0].measure, methods.of_one_measure(ended)
    guessing = methods.chance(drawn)
    kept = shown(lines, guessing)
    figure, all_axes = in_panels(kept, methods.capacity(guessing), draw, axis)
    points = [point for line in kept for point in line.points]
    sentences = methods.fit(all_axes, measure, [end for point in points for end in point.range], guessing)
    methods.finish(figure, all_axes, measure.axis)
    plotting.title(figure, [", ".join(methods.shared(drawn)), *filter(None, [alike])])
    if len(lines) > len(kept):
        sentences.append(f"{len(lines) - len(kept)} more methods are not shown.")
    footer = [*methods.footer(drawn, points, about), *sentences, *more, *methods.left_out(ended, drawn)]
    plotting.footer(figure, footer)
    return figure


def draw_line(axes: Axes, line: Line, label: str, style: Style) -> None:
    """A method's points with their band; a level across the panel where it has no place on the axis."""
    color, dashes, marker = style
    points = [point for point in line.points if point.at is not None]
    if not points:
        [point] = line.points
        across: Any = {"transform": axes.get_yaxis_transform(), "linestyle": ":", "marker": marker}
        axes.plot([0.02, 0.98], [point.mean, point.mean], color=color, label=f"{label}, dotted", **across)
        if point.half:
            axes.axhspan(*point.range, color=color, alpha=0.12, linewidth=0)
        return
    at = [point.at for point in points if point.at is not None]
    means = [point.mean for point in points]
    axes.plot(at, means, color=color, linestyle=dashes, marker=marker, markersize=5, label=label)
    methods.band(axes, points, color)
    for x, point in zip(at, points, strict=True):
        axes.vlines(x, *point.range, color=color, linewidth=1, alpha=0.7)
