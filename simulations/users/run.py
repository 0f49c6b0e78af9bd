"""Five data sets whose privacy unit is a user: adaptive methods, fixed ones, and non-private training.

    python simulations/users/run.py --run                                      # all tables
    python simulations/users/run.py --run --tables synthetic,movielens
    python simulations/users/run.py --run --tables cifar --seeds 1 --rounds 40  # a part of a table
    python simulations/users/run.py                                            # the tables from results.jsonl

A table is a sweep file of this folder, run as it is and once more without noise and clipping, in this
process alone. Settings are tuned on a fifth of the public test examples, by a seed of their own, and scores
are on the rest. Finished runs are appended to ``results.jsonl`` and skipped the next time. Runs are seeded to
be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))  # for user_data, which the sweeps name
import batches  # noqa: E402

import fedpriv  # noqa: E402
from fedpriv.config.schema import Config  # noqa: E402
from fedpriv.report.overview import epsilon  # noqa: E402
from fedpriv.report.pictures.points import interval  # noqa: E402
from fedpriv.report.summary import enforced_guarantee  # noqa: E402
from fedpriv.runs.result import Result  # noqa: E402
from fedpriv.simulation.sweeps.definition import cells, read  # noqa: E402
from fedpriv.tasks.metrics import shown  # noqa: E402

RESULTS = HERE / "results.jsonl"
TUNING, SCORED = "tuning", "rest"  # parts of the public test examples
_TUNING_SEED = 1
TABLES = ("shakespeare", "cifar", "synthetic", "movielens", "infinite_mnist")
FIXED = ("dp-sgd", "dp-adam")
NON_PRIVATE = "non-private"
_BUDGET = ("epsilon", "delta", "noise-cohort", "noise-population")
Definition = dict[str, Any]


def private(name: str, seeds: int = 5, rounds: int = 0) -> Definition:
    """The sweep of a table, with its first ``seeds`` seeds and, unless 0, so many rounds."""
    found: Definition = tomllib.loads((HERE / f"{name}.toml").read_text())
    found["grid"]["seed"] = found["grid"]["seed"][:seeds]
    if rounds:
        found["settings"] |= {"rounds": rounds, "evaluate-every": rounds}
    return found


def non_private(definition: Definition) -> Definition:
    """The same without noise and clipping, by the rules of the fixed methods."""
    settings = {key: value for key, value in definition["settings"].items() if key not in _BUDGET}
    overrides = [one for one in definition.get("override", []) if "optimizer" not in one["when"]]
    return {
        **definition,
        "settings": {**settings, "placement": "none", "clip-norm": float("inf")},
        "grid": {**definition["grid"], "optimizer": [*FIXED]},
        "override": overrides,
    }


def row(table: str, part: str, config: Config, result: Result) -> dict[str, Any]:
    """What is kept of a run: what it was, its score, and its epsilon with its kind and mark."""
    gate, last = enforced_guarantee(result.report), result.metrics[-1]
    return {
        **place(table, part, config),
        "measure": shown(last).key,
        "score": last[shown(last).key],
        "epsilon": epsilon(result.report) if gate else None,
        "delta": gate.get("delta"),
        "kind": gate.get("kind"),
        "remark": result.report["remark"],
    }


def place(table: str, part: str, config: Config) -> dict[str, Any]:
    """What tells a run from all others."""
    return {
        "table": table,
        "part": part,
        "method": NON_PRIVATE if config.placement == "none" else config.optimizer,
        "optimizer": config.optimizer,
        "partition": config.partition,
        "seed": config.seed,
        "rounds": config.rounds,
        "learning-rate": config.learning_rate,
    }


def run(table: str, seeds: int, rounds: int) -> None:
    """Runs what is missing of a table; a row is appended to the results as its run ends."""
    definition = private(table, seeds, rounds)
    for one in (definition, non_private(definition)):
        found = read(one)
        assert found.tuning is not None
        candidates = [cells(found, lambda _, own=own: {**own}) for own in found.tuning.candidates]
        for number, first in enumerate(candidates[0]):
            if first.config.seed != found.grid["seed"][0]:
                continue
            tried = [of[number].config.changed(seed=_TUNING_SEED, test_part=TUNING) for of in candidates]
            rows = [_once(table, TUNING, config) for config in tried]
            best = min(range(len(rows)), key=lambda at: rank(rows[at]))
            for seed in found.grid["seed"]:
                config = candidates[best][number].config.changed(seed=int(seed), test_part=SCORED)
                _once(table, SCORED, config)


def _once(table: str, part: str, config: Config) -> dict[str, Any]:
    """The row of a run, which is run unless the results have it."""
    mark = place(table, part, config)
    for one in results():
        if {key: one[key] for key in mark} == mark:
            return one
    made = row(table, part, config, fedpriv.simulate(config, engine="in-process", progress=False))
    batches.append(RESULTS, [made])
    return made


def results() -> list[dict[str, Any]]:
    """All rows so far."""
    return batches.read(RESULTS)


def rank(one: dict[str, Any]) -> float:
    """Smaller is better; a run that diverged is last."""
    if one["score"] is None:
        return math.inf
    return -float(one["score"]) if one["measure"] == "accuracy" else float(one["score"])


def markdown(rows: list[dict[str, Any]], table: str) -> str:
    """A table: mean and half the 95 % interval of each method's seeds, and the largest epsilon certified.

    Runs with a step size that the search no longer chooses, since it has more candidates, are left out.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in rows:
        if one["table"] == table:
            groups.setdefault((one["partition"], one["method"], one["optimizer"]), []).append(one)
    lines = list[tuple[str, ...]]()
    for (partition, method, optimizer), of_method in groups.items():
        runs, rate = with_chosen_rate(of_method)
        if not runs:
            continue
        name = method if method == optimizer else f"{method} (`{optimizer}` without noise and clipping)"
        epsilon = "infinite" if runs[0]["epsilon"] is None else f"{max(r['epsilon'] for r in runs):.4g}"
        marks = " (simulated, not private)" if str(runs[0]["remark"]).startswith("simulated") else ""
        counts = str(runs[0]["rounds"]), f"{rate:g}", str(len(runs))
        lines.append((name, partition, *counts, score(runs), f"{epsilon}{marks}"))
    if not lines:
        return "not run"
    return batches.markdown(
        ("method", "partition", "rounds", "step size", "seeds", "score", "epsilon"), lines
    )


