"""Koskela & Honkela 2020, sections 5.2 and 5.4: ADADP untuned against DP-Adam and DP-SGD, on MNIST.

    python simulations/adadp/run.py --search              # one seed of each step size of the grids
    python simulations/adadp/run.py --run                 # 3 seeds of ADADP and of the best step sizes
    python simulations/adadp/run.py --search --run --epochs 10 --sigma 2 --sigma 8
    python simulations/adadp/run.py --short               # one small cell, a few seconds
    python simulations/adadp/run.py                       # the table from results.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to
``results.jsonl`` beside this file and skipped the next time, so an interrupted batch goes on where it was.
Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import SEEDS, Cell, batch, read, run, scores, spread

RESULTS = Path(__file__).with_name("results.jsonl")
EXAMPLES, COHORT, DELTA = 60_000, 200, 1e-6
EPOCH = EXAMPLES // COHORT  # releases
SIGMAS = (2.0, 4.0, 6.0, 8.0)
TUNED_AT = 2.0  # where DP-SGD's step size is tuned, section 5.4
CLIP_NORM = 0.1  # not published; one for all methods (see README)
GRIDS = {
    "DP-SGD": tuple(10.0 ** (k / 2) for k in (-2, -1, 0, 1)),
    "DP-Adam": tuple(10.0 ** (k / 2) for k in (-8, -7, -6)),
}
OURS, PAPERS, AUTHORS = "ADADP", "ADADP, tau = 1", "ADADP, authors' code"
ADADPS = (OURS, AUTHORS, PAPERS)
METHODS = (*ADADPS, "DP-Adam", "DP-SGD")


def cell(method: str, sigma: float, epochs: int, learning_rate: float, examples: int = EXAMPLES) -> Cell:
    """A run of ``epochs`` passes over the data in cohorts of 200, with noise multiplier sigma."""
    epoch = examples // COHORT
    config: dict[str, Any] = {
        "dataset": "mnist",
        "model": "mlp-no-bias-3",
        "input-mean": 0.1307,  # as in the authors' code
        "input-std": 0.3081,
        "sampling-rate": COHORT / examples,
        "rounds": epochs * epoch,
        "optimizer": "adadp" if method in ADADPS else method.lower(),
        "learning-rate": learning_rate,
        "clip-norm": CLIP_NORM,
        "delta": DELTA,
        "evaluate-every": epochs * epoch,
    }
    if examples != EXAMPLES:
        config["examples-per-client"] = examples
    if method in ADADPS:  # 0.9, a default, and 1.1 are the paper's
        decay = epochs // 2 * epoch
        config |= {
            "adadp-tolerance": 0.0 if method == OURS else 1.0,
            "adadp-alpha-max": 1.1,
            "averaging": 0.0,
            "adadp-variant": "authors-code" if method == AUTHORS else "half-steps",
            "adadp-decay-after": decay - decay % 2,
            "adadp-epoch": epoch,
            "adadp-decay": 0.1,
        }
    return Cell(f"{epochs} epochs", method, config, sigma)


def adadp(sigma: float, epochs: int, method: str = OURS) -> Cell:
    """ADADP with an initial step size of 0.1; nothing is tuned."""
    return cell(method, sigma, epochs, 0.1)


def grid(method: str, sigma: float, epochs: int) -> list[Cell]:
    """The step sizes of the search."""
    return [cell(method, sigma, epochs, rate) for rate in GRIDS[method]]


def best(method: str, sigma: float, epochs: int) -> Cell | None:
    """The step size with the best accuracy of the first seed: DP-SGD's of the smallest noise, DP-Adam's of
    each."""
    tried = grid(method, TUNED_AT if method == "DP-SGD" else sigma, epochs)
    found = {made.config["learning-rate"]: scores(RESULTS, made, "accuracy")[:1] for made in tried}
    finished = {rate: score[0] for rate, score in found.items() if score}
    if not finished:
        return None
    return cell(method, sigma, epochs, max(finished, key=lambda rate: finished[rate]))


def search(sigmas: Sequence[float], epochs: int) -> Iterator[Cell]:
    """The grids."""
    yield from grid("DP-SGD", TUNED_AT, epochs)
    for sigma in sigmas:
        yield from grid("DP-Adam", sigma, epochs)


def chosen(sigmas: Sequence[float], epochs: int) -> Iterator[Cell]:
    """The table's cells whose searches are finished."""
    for sigma in sigmas:
        methods = [adadp(sigma, epochs, method) for method in ADADPS]
        for made in (*methods, *(best(m, sigma, epochs) for m in ("DP-SGD", "DP-Adam"))):
            if made is not None:
                yield made


def lengths() -> list[int]:
    """The numbers of epochs that have results."""
    return sorted({int(record["cell"]["part"].split()[0]) for record in read(RESULTS)})


def table(epochs: int) -> str:
    """Markdown: a row per sigma, test accuracy in percent, mean and spread over seeds."""
    lines = [
        "| sigma | epsilon, RDP | epsilon, PLD | ADADP, untuned | ADADP, authors' code | ADADP, tau = 1 "
        "| DP-Adam, best step size | ADADP - DP-Adam | DP-SGD, tuned at sigma = 2 |",
        "|---" * 9 + "|",
    ]
    records = {Cell(**record["cell"]).key(): record for record in read(RESULTS)}
    for sigma in SIGMAS:
        made = {one.method: one for one in chosen([sigma], epochs)}
        found = {method: scores(RESULTS, one, "accuracy") for method, one in made.items()}
        if not found.get(OURS):
            continue
        costs = records[made[OURS].key()]["epsilon"]
        gap = ""
        if found.get("DP-Adam"):
            gap = f"{100 * (statistics.mean(found[OURS]) - statistics.mean(found['DP-Adam'])):+.2f}"
        rates = {m: f" ({one.config['learning-rate']:.2g})" for m, one in made.items()}
        rates |= dict.fromkeys(ADADPS, "")
        shown = {m: spread(found.get(m, []), 100) + (rates[m] if found.get(m) else "") for m in METHODS}
        lines.append(
            f"| {sigma:g} | {costs['rdp']['epsilon']:.3f} | {costs['pld']['epsilon']:.3f} | {shown[OURS]} "
            f"| {shown[AUTHORS]} | {shown[PAPERS]} | {shown['DP-Adam']} | {gap} | {shown['DP-SGD']} |"
        )
    return "\n".join(lines)


def short() -> list[tuple[Cell, int]]:
    """A tenth of the data for 20 epochs, with a step size that suits much smaller noise."""
    small = {"sigma": 8.0, "epochs": 20, "examples": 6000}
    return [
        (cell(OURS, learning_rate=0.1, **small), SEEDS[0]),
        (cell("DP-SGD", learning_rate=10.0, **small), SEEDS[0]),
    ]


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--sigma", type=float, action="append", choices=SIGMAS)
    options = parser.parse_args()
    sigmas = options.sigma or SIGMAS
    if options.short:
        for made, seed in short():
            print(f"{made.method}: {run(made, seed)['accuracy']:.2%}")
        return
    if options.search:
        batch(RESULTS, [(made, SEEDS[0]) for made in search(sigmas, options.epochs)])
    if options.run:
        jobs = [(made, seed) for seed in SEEDS for made in chosen(sigmas, options.epochs)]
        batch(RESULTS, [(made, seed) for made, seed in jobs if made.method != PAPERS or seed == SEEDS[0]])
    for epochs in lengths():
        print(f"{epochs} epochs:\n\n{table(epochs)}\n")


if __name__ == "__main__":
    main()
