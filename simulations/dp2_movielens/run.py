"""Li 2023, Tables 1 and 4: DP2-RMSProp, its baselines and ablations on MovieLens-100k, by factorisation.

    python simulations/dp2_movielens/run.py --search               # the ablations' step sizes, one seed
    python simulations/dp2_movielens/run.py --run                  # every cell, 5 seeds each
    python simulations/dp2_movielens/run.py --run --part biases    # one of the two models
    python simulations/dp2_movielens/run.py                        # the tables from results.jsonl

Needs MovieLens-100k under $FEDPRIV_DATA (`fedpriv data fetch movielens-100k`). A fifth of the public test
ratings scores the search, and the others the tables. Finished runs are appended to ``results.jsonl`` beside
this file and skipped the next time, so an interrupted batch goes on where it was. Runs are seeded to be
repeatable; such runs are not private.

A run is `fedpriv train` with the configuration of its cell; ``simulations/side_by_side.py`` makes the methods
of a seed together, for the model without biases.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, SEEDS, Cell, Record, batch, markdown, records_of, spread
from side_by_side import Factorisation, run_together

from fedpriv.accounting import Event, epsilon

RESULTS = Path(__file__).with_name("results.jsonl")
EXAMPLES, COHORT, NOISE_MULTIPLIER, DELTA = 80_000, 64, 0.5, 1e-6
MODELS = {"factors": "factors", "biases": "factors-biases"}
PUBLIC = {"public_examples": 800, "public_batch": COHORT}  # of the public test ratings; the paper's are 1 %
EXTRA, NOISE_FIRST = "DP2-RMSProp, extra query", "DP2-RMSProp, noise first"  # the ablations
PAPER = {
    "DP-SGD": "3.02 ± 0.07",
    "DP-RMSProp": "2.96 ± 0.06",
    "DP2-RMSProp": "2.78 ± 0.05",
    EXTRA: "3.32 ± 0.09",
    NOISE_FIRST: "3.18 ± 0.07",
}


def cell(part: str, method: str, rounds: int, **keys: Any) -> Cell:
    """A run with the paper's batch size and noise multiplier; ``keys`` with underscores for hyphens."""
    config = {
        "dataset": "movielens-100k",
        "model": MODELS[part],
        "sampling-rate": COHORT / EXAMPLES,
        "rounds": rounds,
        "optimizer": method.partition(",")[0].lower(),
        "delta": DELTA,
        "test-part": "rest",
        "evaluate-every": rounds,
    }
    config |= {name.replace("_", "-"): value for name, value in keys.items()}
    if method != EXTRA:
        return Cell(part, method, config, NOISE_MULTIPLIER)
    # It answers two queries in most steps, so that its noise has to be larger at the others' epsilon.
    return Cell(part, method, {**config, "epsilon": budget(rounds)})


@cache
def budget(rounds: int) -> float:
    """The epsilon by PLD of all methods: that of the paper's noise multiplier."""
    event = Event(NOISE_MULTIPLIER, "poisson", "add-remove", rate=COHORT / EXAMPLES, count=rounds)
    return round(epsilon([event], DELTA).epsilon, 4)


def delayed(
    part: str,
    rounds: int,
    step_sizes: tuple[float, float],
    clip_norms: tuple[float, float],
    epsilon: float,
    delay: int,
    method: str = "DP2-RMSProp",
) -> Cell:
    """A run of DP2-RMSProp or an ablation: step sizes and clip norms of its plain and its adaptive steps."""
    plain = {"learning_rate": step_sizes[0], "clip_norm": clip_norms[0]}
    adaptive = {"dp2_adaptive_learning_rate": step_sizes[1], "dp2_adaptive_clip_norm": clip_norms[1]}
    steps: dict[str, Any] = {"dp2_epsilon": epsilon, "dp2_sgd_steps": delay, "dp2_adaptive_steps": delay}
    if method == EXTRA:
        steps["dp2_variant"] = "extra-query"
        del steps["dp2_adaptive_steps"]
    if method == NOISE_FIRST:
        steps["dp2_variant"] = "noise-first"
        del adaptive["dp2_adaptive_clip_norm"]
    return cell(part, method, rounds, **plain, **adaptive, **steps)


