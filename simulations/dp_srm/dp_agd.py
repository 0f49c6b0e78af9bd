"""Wang et al. 2023, Table 2: the baseline DP-AGD (Lee & Kifer 2018) on a9a.

    python simulations/dp_srm/dp_agd.py --run     # 5 seeds at each budget
    python simulations/dp_srm/dp_agd.py           # the table from dp_agd.jsonl
    python simulations/dp_srm/dp_agd.py --short   # 200 examples of a9a, a second

DP-AGD chooses noise and number of releases by its answers, so that it is no optimizer of `fedpriv train`. A
zCDP filter holds the budget. Needs a9a under $FEDPRIV_DATA. Runs are seeded to be repeatable; such runs are
not private.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import Record, collect, markdown, read, spread

if TYPE_CHECKING:
    from torch import Tensor

RESULTS = Path(__file__).with_name("dp_agd.jsonl")
SEEDS = tuple(range(11, 16))  # no setting was chosen with these seeds
DELTA, STRENGTH, EPSILONS = 1e-5, 1e-3, (0.2, 0.5)
CLIP_NORM, CLIP_LOSS = 3.0, 1.0
SHARES = {"gradient_share": 0.05, "choice_share": 0.002, "largest_step": 1.0}  # the best of 3, see README
PAPER = {0.2: "0.3713", 0.5: "0.3627"}


def regulariser(params: Tensor) -> Tensor:
    """R(theta) of section 7.1."""
    return STRENGTH * (params.square() / (1 + params.square())).sum()


def run(epsilon: float, seed: int, examples: int | None = None) -> Record:
    """One seeded run over all training examples, or the first ``examples``."""
    import numpy as np
    import torch

    from fedpriv import data
    from fedpriv.accounting import Budget, Filter
    from fedpriv.config.builders import make_task
    from fedpriv.config.schema import Config
    from fedpriv.contrib.dp_agd import DpAgd, descend
    from fedpriv.rng import Key

    torch.set_num_threads(1)
    started, source = time.perf_counter(), data.load("a9a")
    task = make_task(Config.parse({"dataset": "a9a", "model": "logistic-binary-no-bias"}), source)
    number = min(source.size or 0, examples or 10**9)
    x, y = source.batch(np.arange(source.first, source.first + number))
    gate = Filter(Budget(epsilon, DELTA, "zcdp"))
    settings = DpAgd(CLIP_NORM, CLIP_LOSS, **SHARES)
    start, key = torch.zeros(task.dimension), Key.from_seed(seed)
    end = descend(settings, task, x, y, start, gate, key, penalty=lambda at: number * regulariser(at))
    scores = task.evaluate(end.params, *source.test())
    return {
        "epsilon asked": epsilon,
        "seed": seed,
        **{name: scores[name] for name in ("accuracy", "loss")},
        "regulariser": float(regulariser(end.params)),
        "steps": len(end.steps),
        "releases": end.releases,
        "stopped": end.stopped,
        "delta": DELTA,
        "epsilon": {"zcdp": {"epsilon": epsilon, "kind": "bound"}},
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def table() -> str:
    """Markdown of dp_agd.jsonl."""
    rows = []
    for epsilon in EPSILONS:
        if own := [record for record in read(RESULTS) if record["epsilon asked"] == epsilon]:
            scores = [record["loss"] + record["regulariser"] for record in own]
            error = spread([1 - record["accuracy"] for record in own], 100)
            steps = spread([record["steps"] for record in own], digits=0)
            rows.append((f"{epsilon:g}", PAPER[epsilon], spread(scores, digits=4), error, steps))
    return markdown(("epsilon", "paper", "test objective", "test error, %", "steps"), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.short:
        print(run(8.0, 0, 200))
        return
    if options.run:
        jobs = [{"epsilon asked": epsilon, "seed": seed} for seed in SEEDS for epsilon in EPSILONS]
        collect(RESULTS, jobs, lambda job: run(job["epsilon asked"], job["seed"]))
    print(table())


if __name__ == "__main__":
    main()
