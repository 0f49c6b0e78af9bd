"""Pictures of the scripts in this folder that compute and do not train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from fedpriv._internal.plotting import png


def figure(title: str) -> tuple[Any, Callable[[], bytes]]:
    """Axes with a title, and a function that gives the picture as a PNG."""
    drawn = Figure(figsize=(7, 4.5), layout="constrained")
    axes = drawn.subplots()
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    return axes, lambda: png(drawn, dpi=100)
