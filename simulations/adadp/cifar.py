"""Koskela & Honkela 2020, Figures 1b and 4: ADADP untuned against DP-Adam and DP-SGD, CIFAR-10 on features.

    python simulations/adadp/cifar.py --search --run      # the grids, then 5 seeds of each row
    python simulations/adadp/cifar.py                     # the table from cifar.jsonl

The images are under $FEDPRIV_DATA; ``simulations/cifar_features.py`` has their fixed features. A fifth of the
public test images chooses the step sizes of the baselines, with one seed. The others score the table, with
seeds that chose nothing. Finished runs are appended to ``cifar.jsonl`` beside this file and skipped the next
time. Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, SEEDS, Cell, markdown, read, records_of, spread
from cifar_features import EXAMPLES
from side_by_side import Softmax, run_together

RESULTS = Path(__file__).with_name("cifar.jsonl")
COHORT, DELTA, EPOCHS = 200, 1e-6, 50
EPOCH = EXAMPLES // COHORT  # releases
SIGMAS = (2.0, 8.0)
TUNED_AT = 2.0  # where DP-SGD's step size is tuned, section 5.4
CLIP_NORM = 0.1  # as on MNIST: it was not chosen here
GRIDS = {
    "DP-Adam": tuple(10.0 ** (k / 2) for k in (-8, -7, -6, -5, -4, -3)),
    "DP-SGD": tuple(10.0 ** (k / 2) for k in (-2, -1, 0, 1)),
}
START = 0.1  # of ADADP, which is not tuned
METHODS = ("ADADP", *GRIDS)


def cell(method: str, sigma: float, learning_rate: float, part: str = "rest") -> Cell:
    """Softmax regression, 50 passes over the data with noise multiplier sigma.

    ``part`` of the test images scores it.
    """
    config: dict[str, Any] = {
        "dataset": "cifar_features:features",
        "model": "logistic",
        "sampling-rate": COHORT / EXAMPLES,
        "rounds": EPOCHS * EPOCH,
        "optimizer": method.lower(),
        "learning-rate": learning_rate,
        "clip-norm": CLIP_NORM,
        "delta": DELTA,
        "test-part": part,
        "evaluate-every": EPOCHS * EPOCH,
    }
    if method == "ADADP":  # as in run.py: half of the run is adaptive, then equation 5.1
        decay = EPOCHS // 2 * EPOCH
        config |= {
            "adadp-alpha-max": 1.1,
            "adadp-decay-after": decay - decay % 2,
            "adadp-epoch": EPOCH,
            "adadp-decay": 0.1,
            "averaging": 0.0,
        }
    return Cell("search" if part == "tuning" else "table", method, config, sigma)


def grid(method: str, sigma: float) -> list[Cell]:
    """The step sizes of the search: DP-SGD's at the smallest noise, DP-Adam's at each."""
    tuned_at = TUNED_AT if method == "DP-SGD" else sigma
    return [cell(method, tuned_at, rate, "tuning") for rate in GRIDS[method]]


def found(made: Cell) -> list[float]:
    """The accuracy of a cell's runs."""
    return [record["accuracy"] for record in records_of(RESULTS, made)]


def chosen(method: str, sigma: float) -> Cell | None:
    """A row's cell, or None where its search is not finished."""
    if method == "ADADP":
        return cell(method, sigma, START)
    tried = [(scores[0], made) for made in grid(method, sigma) if (scores := found(made))]
    if len(tried) < len(GRIDS[method]):
        return None
    best = max(tried, key=lambda one: one[0])[1]
    return cell(method, sigma, best.config["learning-rate"])


def cells() -> list[Cell]:
    """The rows whose searches are finished."""
    return [made for sigma in SIGMAS for method in METHODS if (made := chosen(method, sigma))]


def table() -> str:
    """Markdown: a row per sigma and method."""
    titles = ("sigma", "epsilon, PLD", "epsilon, RDP", "method", "step size", "test accuracy, %")
    rows = []
    for sigma in SIGMAS:
        made = {one.method: one for one in cells() if one.noise_multiplier == sigma}
        ours = found(made["ADADP"])
        for method, one in made.items():
            own = records_of(RESULTS, one)
            if not own:
                continue
            costs = [f"{own[0]['epsilon'][name]['epsilon']:.3f}" for name in ("pld", "rdp")]
            scores = [record["accuracy"] for record in own]
            step = "untuned" if method == "ADADP" else f"{one.config['learning-rate']:.2g}"
            gap = ""
            if method != "ADADP" and ours:
                gap = f"{100 * (statistics.mean(ours) - statistics.mean(scores)):+.2f}"
            rows.append((f"{sigma:g}", *costs, method, step, spread(scores, 100), gap))
    return markdown((*titles, "ADADP minus it"), rows)


def searched() -> str:
    """Markdown: the accuracy of each step size of the grids on the tuning part, one seed."""
    titles = ("method", "sigma", "step size", "accuracy on the tuning part, %")
    rows = [
        (
            r["cell"]["method"],
            f"{r['cell']['noise_multiplier']:g}",
            f"{rate:.2g}",
            f"{100 * r['accuracy']:.2f}",
        )
        for r in read(RESULTS)
        if r["cell"]["part"] == "search" and (rate := r["cell"]["config"]["learning-rate"])
    ]
    return markdown(titles, sorted(rows))


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    if options.search:
        grids = {made.key(): made for method in GRIDS for sigma in SIGMAS for made in grid(method, sigma)}
        run_together(RESULTS, list(grids.values()), SEEDS[0], Softmax.of)
    for seed in FRESH if options.run else ():
        run_together(RESULTS, cells(), seed, Softmax.of)
    print(f"{table()}\n\n{searched()}")


if __name__ == "__main__":
    main()