# Table 2: 50 epochs of 1,250 steps; step sizes, clip norms, offset and delay of each method as published.
PUBLISHED = (
    cell("factors", "DP-SGD", 62_500, learning_rate=0.1, clip_norm=1.0),
    cell("factors", "DP-RMSProp", 62_500, learning_rate=0.001, clip_norm=0.5, adam_epsilon=1e-3, beta2=0.9),
    delayed("factors", 62_500, (0.1, 0.03), (1.0, 5.0), epsilon=1e-3, delay=31_250),
    cell("factors", "AdaDPS", 62_500, learning_rate=0.01, clip_norm=10.0, adadps_epsilon=1e-2, **PUBLIC),
    cell("factors", "PDA-DPMD", 62_500, learning_rate=0.1, clip_norm=1.0, averaging=0.0, **PUBLIC),
)
# The paper does not publish the ablations' settings on MovieLens. Ours are DP2's, but for the step size of
# the adaptive steps: the best of these in the search.
LARGE, SMALL = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003), (0.0001, 0.00003, 0.00001)
ABLATIONS = {
    name: [
        delayed("factors", 62_500, (0.1, rate), (1.0, 5.0), epsilon=1e-3, delay=31_250, method=name)
        for rate in step_sizes
    ]
    for name, step_sizes in ((EXTRA, LARGE), (NOISE_FIRST, LARGE + SMALL))
}
# Ours: 5 epochs are enough for the model that starts from the mean; see README for how they were chosen.
OURS = (
    cell("biases", "DP-SGD", 6_250, learning_rate=0.15, clip_norm=1.0),
    cell("biases", "DP-RMSProp", 6_250, learning_rate=0.002, clip_norm=0.5, adam_epsilon=1e-3, beta2=0.9),
    delayed("biases", 6_250, (0.2, 0.02), (1.0, 10.0), epsilon=1e-2, delay=1_250),
)


def together(cells: Sequence[Cell], seed: int) -> None:
    """Run the cells of the model without biases that have no record with this seed yet."""
    run_together(RESULTS, cells, seed, Factorisation.of)


def tuning(made: Cell) -> Cell:
    """The cell's run in the search, which the tuning part of the test ratings scores."""
    return replace(made, config={**made.config, "test-part": "tuning"})


def ablations() -> list[Cell]:
    """The ablations with the best step size of the search, of those that were searched."""
    found = []
    for cells in ABLATIONS.values():
        tried = [(r[0]["mse"], made) for made in cells if (r := records_of(RESULTS, tuning(made)))]
        if len(tried) == len(cells):
            found.append(min(tried, key=lambda one: one[0])[1])
    return found


def earlier(made: Cell) -> list[Record]:
    """A cell's runs from before the test ratings were split, which all of them score: seeds 0 to 2."""
    config = {key: value for key, value in made.config.items() if key != "test-part"}
    return records_of(RESULTS, replace(made, config=config))


def table() -> str:
    """Markdown: a row per model and method, the test's mean squared error, mean and spread over seeds."""
    titles = ("model", "method", "rounds", "test MSE", "earlier seeds", "paper", "epsilon, PLD", "RDP")
    rows = []
    for made in (*PUBLISHED, *ablations(), *OURS):
        own, old = records_of(RESULTS, made, FRESH), earlier(made)
        if not own + old:
            continue
        theirs = PAPER.get(made.method, "") if made.part == "factors" else ""
        spent = [f"{(own + old)[0]['epsilon'][name]['epsilon']:.2f}" for name in ("pld", "rdp")]
        name = (made.config["model"], made.method, str(made.config["rounds"]))
        scores = (spread((r["mse"] for r in some), digits=3) for some in (own, old))
        rows.append((*name, *scores, theirs, *spent))
    return markdown(titles, rows)


def searched() -> str:
    """Markdown: the ablations' error on the tuning part by step size, one seed."""
    rows = [
        (name, f"{made.config['dp2-adaptive-learning-rate']:g}", f"{found[0]['mse']:.4g}")
        for name, cells in ABLATIONS.items()
        for made in cells
        if (found := records_of(RESULTS, tuning(made)))
    ]
    return markdown(("ablation", "step size", "MSE on the tuning part"), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--part", choices=MODELS)
    options = parser.parse_args()
    if options.search:
        together([tuning(made) for cells in ABLATIONS.values() for made in cells], SEEDS[0])
    if options.run:
        if options.part != "factors":
            batch(RESULTS, [(one, seed) for seed in FRESH for one in OURS])
        for seed in FRESH if options.part != "biases" else ():
            together([*PUBLISHED, *ablations()], seed)
    print(f"{table()}\n\n{searched()}")


if __name__ == "__main__":
    main()
