"""The table and the picture of the sweeps in this folder, from their committed results; runs nothing.

    python simulations/levels/table.py

prints the tables and writes levels.png beside this file. Points are means over seeds, with their 95 %
intervals (Student's t); differences from `dp-sgd` are seed by seed.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from matplotlib.figure import Figure

from fedpriv._internal import plotting
from fedpriv._internal.files import atomic
from fedpriv.report.pictures.points import interval

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import markdown

HERE = Path(__file__).parent
EPSILONS = ("1.0", "8.0")
# Each column: its table, the placement of its rows, and how the picture names it.
COLUMNS = {
    "centralised": ("centralised", None, "one party"),
    "250,000 clients, central": ("clients", "central", "250,000 clients\ncentral"),
    "250,000 clients, distributed": ("clients", "distributed", "250,000 clients\ndistributed"),
    "250,000 clients, local": ("clients", "local", "250,000 clients\nlocal"),
    "50 silos, distributed": ("server", "distributed", "50 silos\ndistributed"),
    "50 silos, local": ("server", "local", "50 silos\nlocal"),
    "50 silos, client level": ("silos", None, "50 silos\nlevel=client"),
}

Scores = dict[str, dict[str, dict[str, dict[str, float]]]]


def scores() -> Scores:
    """Accuracies in percent, by column, epsilon, optimizer and seed."""
    found: Scores = {}
    for column, (file, placement, _) in COLUMNS.items():
        with (HERE / f"{file}_results.csv").open(newline="") as table:
            for row in csv.DictReader(table):
                if placement in (None, row.get("placement")):
                    own = found.setdefault(column, {}).setdefault(row["epsilon"], {})
                    own.setdefault(row["optimizer"], {})[row["seed"]] = 100 * float(row["accuracy"])
    return found


def tables() -> str:
    """For each epsilon, the means with the half widths of their intervals, and what each optimizer gains."""
    found, parts = scores(), list[str]()
    optimizers = list(found["centralised"][EPSILONS[0]])
    for epsilon in EPSILONS:
        rows = [
            (f"`{one}`", *(said(list(found[column][epsilon][one].values())) for column in COLUMNS))
            for one in optimizers
        ]
        parts += [f"Epsilon {float(epsilon):g}:", markdown(("optimizer", *COLUMNS), rows)]
        gains = [
            (f"`{one}`", *(said(gain(found[column][epsilon], one), sign="+") for column in COLUMNS))
            for one in optimizers
            if one != "dp-sgd"
        ]
        parts += ["Less `dp-sgd`, seed by seed:", markdown(("optimizer", *COLUMNS), gains)]
    return "\n\n".join(parts)


def gain(by_optimizer: dict[str, dict[str, float]], one: str) -> list[float]:
    """By how many points an optimizer is above `dp-sgd` with each seed."""
    return [score - by_optimizer["dp-sgd"][seed] for seed, score in by_optimizer[one].items()]


def said(values: list[float], sign: str = "") -> str:
    mean, half = interval(values)
    return f"{mean:{sign}.1f} ± {half:.1f}"


def draw() -> Figure:
    """A panel for each epsilon; columns from left to right, a mark for each optimizer."""
    found = scores()
    figure, all_axes = plotting.panels(9.0, 7.5, len(EPSILONS), columns=1)
    for axes, epsilon in zip(all_axes, EPSILONS, strict=True):
        optimizers = list(found["centralised"][epsilon])
        for number, (one, style) in enumerate(zip(optimizers, plotting.STYLES, strict=False)):
            color, _, marker = style
            shift = (number - (len(optimizers) - 1) / 2) * 0.09
            places = [n + shift for n in range(len(COLUMNS))]
            means, halves = zip(
                *(interval(list(found[column][epsilon][one].values())) for column in COLUMNS), strict=True
            )
            axes.errorbar(
                places, means, halves, color=color, marker=marker, markersize=5, linestyle="none", label=one
            )
        axes.set_xticks(range(len(COLUMNS)), [name for *_, name in COLUMNS.values()], fontsize=7)
        axes.set_title(f"epsilon={float(epsilon):g}", fontsize=10)
        axes.grid(axis="y", alpha=0.3)
        axes.set_ylabel("test accuracy (%)")
    all_axes[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=8)
    about = "infinite-mnist, 250,000 images, logistic"
    plotting.title(figure, [about, "All runs: reproducible, not private (seeds 11, 12, 13, 14, 15)"])
    plotting.footer(
        figure,
        [
            "Points: the mean of 5 seeds; bars: the 95 % confidence interval of the mean. Each chose the "
            "best of 5 step sizes on public test examples that no score here has.",
            "Epsilon: delta = 4e-07; accounting = pld. It does NOT mean the same for all columns: the README "
            "says who the adversary is in each.",
        ],
    )
    return figure


def main() -> None:
    """Write the picture, and print the tables."""
    with atomic(HERE / "levels.png") as file:
        file.write(plotting.png(draw()))
    print(tables())


if __name__ == "__main__":
    main()
