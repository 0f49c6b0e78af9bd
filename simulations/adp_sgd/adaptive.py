"""Wu et al. 2021, Table 2: step sizes that follow the private gradients, on CIFAR-10's fixed features.

    python simulations/adp_sgd/adaptive.py --search --run   # the grids, then 5 seeds of both methods
    python simulations/adp_sgd/adaptive.py --search --run --budget 0.8
    python simulations/adp_sgd/adaptive.py                  # the table from adaptive.jsonl

Section 6.2: b_{t+1}^2 = b_t^2 + max(beta_t norm(y)^2, 1e-5) from b_0^2 = 20, where beta_t is
max(beta / (t mod 195 + 1), 1) and y the private gradient. ADP-SGD has alpha_t^2 = sqrt(20 + t C), DP-SGD
alpha_t = 1. As in the paper, beta and C are the best of its grids for each method and setting: 36 pairs for
ADP-SGD and 6 values for DP-SGD, 60 epochs. A fifth of the public test images chooses them, with one seed. The
others score the table, with seeds that chose nothing. No epsilon covers the choice.

The images are under $FEDPRIV_DATA (see ``simulations/cifar_features.py``). Finished runs are appended to
``adaptive.jsonl`` beside this file and skipped the next time. Runs are seeded to be repeatable; such runs are
not private.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from batches import FRESH, SEEDS, Record, collect, markdown, read, spread
from run import CIFAR, METHODS, certified, config, cost, rounds_of
from side_by_side import Softmax, side_by_side

from fedpriv.config.centralised import resolve
from fedpriv.config.plan import Plan, make_plan
from fedpriv.optimizers.adp_sgd import Restarting

RESULTS = Path(__file__).with_name("adaptive.jsonl")
ROUNDS, PERIOD = rounds_of(60, CIFAR), 195
BUDGETS, CLIP_NORMS = (0.8, 3.2), (1.0, 2.5)
BETAS = (1.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
GUESSES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # the paper's C
GRIDS = {"ADP-SGD": tuple(itertools.product(BETAS, GUESSES)), "DP-SGD": tuple((beta, 1.0) for beta in BETAS)}
PAPER = {  # accuracy in percent
    ("ADP-SGD", 0.8, 1.0): 56.68,
    ("DP-SGD", 0.8, 1.0): 56.24,
    ("ADP-SGD", 0.8, 2.5): 56.27,
    ("DP-SGD", 0.8, 2.5): 55.65,
    ("ADP-SGD", 3.2, 1.0): 64.51,
    ("DP-SGD", 3.2, 1.0): 64.33,
    ("ADP-SGD", 3.2, 2.5): 64.29,
    ("DP-SGD", 3.2, 2.5): 64.26,
}


def plan_of(budget: float, clip_norm: float, method: str, beta: float, guess: float, part: str) -> Plan:
    """The calibrated run of a method, scored on a part of the test images; beta does not change its noise."""
    plan = calibrated(budget, clip_norm, method, guess, part)
    optimizer = replace(plan.mechanism.optimizer, beta=Restarting(beta, PERIOD))
    return replace(plan, mechanism=replace(plan.mechanism, optimizer=optimizer))


@cache
def calibrated(budget: float, clip_norm: float, method: str, guess: float, part: str) -> Plan:
    """The same with beta = 1."""
    keys: dict[str, Any] = {
        **config(budget, clip_norm, ROUNDS, method, CIFAR),
        "optimizer": "adaptive-adp-sgd",
        "test-part": part,
    }
    if METHODS[method] == "fitted":
        keys["adp-c"] = guess
    else:
        del keys["adp-c"]
    return make_plan(resolve(keys))


def search(budget: float, clip_norm: float, seed: int) -> Record:
    """The accuracy of every point of both grids on the tuning part, one seed."""
    started = time.perf_counter()
    points = [(method, *point) for method, grid in GRIDS.items() for point in grid]
    scores = side_by_side(
        [plan_of(budget, clip_norm, *point, "tuning") for point in points], seed, Softmax.of
    )
    found = [(*point, score["accuracy"]) for point, score in zip(points, scores, strict=True)]
    return {"search": found, "seconds": round(time.perf_counter() - started, 1)}


def best(record: Record, method: str) -> tuple[float, float]:
    """(beta, C) with the best accuracy of a search."""
    own = [(score, beta, guess) for name, beta, guess, score in record["search"] if name == method]
    _, beta, guess = max(own, key=lambda one: one[0])
    return beta, guess


def run(budget: float, clip_norm: float, seed: int) -> Record:
    """One seeded run of each method with its best (beta, C): test scores and cost."""
    started = time.perf_counter()
    searched = next(
        r for r in read(RESULTS) if "search" in r and _setting(budget, clip_norm).items() <= r.items()
    )
    pairs = {method: best(searched, method) for method in METHODS}
    plans = {method: plan_of(budget, clip_norm, method, *pair, "rest") for method, pair in pairs.items()}
    scores = side_by_side(list(plans.values()), seed, Softmax.of)
    return {
        method: {**score, **cost(plan, CIFAR), "beta": pairs[method][0], "C": pairs[method][1]}
        for (method, plan), score in zip(plans.items(), scores, strict=True)
    } | {"seconds": round(time.perf_counter() - started, 1)}


def _setting(budget: float, clip_norm: float) -> dict[str, float]:
    return {"budget": budget, "clip norm": clip_norm}


def _record(job: Record) -> Record:
    make = search if job["part"] == "search" else run
    return {**job, **make(job["budget"], job["clip norm"], job["seed"]), "note": "reproducible, not private"}


def table() -> str:
    """Markdown: a row per budget, clip norm and method."""
    titles = ("eps-bar", "by PLD", "clip norm", "method", "beta", "C", "paper", "test accuracy, %", "gap")
    rows = []
    for budget, clip_norm in itertools.product(BUDGETS, CLIP_NORMS):
        made = {**_setting(budget, clip_norm), "part": "table"}
        own = [r for r in read(RESULTS) if made.items() <= r.items()]
        if not own:
            continue
        gaps = [100 * (r["ADP-SGD"]["accuracy"] - r["DP-SGD"]["accuracy"]) for r in own]
        for method in METHODS:
            one = own[0][method]
            shown = f"**{statistics.mean(gaps):+.2f}** ({', '.join(f'{gap:+.2f}' for gap in gaps)})"
            rows.append(
                (
                    f"{budget:g}",
                    f"{certified(budget, ROUNDS, CIFAR):.3f}",
                    f"{clip_norm:g}",
                    method,
                    f"{one['beta']:g}",
                    f"{one['C']:g}" if method == "ADP-SGD" else "",
                    f"{PAPER[method, budget, clip_norm]:.2f}",
                    spread((r[method]["accuracy"] for r in own), 100),
                    shown if method == "ADP-SGD" else "",
                )
            )
    return markdown(titles, rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--budget", type=float, choices=BUDGETS, help="only this eps-bar")
    options = parser.parse_args()
    budgets = (options.budget,) if options.budget else BUDGETS
    settings = [_setting(*pair) for pair in itertools.product(budgets, CLIP_NORMS)]
    if options.search:
        collect(RESULTS, [{"part": "search", **one, "seed": SEEDS[0]} for one in settings], _record)
    if options.run:
        collect(
            RESULTS, [{"part": "table", **one, "seed": seed} for seed in FRESH for one in settings], _record
        )
    print(table())


if __name__ == "__main__":
    main()
