"""Wang et al. 2023, Table 2: the baseline DP-AGD (Lee & Kifer 2018) on a9a.

    python simulations/dp_srm/dp_agd.py --search  # one seed of each setting of the grid, at each budget
    python simulations/dp_srm/dp_agd.py --run     # 5 seeds at each budget
    python simulations/dp_srm/dp_agd.py           # the table from dp_agd.jsonl
    python simulations/dp_srm/dp_agd.py --short   # 200 examples of a9a, a second

DP-AGD chooses noise and number of releases by its answers, so that it is no optimizer of `fedpriv train`. A
zCDP filter holds the budget. A fifth of the public test people chooses the settings, with one seed. The
others score the table, with seeds that chose nothing. Needs a9a under $FEDPRIV_DATA. Runs are seeded to be
repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from a9a import CLIP_NORM, DELTA, EPSILONS, gradient_norm, regulariser
from batches import FRESH, SEEDS, Record, collect, markdown, read, spread

RESULTS = Path(__file__).with_name("dp_agd.jsonl")
CLIP_LOSS = 1.0
CHOICE_SHARE = 0.002
GRID = tuple(itertools.product((0.005, 0.01, 0.02, 0.05), (0.25, 0.5, 1.0)))  # gradient share, largest step
PAPER = {0.2: ("0.3713", "0.0437", "96.21"), 0.5: ("0.3627", "0.0402", "95.45")}


def run(
    epsilon: float, seed: int, share: float, step: float, part: str, examples: int | None = None
) -> Record:
    """One seeded run over all training examples, or the first ``examples``.

    Args:
        epsilon, seed: of the run.
        share, step: `gradient_share` and `largest_step` of :class:`fedpriv.contrib.dp_agd.DpAgd`.
        part: the part of the test people that scores it.
        examples: None is all.
    """
    import numpy as np
    import torch

    from fedpriv import data
    from fedpriv.accounting import Budget, Filter
    from fedpriv.config.builders import make_task, make_test
    from fedpriv.config.schema import Config
    from fedpriv.contrib.dp_agd import DpAgd, descend
    from fedpriv.rng import Key

    torch.set_num_threads(1)
    source = data.load("a9a")
    config = Config.parse({"dataset": "a9a", "model": "logistic-binary-no-bias", "test-part": part})
    task = make_task(config, source)
    number = min(source.size or 0, examples or 10**9)
    x, y = source.batch(np.arange(source.first, source.first + number))
    started = time.process_time()
    gate = Filter(Budget(epsilon, DELTA, "zcdp"))
    settings = DpAgd(CLIP_NORM, CLIP_LOSS, share, CHOICE_SHARE, largest_step=step)
    start, key = torch.zeros(task.dimension), Key.from_seed(seed)
    end = descend(settings, task, x, y, start, gate, key, penalty=lambda at: number * regulariser(at))
    seconds = time.process_time() - started
    test = make_test(config, source, torch.device("cpu"))
    scores = task.evaluate(end.params, *test)
    return {
        **{name: scores[name] for name in ("accuracy", "loss")},
        "regulariser": float(regulariser(end.params)),
        "gradient norm": gradient_norm(end.params, test),
        "steps": len(end.steps),
        "releases": end.releases,
        "stopped": end.stopped,
        "delta": DELTA,
        "epsilon": {"zcdp": {"epsilon": epsilon, "kind": "bound"}},
        "CPU seconds": round(seconds, 2),
        "note": "reproducible, not private",
    }


def job(epsilon: float, seed: int, share: float, step: float, part: str) -> Record:
    """What tells a run's record from others."""
    return {"epsilon asked": epsilon, "seed": seed, "share": share, "step": step, "part": part}


def _record(job: Record) -> Record:
    return {**job, **run(*job.values())}


def chosen() -> list[tuple[float, float, float]]:
    """(epsilon, gradient share, largest step) with the least objective of each finished search."""
    found = []
    for epsilon in EPSILONS:
        own = [r for r in read(RESULTS) if (r["epsilon asked"], r["part"]) == (epsilon, "tuning")]
        if len(own) == len(GRID):
            best = min(own, key=lambda r: r["loss"] + r["regulariser"])
            found.append((epsilon, best["share"], best["step"]))
    return found


def table() -> str:
    """Markdown of dp_agd.jsonl: a row per budget."""
    titles = (
        "epsilon",
        "share, step",
        "test objective",
        "paper",
        "test error, %",
        "steps",
        "gradient norm",
        "paper",
    )
    rows = []
    for epsilon, share, step in chosen():
        some = {"epsilon asked": epsilon, "share": share, "step": step, "part": "rest"}
        if own := [record for record in read(RESULTS) if some.items() <= record.items()]:
            theirs, norm, seconds = PAPER[epsilon]
            rows.append(
                (
                    f"{epsilon:g}",
                    f"{share:g}, {step:g}",
                    spread([record["loss"] + record["regulariser"] for record in own], digits=4),
                    theirs,
                    spread([1 - record["accuracy"] for record in own], 100),
                    spread([record["steps"] for record in own], digits=0),
                    spread([record["gradient norm"] for record in own], digits=4),
                    norm,
                    spread([record["CPU seconds"] for record in own], digits=1),
                    seconds,
                )
            )
    return markdown((*titles, "CPU time, s", "paper"), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.short:
        print(run(8.0, 0, 0.05, 1.0, "all", 200))
        return
    if options.search:
        collect(RESULTS, [job(e, SEEDS[0], *point, "tuning") for e in EPSILONS for point in GRID], _record)
    if options.run:
        collect(RESULTS, [job(e, seed, *point, "rest") for seed in FRESH for e, *point in chosen()], _record)
    print(table())


if __name__ == "__main__":
    main()
