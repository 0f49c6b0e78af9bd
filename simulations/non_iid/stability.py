"""How steadily each method learns on strongly skewed clients, with and without an average of its models.

fedpriv sweep simulations/non_iid/averaging.toml --out runs/averaging
python simulations/non_iid/stability.py runs/averaging/results.csv     # without a file: averaging_results.csv
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import markdown

from fedpriv.report.pictures.points import interval

RESULTS = Path(__file__).with_name("averaging_results.csv")
LAST = 30  # the round from which the spread is taken
TITLES = ("optimizer", "averaging", "accuracy", "largest fall", "spread from round 30 on")

Scores = Mapping[int, float]  # percent, by round


def read(path: Path) -> dict[tuple[str, str], list[Scores]]:
    """The scores of each run, by optimizer and averaging."""
    runs: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["round"]):
                run = row["optimizer"], row["averaging"], row["seed"]
                runs[run][int(row["round"])] = 100 * float(row["accuracy"])
    found: dict[tuple[str, str], list[Scores]] = defaultdict(list)
    for (optimizer, averaging, _), scores in runs.items():
        found[optimizer, averaging].append(scores)
    return found


def largest_fall(scores: Scores) -> float:
    """The most points by which a score lies below an earlier one of the same run."""
    best, fall = 0.0, 0.0
    for number in sorted(scores):
        best = max(best, scores[number])
        fall = max(fall, best - scores[number])
    return fall


def table(path: Path = RESULTS) -> str:
    """A row for each optimizer and averaging: means over its seeds, and the 95 % interval of the accuracy."""
    rows = []
    for (optimizer, averaging), runs in read(path).items():
        last = [scores[max(scores)] for scores in runs]
        mean, half = interval(last)
        falls = statistics.mean(map(largest_fall, runs))
        late = [[score for number, score in scores.items() if number >= LAST] for scores in runs]
        spread = statistics.mean(map(statistics.stdev, late))
        rows.append(
            (
                f"`{optimizer}`",
                averaging,
                f"{mean:.1f} ± {half:.1f}",
                f"{falls:.1f}",
                f"{spread:.1f}",
            )
        )
    text: str = markdown(TITLES, rows)
    return text


if __name__ == "__main__":
    print(table(*map(Path, sys.argv[1:2])))
