"""The picture and the table of all three sweeps in this folder, from their committed results; runs nothing.

    python simulations/silos/picture.py

writes five_ways.png beside this file and prints the table. Points and intervals are over seeds, as those of
`fedpriv report`. Of silos alone a seed's score is the mean of the ten silos: with one seed they draw the same
noise, so that they are not independent of each other.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedpriv._internal import plotting
from fedpriv._internal.files import atomic
from fedpriv.report.pictures import curves, methods
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point, interval
from fedpriv.report.pictures.score_by_epsilon import budget_axis
from fedpriv.tasks.metrics import shown

HERE = Path(__file__).parent
EPSILONS = (1.0, 3.0, 8.0)
SEEDS = "11, 12, 13, 14, 15"
ROUNDS = "10"
GUESSING = 11.5  # percent, of the most frequent label

Row = dict[str, str]
# Each way as the legend names it: its table, and which of the table's rows it is.
WAYS: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "central: noise at the server": ("results.csv", lambda row: row["placement"] == "central"),
    "distributed: shares of the noise": ("results.csv", lambda row: row["placement"] == "distributed"),
    "level=client: private steps of each silo": ("client_level.csv", lambda row: True),
    "local: whole noise from each silo": ("results.csv", lambda row: row["placement"] == "local"),
    "alone: each silo by itself": ("alone.csv", lambda row: row["placement"] == "central"),
    "together: clipped, no noise": ("results.csv", lambda row: row["placement"] == "none"),
    "alone: clipped, no noise": ("alone.csv", lambda row: row["placement"] == "none"),
}
MEANING = (
    "The best ones were chosen on public test examples that no score here has.",
    "Points: the mean of n seeds; alone, a seed's score is the mean of the ten silos. Bands and bars: the "
    "95 % confidence interval of the mean.",
    "Epsilon: privacy unit = one example of one silo; delta = 1e-05; accounting = pld.",
    "Epsilon does NOT mean the same for all curves. Neighbours: one example is added or removed; under "
    "local one is replaced.",
    "Adversary: who sees all models; under local the server, for the example with the largest privacy loss; "
    "under level=client everyone but the example's own silo.",
    "Runs without noise are references; they are not private.",
    f"Guessing the most frequent label gives {GUESSING:g} %.",
)


def scores(file: str, wanted: Callable[[Row], bool]) -> dict[str, list[float]]:
    """The last score of each seed in percent, by epsilon ("" without noise): the mean over silos alone."""
    with (HERE / file).open(newline="") as table:
        rows = [row for row in csv.DictReader(table) if row["round"] == ROUNDS and wanted(row)]
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        place = found.setdefault(row["epsilon"], {})
        place.setdefault(row["seed"], []).append(100 * float(row["accuracy"]))
    return {epsilon: [statistics.fmean(own) for own in by.values()] for epsilon, by in found.items()}


def points() -> dict[str, tuple[Point, ...]]:
    """The points of each way, by its name."""
    found = {}
    for name, (file, wanted) in WAYS.items():
        by_epsilon = scores(file, wanted)
        found[name] = tuple(
            Point(float(epsilon) if epsilon else None, *interval(own), len(own), 100.0)
            for epsilon, own in by_epsilon.items()
        )
    return found


def tried() -> int:
    """How many settings the three sweeps tried."""
    return sum(
        int((HERE / file).read_text().splitlines()[1].rpartition(",")[2])
        for file in dict.fromkeys(file for file, _ in WAYS.values())
    )


def table() -> str:
    """The means with the half widths of their intervals, in Markdown."""
    found = points()
    private = [name for name in found if found[name][0].at is not None]
    names = " | ".join(f"`{name.partition(':')[0]}`" for name in private)
    lines = [f"| epsilon | {names} |", "|---" * (len(private) + 1) + "|"]
    for number, epsilon in enumerate(EPSILONS):
        cells = (f"{found[name][number].mean:.1f} ± {found[name][number].half:.1f}" for name in private)
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    others = (
        f"{name}: {own[0].mean:.1f} ± {own[0].half:.1f}" for name, own in found.items() if not own[0].at
    )
    return "\n".join([*lines, *others])


def draw() -> Figure:
    """The picture."""
    found = points()
    figure, [axes] = plotting.panels(7.4, 4.6)
    for (name, own), style in zip(found.items(), plotting.STYLES, strict=False):
        line = Line({}, own)
        curves.draw_line(axes, line, line.counted(name), style)
    budget_axis(axes, EPSILONS)
    ends: Sequence[float] = [end for own in found.values() for point in own for end in point.range]
    methods.fit([axes], shown({"accuracy": 0.0}), ends, GUESSING)
    methods.finish(figure, [axes], "test accuracy (%)")
    plotting.title(
        figure,
        ["digits, 10 silos of 140, logistic, dp-sgd", f"All runs: reproducible, not private (seeds {SEEDS})"],
    )
    tried_here = f"{tried()} settings tried: 4 for each point, and alone 4 for each silo."
    plotting.footer(figure, [tried_here, *MEANING])
    return figure


def main() -> None:
    """Write the picture, and print the table."""
    with atomic(HERE / "five_ways.png") as file:
        file.write(plotting.png(draw()))
    print(table())


if __name__ == "__main__":
    main()
