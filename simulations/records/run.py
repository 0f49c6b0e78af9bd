"""Records at a certified epsilon: fixed features that cost no privacy, and a linear model.

    python simulations/records/run.py --run --features-folder /tmp/features   # all runs, 5 seeds each
    python simulations/records/run.py --run --name "MNIST-250K, 0.1"          # the runs of one row
    python simulations/records/run.py                                         # the table from results.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). MNIST-500K, MNIST-250K and MNIST-60K are the
first training examples of InfiniteMNIST, one client each: the 60,000 of MNIST, then deformations of them. A
deformation is a unit of its own. CIFAR-10 is under $FEDPRIV_DATA as ``cifar-10-jpeg/plain_text``, Parquet
files of JPEG images as on the Hugging Face hub; each training image is a client.

Finished runs are appended to ``results.jsonl`` and skipped the next time.
Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import collect, markdown, read, spread

RESULTS = Path(__file__).with_name("results.jsonl")
SEEDS = (11, 12, 13, 14, 15)  # no settings were chosen by them
COHORT = 4000  # expected clients a round
COMMON: dict[str, Any] = {
    "dataset": "infinite-mnist",
    "features": "scattering-pca",
    "model": "normalised-linear",
    "optimizer": "dp-sgd",
    "engine": "in-process",
    "clip-norm": 1.0,
    "evaluate-every": 10_000,
}


def _row(
    clients: int, delta: float, epsilon: float, target: float, rounds: int, rate: float, decay: float
) -> tuple[dict[str, Any], float]:
    """(settings of a run, accuracy wanted in percent); cohorts are of 4,000 clients in expectation."""
    own = {
        "clients": clients,
        "delta": delta,
        "epsilon": epsilon,
        "sampling-rate": COHORT / clients,
        "rounds": rounds,
        "learning-rate": rate,
        "averaging": decay,
    }
    return {**COMMON, **own}, target


def _cifar(epsilon: float, target: float, rate: float) -> tuple[dict[str, Any], float]:
    """(settings of a run, accuracy wanted in percent); cohorts are of 8,000 clients in expectation."""
    settings, _ = _row(50_000, 1e-5, epsilon, target, 300, rate, 0.98)
    own = {
        "dataset": "cifar_features:images",
        "features": "patches-mirrored",
        "sampling-rate": 0.16,
        "clip-norm": 12.0,
    }
    return {**settings, **own, "examples-per-client": 1}, target


PUBLIC_START = {"initial-weights": "public"}  # stands for the file of public_weights.py
ROWS: dict[str, tuple[dict[str, Any], float]] = {
    "MNIST-500K, 0.1": _row(500_000, 2e-7, 0.1, 98.2, 400, 4.0, 0.98),
    "MNIST-500K, 0.4": _row(500_000, 2e-7, 0.4, 98.7, 800, 8.0, 0.99),
    "MNIST-500K, 1": _row(500_000, 2e-7, 1.0, 98.9, 1600, 16.0, 0.995),
    "MNIST-250K, 0.1": _row(250_000, 4e-7, 0.1, 97.9, 200, 4.0, 0.97),
    "MNIST-250K, 0.4": _row(250_000, 4e-7, 0.4, 98.5, 800, 4.0, 0.99),
    "MNIST-250K, 1": _row(250_000, 4e-7, 1.0, 98.8, 800, 16.0, 0.99),
    "MNIST-60K, 1": _row(60_000, 1e-5, 1.0, 98.3, 800, 2.0, 0.99),
    "MNIST-60K, 3": _row(60_000, 1e-5, 3.0, 98.9, 800, 8.0, 0.99),
    "CIFAR-10, 1": _cifar(1.0, 62, 0.12),
    "CIFAR-10, 3": _cifar(3.0, 70, 0.23),
}
ROWS["MNIST-250K, 0.1, from public weights"] = ({**ROWS["MNIST-250K, 0.1"][0], **PUBLIC_START}, 97.9)
# One thing less at a time, at the other settings of the row.
WITHOUT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "": lambda row: {},
    "public components": lambda row: {"features": "scattering"},
    "large cohorts": lambda row: {"sampling-rate": 1000 / row["clients"]},
    "average": lambda row: {"averaging": 0.0},
    "features": lambda row: {"features": "none", "model": "logistic"},
    "mirror images": lambda row: {"features": "patches"},
}


def _config(name: str, without: str) -> dict[str, Any]:
    own = ROWS[name][0]
    return {**own, **WITHOUT[without](own)}


def run(config: dict[str, Any], seed: int, folder: str) -> dict[str, Any]:
    """The last public test accuracy of one seeded run, and its certified epsilon."""
    import torch
    from public_weights import public_weights
    from safetensors.torch import save_file

    from fedpriv._internal.allocator import tune_allocator
    from fedpriv.config.plan import make_plan
    from fedpriv.config.schema import Config
    from fedpriv.runs.runner import execute
    from fedpriv.simulation.run import make_engine

    tune_allocator()
    torch.set_num_threads(1)
    started = time.perf_counter()
    files = {"features-folder": folder} if folder and config["features"] != "none" else {}
    with tempfile.TemporaryDirectory() as made:
        if PUBLIC_START.items() <= config.items():
            files["initial-weights"] = f"{made}/public.safetensors"
            save_file(public_weights(), files["initial-weights"])
        plan = make_plan(Config.parse({**config, **files, "seed": seed}))
        result = execute(plan, make_engine(plan.config))
    [view] = [v for v in result.report["privacy"]["views"] if v["gates the budget"]]
    return {
        "accuracy": result.metrics[-1]["accuracy"],
        "epsilon": view["epsilon"]["pld"]["epsilon"],
        "delta": view["delta"],
        "noise multiplier": result.report["privacy"]["noise multiplier"],
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def run_all(names: list[str], without: str, folder: str) -> None:
    """The runs of these rows that have no result yet."""
    jobs = [
        {"name": name, "without": without, "seed": seed, "config": _config(name, without)}
        for name in names
        for seed in SEEDS
    ]
    collect(RESULTS, jobs, lambda job: {**job, **run(job["config"], job["seed"], folder)})


def table() -> str:
    """Markdown of results.jsonl: a row for each budget and each thing left out."""
    rows = []
    for name, (_, target) in ROWS.items():
        for without in WITHOUT:
            cell = {"name": name, "without": without, "config": _config(name, without)}
            found = [r for r in read(RESULTS) if cell.items() <= r.items()]
            if not found:
                continue
            rows.append(
                (
                    name,
                    f"without: {without}" if without else "all",
                    spread((r["accuracy"] for r in found), 100),
                    "" if without else f"{target}",
                    f"{max(r['epsilon'] for r in found):.3f}",
                    f"{statistics.median(r['seconds'] for r in found):.0f}",
                )
            )
    return markdown(("clients, epsilon", "what", "test accuracy, %", "wanted", "PLD", "seconds"), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--name", choices=ROWS, help="one row only")
    parser.add_argument("--without", choices=WITHOUT, default="", help="leave this out")
    parser.add_argument("--features-folder", default="", help="where features are kept")
    options = parser.parse_args()
    if options.run:
        run_all([options.name] if options.name else list(ROWS), options.without, options.features_folder)
    print(table())


if __name__ == "__main__":
    main()
