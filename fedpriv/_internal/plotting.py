"""Shared parts of all plots: panels side by side, axes that start at 0, legends, PNG and SVG output.

matplotlib is imported on first use: the import takes a while, and most commands draw nothing.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people tell apart, each with a style of line and a marker.
STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", (0, (3, 1, 1, 1, 1, 1)), "D"),
    ("#E69F00", (0, (5, 1)), "v"),
    ("#56B4E9", (0, (4, 1, 1, 1)), "P"),
    ("#000000", (0, (8, 2)), "X"),
    ("#8A8A00", (0, (1, 1)), "*"),
)


CUT = "cut"  # the id of the strokes of ``cut``


def panels(
    width: float, height: float, number: int = 1, columns: int | None = None, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """(a figure of this size in inches, its panels row by row, with a shared vertical axis if ``share``).

    The panels are in one row, or in rows of ``columns``.
    """
    figure = _picture()(figsize=(width, height), layout="constrained")
    columns = min(columns or number, number)
    rows = -(-number // columns)
    found = list(figure.subplots(rows, columns, sharey=share, squeeze=False).flat)
    for unused in found[number:]:
        unused.remove()
    return figure, found[:number]


def cut(axes: Axes, horizontal: bool = False) -> None:
    """Two small strokes where the vertical axis starts, or the horizontal one: it does not start at 0."""
    from matplotlib.path import Path

    stroke: Any = Path([(-0.6, -1), (0.6, 1)] if horizontal else [(-1, -0.6), (1, 0.6)])
    style: Any = {"color": "black", "clip_on": False, "transform": axes.transAxes, "zorder": 5}
    along, across = ([0, 0.012], [0, 0]) if horizontal else ([0, 0], [0, 0.02])
    axes.scatter(along, across, marker=stroke, s=80, gid=CUT, **style)


@cache
def _picture() -> type[Figure]:
    """A figure that a notebook shows as a cell's value, with or without matplotlib's inline backend."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return png(self)

    return Picture


def level(axes: Axes, at: float, label: str) -> None:
    """A dotted grey line across a panel, such as a budget or the score of guessing."""
    axes.axhline(at, color="#555555", linestyle=(0, (1, 3)), linewidth=1.2, label=label)


def rule(axes: Axes, whole: bool = True) -> None:
    """Adds a grid, and starts a linear horizontal axis at 0. Call it after the panel's lines are drawn.

    With ``whole`` the horizontal axis has integer ticks in steps of 1, 2 or 5.
    """
    from matplotlib.ticker import MaxNLocator

    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    if axes.get_xscale() == "linear":
        axes.set_xlim(left=0)


def legend(figure: Figure, axes: Axes) -> None:
    """A legend below all panels in as many columns as fit. The figure grows by its height."""
    width, height = figure.get_size_inches()
    lines = axes.get_legend_handles_labels()
    for columns in range(min(5, len(lines[0])), 0, -1):
        box = figure.legend(*lines, ncols=columns, fontsize=8, loc="outside lower center")
        extent = box.get_window_extent()
        if columns == 1 or extent.width < 0.98 * width * figure.dpi:
            break
        box.remove()
    wanted = 1.02 * extent.width / figure.dpi
    figure.set_size_inches(max(width, wanted), height + extent.height / figure.dpi)


def title(figure: Figure, lines: Sequence[str]) -> None:
    """A title above all panels, wrapped to the figure's width. The figure grows by its height."""
    width, height = figure.get_size_inches()
    broken = [part for line in lines for part in wrap(line, int(13 * width))]
    figure.suptitle("\n".join(broken), fontsize=10)
    figure.set_size_inches(width, height + 0.17 * len(broken))


def footer(figure: Figure, lines: Sequence[str]) -> None:
    """Small text below everything, wrapped to the figure's width. The figure grows by its height.

    Call it last: it freezes the layout.
    """
    width, height = figure.get_size_inches()
    broken = [part for line in lines for part in wrap(line, int(15 * width), break_on_hyphens=False)]
    share = 0.15 * len(broken) + 0.1
    figure.set_size_inches(width, height + share)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, share / (height + share), 1, height / (height + share)))
    figure.text(0.01, 0.05 / (height + share), "\n".join(broken), fontsize=8, va="bottom", ha="left")


def svg(figure: Figure) -> bytes:
    """The figure as the bytes of an SVG file, the same for the same figure."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedpriv"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def png(figure: Figure, dpi: int = 120) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
