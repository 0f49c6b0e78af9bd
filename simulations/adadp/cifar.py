"""Koskela & Honkela 2020, Figures 1b and 4: ADADP untuned against DP-Adam and DP-SGD, CIFAR-10 on features.

    python simulations/adadp/cifar.py --search --run                  # the grids, then 5 seeds of each row
    python simulations/adadp/cifar.py --search --run --model network  # one of the two models
    python simulations/adadp/cifar.py                                 # the tables from cifar.jsonl

The images are under $FEDPRIV_DATA; ``simulations/cifar_features.py`` has their fixed features. A fifth of the
public test images chooses the step sizes of the baselines, with one seed. The others score the table, with
seeds that chose nothing. Finished runs are appended to ``cifar.jsonl`` beside this file and skipped the next
time. Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, SEEDS, Cell, markdown, read, records_of, scores, spread
from cifar_features import EXAMPLES
from side_by_side import Maker, Perceptron, Softmax, run_together

RESULTS = Path(__file__).with_name("cifar.jsonl")
COHORT, DELTA = 200, 1e-6
EPOCH = EXAMPLES // COHORT  # releases
SIGMAS = (2.0, 8.0)
TUNED_AT = 2.0  # where DP-SGD's step size is tuned, section 5.4
CLIP_NORM = 0.1  # as on MNIST: it was not chosen here
GRIDS = {
    "DP-Adam": tuple(10.0 ** (k / 2) for k in (-8, -7, -6, -5)),
    "DP-SGD": tuple(10.0 ** (k / 2) for k in (-2, -1, 0, 1)),
}
START = 0.1  # of ADADP, which is not tuned
METHODS = ("ADADP", *GRIDS)


@dataclass(frozen=True)
class Setting:
    """What is trained: the model on which features, for how many passes over the data."""

    model: str
    features: str
    epochs: int
    make: Maker


NETWORK = Setting("mlp-no-bias-3", "coarse", 20, Perceptron.of)
SOFTMAX = Setting("logistic", "features", 50, Softmax.of)
SETTINGS = {"network": NETWORK, "softmax": SOFTMAX}


def cell(setting: Setting, method: str, sigma: float, learning_rate: float, part: str = "rest") -> Cell:
    """A run with noise multiplier sigma, which ``part`` of the test images scores."""
    config: dict[str, Any] = {
        "dataset": f"cifar_features:{setting.features}",
        "model": setting.model,
        "sampling-rate": COHORT / EXAMPLES,
        "rounds": setting.epochs * EPOCH,
        "optimizer": method.lower(),
        "learning-rate": learning_rate,
        "clip-norm": CLIP_NORM,
        "delta": DELTA,
        "test-part": part,
        "evaluate-every": setting.epochs * EPOCH,
    }
    if method == "ADADP":  # as in run.py: half of the run is adaptive, then equation 5.1
        decay = setting.epochs // 2 * EPOCH
        config |= {
            "adadp-alpha-max": 1.1,
            "adadp-decay-after": decay - decay % 2,
            "adadp-epoch": EPOCH,
            "adadp-decay": 0.1,
            "averaging": 0.0,
        }
    return Cell("search" if part == "tuning" else "table", method, config, sigma)


def grid(setting: Setting, method: str, sigma: float) -> list[Cell]:
    """The step sizes of the search: DP-SGD's at the smallest noise, DP-Adam's at each."""
    tuned_at = TUNED_AT if method == "DP-SGD" else sigma
    return [cell(setting, method, tuned_at, rate, "tuning") for rate in GRIDS[method]]


def found(made: Cell) -> list[float]:
    """The accuracy of a cell's runs."""
    return scores(RESULTS, made, "accuracy")


def chosen(setting: Setting, method: str, sigma: float) -> Cell | None:
    """A row's cell, or None where its search is not finished."""
    if method == "ADADP":
        return cell(setting, method, sigma, START)
    tried = [(own[0], made) for made in grid(setting, method, sigma) if (own := found(made))]
    if len(tried) < len(GRIDS[method]):
        return None
    best = max(tried, key=lambda one: one[0])[1]
    return cell(setting, method, sigma, best.config["learning-rate"])


def cells(setting: Setting) -> list[Cell]:
    """The rows whose searches are finished."""
    return [made for sigma in SIGMAS for method in METHODS if (made := chosen(setting, method, sigma))]


def table(setting: Setting) -> str:
    """Markdown: a row per sigma and method."""
    titles = ("sigma", "epsilon, PLD", "epsilon, RDP", "method", "step size", "test accuracy, %")
    rows = []
    for sigma in SIGMAS:
        made = {one.method: one for one in cells(setting) if one.noise_multiplier == sigma}
        ours = found(made["ADADP"])
        for method, one in made.items():
            own = records_of(RESULTS, one)
            if not own:
                continue
            costs = [f"{own[0]['epsilon'][name]['epsilon']:.3f}" for name in ("pld", "rdp")]
            step = "untuned" if method == "ADADP" else f"{one.config['learning-rate']:.2g}"
            gap = ""
            if method != "ADADP" and ours:
                gap = f"{100 * (statistics.mean(ours) - statistics.mean(found(one))):+.2f}"
            rows.append((f"{sigma:g}", *costs, method, step, spread(found(one), 100), gap))
    return markdown((*titles, "ADADP minus it"), rows)


def searched(setting: Setting) -> str:
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
        if (r["cell"]["part"], r["cell"]["config"]["model"]) == ("search", setting.model)
        and (rate := r["cell"]["config"]["learning-rate"])
    ]
    return markdown(titles, sorted(rows))


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--model", choices=SETTINGS, help="only this one")
    options = parser.parse_args()
    for name, setting in SETTINGS.items():
        wanted = options.model in (None, name)
        if options.search and wanted:
            tried = [made for method in GRIDS for sigma in SIGMAS for made in grid(setting, method, sigma)]
            run_together(RESULTS, list({made.key(): made for made in tried}.values()), SEEDS[0], setting.make)
        for seed in FRESH if options.run and wanted else ():
            run_together(RESULTS, cells(setting), seed, setting.make)
        print(f"{name}:\n\n{table(setting)}\n\n{searched(setting)}\n")


if __name__ == "__main__":
    main()
