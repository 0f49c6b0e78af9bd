"""Du et al. 2021, Table 4: Dynamic DP-SGD in a federation with one InfiniteMNIST image per client.

    python simulations/dynamic_dp_sgd/run.py --column paper        # their accounting, GDP-CLT
    python simulations/dynamic_dp_sgd/run.py --column steps        # vanilla at its best step size
    python simulations/dynamic_dp_sgd/run.py --column certified    # the same epsilon, certified by PLD
    python simulations/dynamic_dp_sgd/run.py --column distributed  # clients add the noise (algorithm 5)
    python simulations/dynamic_dp_sgd/run.py --short               # one small cell, half a minute
    python simulations/dynamic_dp_sgd/run.py --table               # README's tables from results.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to
``results.jsonl`` beside this file and skipped the next time, so an interrupted batch goes on where it was.
Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, SEEDS, Record, collect, read

RESULTS = Path(__file__).with_name("results.jsonl")
METHODS = ("vanilla", "growing-mu", "sensitivity-decay", "dynamic")
COHORT = 250  # expected clients a round: p = 1e-3 of 250K and 5e-4 of 500K, as in the paper


@dataclass(frozen=True)
class Cell:
    """One number of a table, before its seeds."""

    column: str
    clients: int
    epsilon: float
    method: str
    rounds: int
    learning_rate: float
    clip_norm: float
    rho_c: float
    rho_mu: float
    cohort: int = COHORT
    accounting: str = "gdp-clt"
    placement: str = "central"

    def config(self, seed: int) -> dict[str, Any]:
        """The run's configuration for `fedpriv simulate`."""
        return {
            "dataset": "infinite-mnist",
            "model": "cnn",
            "input-mean": 0.1307,  # the published constants of MNIST
            "input-std": 0.3081,
            "clients": self.clients,
            "sampling-rate": self.cohort / self.clients,
            "rounds": self.rounds,
            "optimizer": "dynamic-dp-sgd",
            "learning-rate": self.learning_rate,
            "clip-norm": self.clip_norm,
            "rho-c": self.rho_c,
            "rho-mu": self.rho_mu,
            "placement": self.placement,
            # Algorithm 5's shares are of all clients, whatever one of them knows of its own.
            **({"colluding-parties": 0} if self.placement == "distributed" else {}),
            "epsilon": self.epsilon,
            "accounting": self.accounting,
            "seed": seed,
            "engine": "in-process",
            "evaluate-every": self.rounds,
        }


# (rounds, learning rate, C_0) of a cell and (rho_c, rho_mu) of its dynamic forms; see README for how
# they were chosen.
PAPER: dict[tuple[int, float], tuple[int, float, float, float, float]] = {
    (250_000, 0.1): (500, 4.0, 0.5, 3.0, 1.25),
    (250_000, 0.4): (1000, 4.0, 0.5, 3.0, 1.25),
    (250_000, 1.0): (2000, 4.0, 0.5, 3.0, 1.25),
    (500_000, 0.1): (800, 4.0, 0.5, 3.0, 1.25),
    (500_000, 0.4): (1500, 4.0, 0.5, 3.0, 1.25),
    (500_000, 1.0): (2000, 4.0, 0.5, 3.0, 1.25),
}

# (rounds, cohort, learning rate, C_0, rho_c, rho_mu) where PLD holds the budget.
CERTIFIED: dict[tuple[int, float], tuple[int, int, float, float, float, float]] = {
    (250_000, 0.1): (300, 1000, 2.0, 1.0, 2.0, 1.5),
    (250_000, 0.4): (500, 1000, 4.0, 1.0, 2.0, 1.5),
    (250_000, 1.0): (800, 1000, 4.0, 1.0, 2.0, 1.5),
    (500_000, 0.1): (400, 1000, 2.0, 1.0, 2.0, 1.5),
    (500_000, 0.4): (600, 1000, 4.0, 1.0, 2.0, 1.5),
    (500_000, 1.0): (800, 1000, 4.0, 1.0, 2.0, 1.5),
}


def rhos(method: str, rho_c: float, rho_mu: float) -> tuple[float, float]:
    """(rho_c, rho_mu) of a method: both schedules, one of them, or none."""
    return (
        rho_c if method in ("sensitivity-decay", "dynamic") else 1.0,
        rho_mu if method in ("growing-mu", "dynamic") else 1.0,
    )


