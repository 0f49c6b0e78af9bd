"""Wang et al. 2023, section 7.2: DP-SRM and DP-SGD on MNIST with the paper's four-layer network, centralised.

    python simulations/dp_srm/mnist.py --run               # the table's runs, 5 seeds each
    python simulations/dp_srm/mnist.py --run --epsilon 1.2 # one budget
    python simulations/dp_srm/mnist.py                     # the table from mnist.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to ``mnist.jsonl``
beside this file and skipped the next time. Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, Cell, batch, markdown, records_of, spread

RESULTS = Path(__file__).with_name("mnist.jsonl")
EXAMPLES, DELTA = 60_000, 1e-5
EPSILONS = (1.2, 3.0)
PAPER = {"DP-SRM": (4.49, 3.62), "DP-SGD": (5.33, 3.81)}  # test errors in percent, Figure 2
COHORT = 1024  # of their grid
ROUNDS = {1.2: 400, 3.0: 250}
RATE = 4.0
CLIPS, GAMMA = {1.2: (0.5, 0.01), 3.0: (1.0, 0.01)}, {1.2: 0.8, 3.0: 0.3}  # (C_1, C_2), gamma


def cell(epsilon: float, method: str) -> Cell:
    """One number of the table."""
    config: dict[str, Any] = {
        "dataset": "mnist",
        "model": "cnn",
        "input-mean": 0.1307,  # the published constants of MNIST
        "input-std": 0.3081,
        "sampling-rate": COHORT / EXAMPLES,
        "rounds": ROUNDS[epsilon],
        "optimizer": method.lower(),
        "learning-rate": RATE,
        "clip-norm": CLIPS[epsilon][0],
        "epsilon": epsilon,
        "delta": DELTA,
        "evaluate-every": 50,
    }
    if method == "DP-SRM":
        config |= {"srm-difference-clip-norm": CLIPS[epsilon][1], "srm-gamma": GAMMA[epsilon]}
    return Cell(f"eps {epsilon:g}", method, config)


def cells(epsilons: tuple[float, ...] = EPSILONS) -> Iterator[Cell]:
    """The cells of these budgets."""
    for method in PAPER:
        for epsilon in epsilons:
            yield cell(epsilon, method)


def table() -> str:
    """Markdown of mnist.jsonl: a row per budget and method."""
    titles = ("epsilon", "method", "data passes", "paper, error %", "test error, %", "test loss", "PLD")
    rows = []
    for own in sorted(cells(), key=lambda own: own.part):
        found = records_of(RESULTS, own, FRESH)
        if not found:
            continue
        epsilon = own.config["epsilon"]
        row = (
            f"{epsilon:g}",
            own.method,
            f"{own.config['rounds'] * own.config['sampling-rate']:.1f}",
            f"{PAPER[own.method][EPSILONS.index(epsilon)]:.2f}",
            spread((1 - r["accuracy"] for r in found), 100),
            spread((r["loss"] for r in found), digits=4),
            f"{found[0]['epsilon']['pld']['epsilon']:.3f}",
            f"{found[0]['epsilon']['rdp']['epsilon']:.3f}",
        )
        rows.append(row)
    return markdown((*titles, "RDP (theirs)"), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--epsilon", type=float, choices=EPSILONS)
    options = parser.parse_args()
    if options.run:
        wanted = (options.epsilon,) if options.epsilon else EPSILONS
        batch(RESULTS, [(c, seed) for seed in FRESH for c in cells(wanted)])
    print(table())


if __name__ == "__main__":
    main()
