"""Pictures of the scripts in this folder, but for those of sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from batches import Record
from matplotlib.figure import Figure

from fedpriv._internal.files import atomic
from fedpriv._internal.plotting import png
from fedpriv.report.pictures.points import Point, interval


def figure(title: str) -> tuple[Any, Callable[[], bytes]]:
    """Axes with a title, and a function that gives the picture as a PNG."""
    drawn = Figure(figsize=(7, 4.5), layout="constrained")
    axes = drawn.subplots()
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    return axes, lambda: png(drawn, dpi=100)


def seeded(seeds: Iterable[int]) -> str:
    """The line of a title that says which seeds its runs had."""
    return f"All runs: reproducible, not private (seeds {', '.join(map(str, seeds))})"


def means(runs: Sequence[Record], part: str, along: str, factor: float = 1.0) -> tuple[Point, ...]:
    """The means over runs of a list in their records, with their 95 % intervals, by the values of another."""
    return tuple(
        Point(at, *interval([factor * one[part][place] for one in runs]), len(runs))
        for place, at in enumerate(runs[0][along])
    )


def save(path: Path, drawn: Figure) -> None:
    """Write a figure as a PNG file."""
    with atomic(path) as file:
        file.write(png(drawn))