def cells(column: str) -> Iterator[Cell]:
    """The cells of a column."""
    if column == "certified":
        for (clients, epsilon), (rounds, cohort, rate, clip, rho_c, rho_mu) in CERTIFIED.items():
            yield Cell(column, clients, epsilon, "dynamic", rounds, rate, clip, rho_c, rho_mu, cohort, "pld")
        return
    if column == "steps":
        for (clients, epsilon), (rounds, rate, clip, *_) in PAPER.items():
            yield Cell(column, clients, epsilon, "vanilla", rounds, rate / 2, clip, 1.0, 1.0)
        return
    placement = "distributed" if column == "distributed" else "central"
    methods = ("vanilla", "dynamic") if column == "distributed" else METHODS
    for (clients, epsilon), (rounds, rate, clip, *given) in PAPER.items():
        if column == "distributed" and clients != 250_000:
            continue
        for method in methods:
            rho_c, rho_mu = rhos(method, *given)
            yield Cell(
                column, clients, epsilon, method, rounds, rate, clip, rho_c, rho_mu, placement=placement
            )


def run(cell: Cell, seed: int) -> Record:
    """One seeded run, with its epsilon by every accounting method."""
    import torch

    from fedpriv.config.schema import Config
    from fedpriv.simulation.run import simulate

    torch.set_num_threads(1)
    started = time.perf_counter()
    result = simulate(Config.parse(cell.config(seed)))
    (view,) = (v for v in result.report["privacy"]["views"] if v["gates the budget"])
    return {
        "cell": asdict(cell),
        "seed": seed,
        "accuracy": result.metrics[-1]["accuracy"],
        "delta": view["delta"],
        "epsilon": view["epsilon"],
        "noise multiplier": result.report["privacy"]["noise multiplier"],
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def batch(jobs: list[tuple[Cell, int]], workers: int) -> None:
    """Run the jobs that have no result yet."""
    collect(RESULTS, [{"cell": asdict(cell), "seed": seed} for cell, seed in jobs], _run, workers)


def _run(job: Record) -> Record:
    return run(Cell(**job["cell"]), job["seed"])


PAPER_FIGURES = {
    (250_000, "vanilla"): (93.47, 95.71, 96.02),
    (250_000, "growing-mu"): (93.75, 95.93, 96.13),
    (250_000, "sensitivity-decay"): (94.46, 95.90, 96.40),
    (250_000, "dynamic"): (94.72, 96.00, 96.55),
    (500_000, "vanilla"): (94.82, 96.55, 96.89),
    (500_000, "growing-mu"): (95.65, 96.76, 97.05),
    (500_000, "sensitivity-decay"): (95.75, 96.83, 97.06),
    (500_000, "dynamic"): (95.88, 96.95, 97.22),
}
EPSILONS = (0.1, 0.4, 1.0)


def table() -> str:
    """Markdown of results.jsonl: a row per setting, mean and standard deviation over seeds, in percent.

    The seeds are those that chose nothing, and earlier ones where a column has not all of these yet.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for record in read(RESULTS):
        cell = record["cell"]
        key = ("column", "clients", "epsilon", "method", "rounds", "cohort", "learning_rate")
        groups[tuple(cell[name] for name in key)].append(record)
    partial = {key[:2] for key, runs in groups.items() if sum(r["seed"] in FRESH for r in runs) < len(FRESH)}
    lines = [
        "| run | clients | epsilon | method | rounds | cohort | step size | accuracy, mean ± std (seeds) | "
        "paper | GDP-CLT says | PLD certifies |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (column, clients, epsilon, method, *setting), records in sorted(groups.items()):
        shown = FRESH if (column, clients) not in partial else SEEDS
        records = [r for r in records if r["seed"] in shown]
        scores = [100 * r["accuracy"] for r in records]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        figures = PAPER_FIGURES[clients, method] if column == "paper" else ()
        cells = (
            column,
            f"{clients // 1000}K",
            f"{epsilon:g}",
            method,
            *(f"{value:g}" for value in setting),
            f"{statistics.mean(scores):.2f} ± {spread:.2f} ({len(scores)})",
            f"{figures[EPSILONS.index(epsilon)]:.2f}" if figures else "",
            f"{records[0]['epsilon']['gdp-clt']['epsilon']:.3f}",
            f"{records[0]['epsilon']['pld']['epsilon']:.3f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def short() -> list[tuple[Cell, int]]:
    """The smallest cell, vanilla and dynamic, one seed: shows the sign of the effect."""
    return [
        (cell, SEEDS[0])
        for cell in cells("paper")
        if (cell.clients, cell.epsilon) == (250_000, 0.1) and cell.method in ("vanilla", "dynamic")
    ]


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--column", choices=("paper", "steps", "certified", "distributed"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.short:
        batch(short(), options.workers)
    if options.column:
        batch([(cell, seed) for seed in FRESH for cell in cells(options.column)], options.workers)
    if options.table or not (options.short or options.column):
        print(table())


if __name__ == "__main__":
    main()
