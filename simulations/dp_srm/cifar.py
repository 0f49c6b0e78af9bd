"""Wang et al. 2023, Figure 3: DP-SRM and DP-SGD on CIFAR-10, three linear layers on fixed features.

    python simulations/dp_srm/cifar.py --search --run --features-folder /tmp/features   # 60 and 40 runs
    python simulations/dp_srm/cifar.py                                                  # the tables

The paper's CNN6 has three convolutions that were trained on CIFAR-100, and trains three linear layers
privately. Those weights and CIFAR-100 are not at hand: the fixed part here is the likeness to patches of dead
leaves (`features=patches-mirrored`), which learns from no data. A fifth of the public test images chooses the
settings of each row, with one seed. The others score the table, with seeds that chose nothing. The images are
under $FEDPRIV_DATA. Finished runs are appended to ``cifar.jsonl`` beside this file and skipped the next time.
Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, SEEDS, Cell, Record, collect, markdown, records_of, run, scores, spread
from cifar_features import EXAMPLES

RESULTS = Path(__file__).with_name("cifar.jsonl")
EPSILONS, DELTA = (2.0, 4.0), 1e-5
PAPER = {"DP-SRM": (33.2, 31.0), "DP-SGD": (33.2, 31.2)}  # test errors in percent
COHORT = 1024
RELEASES = (300, 150)  # the second shows what half of the time is worth
CLIP_NORM = 1.0
RATES = (0.5, 1.0, 2.0)
GAMMAS, DIFFERENCES = (0.3, 0.8), (0.02, 0.1)  # of DP-SRM: gamma, and C_2


def cell(epsilon: float, method: str, releases: int, rate: float, part: str = "rest", **own: float) -> Cell:
    """A run whose score is that of this part of the test images."""
    config: dict[str, Any] = {
        "dataset": "cifar_features:images",
        "features": "patches-mirrored",
        "model": "mlp",
        "sampling-rate": COHORT / EXAMPLES,
        "rounds": releases,
        "optimizer": method.lower(),
        "learning-rate": rate,
        "clip-norm": CLIP_NORM,
        "epsilon": epsilon,
        "delta": DELTA,
        "test-part": part,
        "evaluate-every": releases,
    }
    config |= {f"srm-{name.replace('_', '-')}": value for name, value in own.items()}
    return Cell("search" if part == "tuning" else "table", method, config)


def grid(epsilon: float, method: str, releases: int) -> Iterator[Cell]:
    """What is tried for a row."""
    for rate in RATES:
        if method == "DP-SGD":
            yield cell(epsilon, method, releases, rate, "tuning")
            continue
        for gamma in GAMMAS:
            for difference in DIFFERENCES:
                own = {"gamma": gamma, "difference_clip_norm": difference}
                yield cell(epsilon, method, releases, rate, "tuning", **own)


def grids() -> list[Cell]:
    """Everything that is tried."""
    rows = [(epsilon, method, t) for epsilon in EPSILONS for t in RELEASES for method in PAPER]
    return [made for row in rows for made in grid(*row)]


def chosen(epsilon: float, method: str, releases: int) -> Cell | None:
    """The row's best settings on the tuning part; None where its search is not finished."""
    tried = [(own[0], made) for made in grid(epsilon, method, releases) if (own := found(made))]
    if len(tried) < len(list(grid(epsilon, method, releases))):
        return None
    best = max(tried, key=lambda one: one[0])[1]
    return Cell("table", method, {**best.config, "test-part": "rest"})


def found(made: Cell) -> list[float]:
    """The accuracies of a cell's runs."""
    return scores(RESULTS, made, "accuracy")


def rows() -> list[tuple[float, str, int, Cell]]:
    """The rows whose searches are finished."""
    every = [(epsilon, method, t) for epsilon in EPSILONS for t in RELEASES for method in PAPER]
    return [(*row, made) for row in every if (made := chosen(*row)) is not None]


def run_all(cells: Sequence[Cell], seeds: Sequence[int], folder: str) -> None:
    """Run the cells with these seeds, with features that are kept in ``folder``."""

    def one(job: Record) -> Record:
        made = Cell(**job["cell"])
        files = {"features-folder": folder} if folder else {}
        return run(replace(made, config=made.config | files), job["seed"]) | {"cell": job["cell"]}

    collect(RESULTS, [{"cell": asdict(made), "seed": seed} for seed in seeds for made in cells], one)


def table() -> str:
    """Markdown: a row per budget, number of releases and method."""
    titles = ("epsilon", "method", "releases", "paper, error %", "test error, %", "PLD", "RDP (theirs)")
    lines = []
    for epsilon, method, releases, made in rows():
        own = records_of(RESULTS, made, FRESH)
        if not own:
            continue
        errors, paper = [1 - r["accuracy"] for r in own], PAPER[method][EPSILONS.index(epsilon)]
        costs = [f"{own[0]['epsilon'][name]['epsilon']:.3f}" for name in ("pld", "rdp")]
        lines.append((f"{epsilon:g}", method, str(releases), f"{paper:.1f}", spread(errors, 100), *costs))
    return markdown(titles, lines)


def paired() -> str:
    """Markdown: how much lower DP-SRM's error is than DP-SGD's with the same seeds."""
    lines = []
    for epsilon in EPSILONS:
        for releases in RELEASES:
            made = [chosen(epsilon, method, releases) for method in ("DP-SGD", "DP-SRM")]
            both = [scores(RESULTS, one, "accuracy", FRESH) for one in made if one is not None]
            if len(both) < 2 or not all(len(own) == len(FRESH) for own in both):
                continue
            gaps = [100 * (srm - sgd) for sgd, srm in zip(*both, strict=True)]
            mean, error = statistics.mean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
            lines.append(
                (f"{epsilon:g}", str(releases), f"{mean:+.2f}", f"{error:.2f}", f"{mean / error:+.1f}")
            )
    return markdown(("epsilon", "releases", "DP-SRM's accuracy minus DP-SGD's", "standard error", "t"), lines)


def searched() -> str:
    """Markdown: the settings of the rows, and their accuracy on the tuning part."""
    lines = []
    for epsilon, method, releases, made in rows():
        own = made.config
        srm = [f"{own[key]:g}" if key in own else "" for key in ("srm-gamma", "srm-difference-clip-norm")]
        best = max(found(one)[0] for one in grid(epsilon, method, releases))
        lines.append(
            (f"{epsilon:g}", method, str(releases), f"{own['learning-rate']:g}", *srm, f"{100 * best:.2f}")
        )
    return markdown(("epsilon", "method", "releases", "step size", "gamma", "C_2", "tuning part, %"), lines)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--features-folder", default="", help="where features are kept")
    options = parser.parse_args()
    if options.search:
        run_all(grids(), SEEDS[:1], options.features_folder)
    if options.run:
        run_all([made for *_, made in rows()], FRESH, options.features_folder)
    print(f"{table()}\n\n{paired()}\n\n{searched()}")


if __name__ == "__main__":
    main()