def with_chosen_rate(of_method: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
    """A method's scored runs with the step size that its search chose, and that step size."""
    best = min((one for one in of_method if one["part"] == TUNING), key=rank)["learning-rate"]
    return [one for one in of_method if one["part"] == SCORED and one["learning-rate"] == best], best


def score(runs: list[dict[str, Any]]) -> str:
    """Mean and half the width of its 95 % interval: percent of right answers, or the squared error."""
    if any(one["score"] is None for one in runs):
        return "diverged"
    share = runs[0]["measure"] == "accuracy"
    mean, half = interval([100 * one["score"] if share else one["score"] for one in runs])
    unit, digits = (" %", 1) if share else ("", 3)
    return f"{mean:.{digits}f}{f' ± {half:.{digits}f}' if len(runs) > 1 else ''}{unit}"


def main() -> None:
    """Run the tables that were asked for, and print all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run what is missing, then print the tables")
    parser.add_argument("--tables", default=",".join(TABLES), help="which tables, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="how many of the seeds")
    parser.add_argument("--rounds", type=int, default=0, help="another number of rounds than the file's")
    given = parser.parse_args()
    for table in given.tables.split(",") if given.run else ():
        if table not in TABLES:
            parser.error(f"--tables {table}: it must be one of {', '.join(TABLES)}")
        run(table, given.seeds, given.rounds)
    for table in TABLES:
        print(f"\n## {table}\n\n{markdown(results(), table)}")


if __name__ == "__main__":
    main()
