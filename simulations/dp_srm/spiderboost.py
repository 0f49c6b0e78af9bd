"""Private SpiderBoost (Arora et al. 2022) on a9a: Wang et al. 2023 compare its bound, and do not run it.

    python simulations/dp_srm/spiderboost.py --search  # one seed of each setting of the grid, at each budget
    python simulations/dp_srm/spiderboost.py --run     # 5 seeds at each budget
    python simulations/dp_srm/spiderboost.py           # the table from spiderboost.jsonl

Cohorts, data passes and the clip norm of gradients are those of DP-SRM in ``a9a.py``. A fifth of the public
test people chooses the other settings, with one seed. The others score the table, with seeds that chose
nothing. Needs a9a under $FEDPRIV_DATA. Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from a9a import CLIP_NORM, COHORT, EPSILONS, PASSES, cell, objective
from batches import FRESH, SEEDS, Cell, batch, markdown, records_of, spread

RESULTS = Path(__file__).with_name("spiderboost.jsonl")
# Step size, L_1 of the clip norm of differences, q and b_1 / b_2.
GRID = tuple(itertools.product((0.5, 1.0, 2.0), (0.03, 0.3, 3.0), (2, 5), (1.0, 4.0)))


def made(epsilon: float, part: str, rate: float, smoothness: float, phase: int, full: float) -> Cell:
    """A run that samples as many examples in expectation as DP-SRM's, scored by a part of the test people."""
    passes = PASSES[epsilon] * phase / (phase - 1 + full)  # at the usual cohort in each release
    keys = {"learning_rate": rate, "clip_norm": CLIP_NORM, "test_part": part}
    own = {"phase": phase, "full_cohort": full, "smoothness": smoothness, "difference_clip_norm": CLIP_NORM}
    keys |= {f"spiderboost_{name}": value for name, value in own.items()}
    return cell(epsilon, "Private-SpiderBoost", passes, COHORT, **keys)


def score(cell: Cell, seeds: tuple[int, ...]) -> list[float]:
    """The test objective of the cell's runs with these seeds."""
    return [r["loss"] + r["regulariser"] for r in records_of(RESULTS, cell, seeds)]


def chosen(epsilon: float) -> Cell | None:
    """The setting with the least objective of a finished search, to be scored by the other test people."""
    tried = [(found[0], own) for own in GRID if (found := score(made(epsilon, "tuning", *own), SEEDS[:1]))]
    return made(epsilon, "rest", *min(tried)[1]) if len(tried) == len(GRID) else None


def table() -> str:
    """Markdown of spiderboost.jsonl: a row per budget."""
    titles = ("epsilon", "step size", "L_1", "q", "b_1 / b_2", "releases", "test objective", "test error, %")
    rows = []
    for epsilon in EPSILONS:
        own = chosen(epsilon)
        if own is None or not (found := records_of(RESULTS, own, FRESH)):
            continue
        keys = ("learning-rate", "spiderboost-smoothness", "spiderboost-phase", "spiderboost-full-cohort")
        rows.append(
            (
                f"{epsilon:g}",
                *(f"{own.config[key]:g}" for key in (*keys, "rounds")),
                spread(score(own, FRESH), digits=4),
                spread((1 - r["accuracy"] for r in found), 100),
                f"{max(r['epsilon']['pld']['epsilon'] for r in found):.3f}",
            )
        )
    return markdown((*titles, "PLD"), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    if options.search:
        searched = [made(epsilon, "tuning", *own) for epsilon in EPSILONS for own in GRID]
        batch(RESULTS, [(own, SEEDS[0]) for own in searched], objective)
    if options.run:
        cells = [own for epsilon in EPSILONS if (own := chosen(epsilon))]
        batch(RESULTS, [(own, seed) for own in cells for seed in FRESH], objective)
    print(table())


if __name__ == "__main__":
    main()
