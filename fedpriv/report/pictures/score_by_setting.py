"""The last score against a numeric setting with several values: a line for each of the other settings.

The sampling rate is drawn as the expected cohort, the clients times the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedpriv.report.pictures import curves, methods
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Score against a numeric setting"
_FEWEST = 3  # values that make a curve
_FEW = 8  # values with a tick each
_NOT_DRAWN = ("seed", "epsilon")  # repetitions, and the axis of a picture of its own
_RATE = "sampling-rate"


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture, for the setting with most values; None where no method has three values of a setting."""
    drawn = methods.of_one_measure(ended)
    key = _setting(drawn)
    if key is None:
        return None
    lines, alike = _lines(drawn, key)
    kept = curves.shown(lines, methods.chance(drawn))
    places = sorted({point.at for line in kept for point in line.points if point.at is not None})

    def axis(axes: Axes) -> None:
        _scale(axes, places)
        units = {f"{cell.run.config.unit}s" for cell in drawn}
        cohort = f"expected cohort ({' or '.join(sorted(units))} x sampling-rate)"
        axes.set_xlabel(cohort if key == _RATE else key)

    return curves.of_scores(ended, lines, alike, about, curves.draw_line, axis)


def _lines(cells: Sequence[Ended], key: str) -> tuple[list[Line], str]:
    return methods.lines(cells, (key, "seed"), partial(_points, key=key))


def _setting(cells: Sequence[Ended]) -> str | None:
    """The numeric setting with most values, of which some method has enough for a curve."""
    values: dict[str, set[float]] = {}
    for cell in cells:
        for key, value in cell.settings.items():
            if key not in _NOT_DRAWN and isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(key, set()).add(value)
    for key in sorted(values, key=lambda key: -len(values[key])):
        longest = max(sum(point.at is not None for point in line.points) for line in _lines(cells, key)[0])
        if longest >= _FEWEST:
            return key
    return None


def _points(cells: Sequence[Ended], key: str) -> list[Point]:
    """A point for each value; without a place where the setting has no effect."""
    by_place: dict[float | None, list[Ended]] = {}
    for cell in cells:
        by_place.setdefault(_place(cell, key), []).append(cell)
    return [
        Point.of(at, by_place[at])
        for at in sorted(by_place, key=lambda at: -float("inf") if at is None else at)
    ]


def _place(cell: Ended, key: str) -> float | None:
    """The value of the setting in this cell; of the sampling rate the expected cohort."""
    value = cell.settings.get(key)
    if value is None:
        return None
    return float(value) * (cell.run.config.units if key == _RATE else 1)


def _scale(axes: Axes, places: Sequence[float]) -> None:
    """A logarithmic axis where the places span a factor of ten; a tick at each where there are few."""
    from matplotlib.ticker import NullFormatter

    if places[0] > 0 and places[-1] >= 10 * places[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if len(places) <= _FEW:
        axes.set_xticks(places, [f"{place:,.10g}" for place in places])
    axes.grid(alpha=0.3)
