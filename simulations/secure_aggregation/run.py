"""50 silos at one epsilon against the server: local noise, secure aggregation, client level, trusted server.

    python simulations/secure_aggregation/run.py --choose   # step sizes, two seeds each
    python simulations/secure_aggregation/run.py --run      # the table's runs, five other seeds
    python simulations/secure_aggregation/run.py            # the tables from results.jsonl

Finished runs are appended to ``results.jsonl`` beside this file and skipped the next time. Runs are seeded to
be repeatable; such runs are not private. MNIST has to be under $FEDPRIV_DATA.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import collect, markdown, read, spread

Cell = tuple[str, float, float]  # (method, epsilon, step size)

RESULTS = Path(__file__).with_name("results.jsonl")
SILOS, EXAMPLES, ROUNDS, DELTA = 50, 500, 20, 1e-6
EPSILONS = (0.5, 2.0, 8.0)
CHOICE, FRESH = (1, 2), (11, 12, 13, 14, 15)  # no step size was chosen with the fresh seeds
STEPS = (1.0, 3.0, 9.0)

_EVERYONE = {"sampler": "everyone", "sampling-rate": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "local noise": {**_EVERYONE, "placement": "local"},
    "client level": {"level": "client", "silo-steps": 4, "sampling-rate": 0.1},
    "secure aggregation": {**_EVERYONE, "placement": "distributed", "secure-aggregation": True},
    "trusted server, everyone takes part": _EVERYONE,
    "trusted server, sampled": {"sampling-rate": 0.1},
}


def config(cell: Cell, seed: int) -> dict[str, Any]:
    """The settings of a run."""
    method, epsilon, step = cell
    return {
        "dataset": "infinite-mnist",
        "model": "logistic",
        "optimizer": "dp-sgd",
        "unit": "example",
        "clients": SILOS,
        "examples-per-client": EXAMPLES,
        "rounds": ROUNDS,
        "epsilon": epsilon,
        "delta": DELTA,
        "learning-rate": step,
        "engine": "in-process",
        "evaluate-every": ROUNDS,
        "seed": seed,
        **METHODS[method],
    }


def run(cell: Cell, seed: int) -> dict[str, Any]:
    """The last test accuracy of a seeded run, and its certified epsilon by adversary."""
    import torch

    from fedpriv.config.plan import make_plan
    from fedpriv.config.schema import Config
    from fedpriv.runs.runner import execute
    from fedpriv.simulation.run import make_engine

    torch.set_num_threads(1)
    begun, settings = time.perf_counter(), Config.parse(config(cell, seed))
    plan = make_plan(settings)
    result = execute(plan, make_engine(plan.config))
    views = result.report["privacy"]["views"]
    return {
        "cell": list(cell),
        "seed": seed,
        "accuracy": result.metrics[-1]["accuracy"],
        "noise multiplier": result.report["privacy"]["noise multiplier"],
        "epsilon": {view["against"]: view["epsilon"]["pld"]["epsilon"] for view in views},
        "seconds": round(time.perf_counter() - begun, 1),
        "note": "reproducible, not private",
    }


def batch(jobs: Iterable[tuple[Cell, int]]) -> None:
    """Run the jobs that have no result yet."""
    made = [{"cell": cell, "seed": seed} for cell, seed in jobs]
    collect(RESULTS, made, lambda job: run(tuple(job["cell"]), job["seed"]))


def chosen(method: str) -> float:
    """The step size with the best mean accuracy over the seeds that choose, at epsilon 2."""
    scores = {step: [r["accuracy"] for r in _of((method, 2.0, step), CHOICE)] for step in STEPS}
    return max((step for step in STEPS if scores[step]), key=lambda step: statistics.mean(scores[step]))


def _of(cell: Cell, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    return [r for r in read(RESULTS) if tuple(r["cell"]) == cell and r["seed"] in seeds]


def table() -> str:
    """Markdown of results.jsonl: accuracy by method and budget."""
    rows = []
    for method in (m for m in METHODS if any(_of((m, 2.0, s), CHOICE) for s in STEPS)):
        runs = [_of((method, epsilon, chosen(method)), FRESH) for epsilon in EPSILONS]
        cells = [spread((r["accuracy"] for r in own), 100) for own in runs]
        rows.append((method, f"{chosen(method):g}", *cells))
    return markdown(("method", "step", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)), rows)


def choice() -> str:
    """Markdown: mean accuracy at epsilon 2 by step size, over the seeds that choose."""
    rows = [
        (method, *(spread((r["accuracy"] for r in _of((method, 2.0, s), CHOICE)), 100) for s in STEPS))
        for method in METHODS
    ]
    return markdown(("method", *(f"step {step:g}" for step in STEPS)), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    if options.choose:
        batch([((m, 2.0, s), seed) for m in METHODS for s in STEPS for seed in CHOICE])
    if options.run:
        batch([((m, e, chosen(m)), seed) for seed in FRESH for m in METHODS for e in EPSILONS])
    print(f"{choice()}\n\n{table()}")


if __name__ == "__main__":
    main()
