"""The score against the population under central and local noise, and where local noise comes close.

Close is five points below central noise with the same budget and the same number of clients. Between
populations that were tried, the scores are joined by lines in the logarithm of the population.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.mechanism.placement import Central, Local
from fedpriv.report.pictures import methods
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Population at which local noise comes within five points of central noise"
GAP = 5.0  # points
_MOST = 6
_PLACEMENTS = (Central.name, Local.name)


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture; None without central and local noise at two populations each, scored in percent."""
    measure, drawn = ended[0].measure, methods.of_one_measure(ended)
    pairs = _pairs(drawn) if measure.fraction else []
    if not pairs:
        return None
    parties = " or ".join(sorted({f"{cell.run.config.privacy_unit.party}s" for cell in drawn}))
    shown = pairs[:_MOST]
    figure, all_axes = methods.grid(len(shown))
    sentences, points = [], list[Point]()
    for axes, (name, central, local) in zip(all_axes, shown, strict=True):
        at = reached(central, local)
        _draw(axes, central, local, at, parties)
        axes.set_title(name, fontsize=10)
        points += [*central, *local]
        sentences.append(f"{name}: {_said(at, central, local, parties)}.")
    guessing = methods.chance(drawn)
    sentences += methods.fit(all_axes, measure, [end for point in points for end in point.range], guessing)
    methods.finish(figure, all_axes, measure.axis)
    if len(pairs) > len(shown):
        sentences.append(f"{len(pairs) - len(shown)} more groups of settings are not shown.")
    cells = [cell for cell in drawn if cell.run.config.placement in _PLACEMENTS]
    plotting.title(figure, [", ".join(methods.shared(cells)), *methods.marks(cells)])
    plotting.footer(figure, [*methods.footer(cells, points, about), *sentences])
    return figure


def reached(central: Sequence[Point], local: Sequence[Point]) -> float | None:
    """The smallest population from which on local noise is at most GAP points below central noise.

    It is the smallest that was tried where local noise is as close there already, and None where it is not as
    close at the largest one.

    >>> central = [Point(1e3, 80.0, 0.0, 1), Point(1e5, 90.0, 0.0, 1)]
    >>> local = [Point(1e3, 65.0, 0.0, 1), Point(1e5, 95.0, 0.0, 1)]
    >>> reached(central, local)  # 10 points are missing, then there are 10 too many
    10000.0
    """
    other = {point.at: point.mean for point in local}
    missing = [
        (math.log10(point.at), point.mean - GAP - other[point.at])
        for point in central
        if point.at is not None and point.at in other
    ]
    missing = [(at, short) for at, short in missing if not math.isnan(short)]
    if not missing or missing[-1][1] > 0:
        return None
    last = max((n for n, (_, short) in enumerate(missing) if short > 0), default=-1)
    if last < 0:
        return round(10 ** missing[0][0], 6)
    (x0, y0), (x1, y1) = missing[last], missing[last + 1]
    return float(10 ** (x0 + (x1 - x0) * y0 / (y0 - y1)))


def _said(at: float | None, central: Sequence[Point], local: Sequence[Point], parties: str) -> str:
    """What the crossing is, in words."""
    both = sorted({p.at for p in central if p.at} & {p.at for p in local if p.at})
    goal = f"{GAP:g} points below central noise"
    if at is None:
        return f"local noise does not come to {goal} with up to {both[-1]:,.0f} {parties}"
    if at <= both[0]:
        return f"local noise is at most {goal} with {both[0]:,.0f} {parties} already"
    return f"local noise comes to {goal} at about {float(f'{at:.2g}'):,.0f} {parties}"


def _pairs(cells: Sequence[Ended]) -> list[tuple[str, list[Point], list[Point]]]:
    """(settings, points of central noise, points of local noise), by population, for each other setting."""
    keys = dict.fromkeys(key for cell in cells for key in cell.settings)
    free = [k for k in keys if k not in ("clients", "placement", "seed", "epsilon") and _free(cells, k)]
    found: dict[tuple[Any, ...], dict[str, list[Ended]]] = {}
    for cell in cells:
        if cell.run.config.placement in _PLACEMENTS:
            mark = (cell.budget, *((key, cell.settings.get(key)) for key in free))
            found.setdefault(mark, {}).setdefault(cell.run.config.placement, []).append(cell)
    pairs = []
    for (budget, *settings), by_placement in found.items():
        central, local = (_points(by_placement.get(name, [])) for name in _PLACEMENTS)
        if len({point.at for point in central} & {point.at for point in local}) > 1:
            name = methods.words({"epsilon": budget, **dict(settings)})
            pairs.append((name, central, local))
    return pairs


def _free(cells: Sequence[Ended], key: str) -> bool:
    """Whether a setting does not follow from the placement alone, as the sampler may."""
    values: dict[str, set[Any]] = {}
    for cell in cells:
        values.setdefault(cell.run.config.placement, set()).add(cell.settings.get(key))
    return any(len(of) > 1 for of in values.values())


def _points(cells: Sequence[Ended]) -> list[Point]:
    by_size: dict[int, list[Ended]] = {}
    for cell in cells:
        by_size.setdefault(cell.run.config.clients, []).append(cell)
    return [Point.of(size, of) for size, of in sorted(by_size.items())]


def _draw(
    axes: Axes, central: Sequence[Point], local: Sequence[Point], at: float | None, parties: str
) -> None:
    for points, name, (color, dashes, marker) in zip(
        (central, local), _PLACEMENTS, plotting.STYLES, strict=False
    ):
        where, means = [p.at for p in points if p.at], [point.mean for point in points]
        label = Line({}, tuple(points)).counted(f"{name} noise")
        axes.plot(where, means, color=color, linestyle=dashes, marker=marker, label=label)
        methods.band(axes, points, color)
    where = [point.at for point in central if point.at]
    goal = [point.mean - GAP for point in central]
    label = f"central noise less {GAP:g} points"
    axes.plot(where, goal, color=plotting.STYLES[0][0], linewidth=0.9, linestyle=(0, (1, 2)), label=label)
    axes.set_xscale("log")
    axes.set_xlabel(parties)
    plotting.rule(axes, whole=False)
    if at is not None:
        axes.axvline(at, color="#555555", linewidth=0.9)
        text = f"{float(f'{at:.2g}'):,.0f} {parties}"
        place: Any = {"xycoords": ("data", "axes fraction"), "fontsize": 8, "ha": "left", "va": "bottom"}
        axes.annotate(f" {text}", (at, 0.02), **place)
