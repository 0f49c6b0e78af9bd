"""What the package's pictures share: panels side by side, whose lines start at 0, as a PNG.

matplotlib is imported where something is drawn: it takes a while, and most commands draw nothing.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(width: float, height: float, number: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of this size in inches, and its panels from left to right, which share the vertical axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, number, sharey=True, squeeze=False)[0])


def rule(axes: Axes, whole: bool = True) -> None:
    """Give a panel a grid, and its horizontal axis a start at 0 and, where ``whole``, whole numbers in steps
    of 1, 2 or 5; to be called after its lines are drawn."""
    from matplotlib.ticker import MaxNLocator

    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.set_xlim(left=0)


def png(figure: Figure, dpi: int = 120) -> bytes:
    """The figure's file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
