"""Shared by the scripts in this folder: seeded runs, appended to a file as they end, and their spread.

A cell is one number of a table before its seeds: a run's flat configuration, and where the paper fixes the
noise instead of the budget, the noise multiplier. Finished runs are skipped the next time, so an
interrupted batch goes on where it was.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one run a core; more threads a run only wait for each other

SEEDS = (0, 1, 2)
FRESH = (11, 12, 13, 14, 15)  # nothing was chosen with them


@dataclass(frozen=True)
class Cell:
    """One number of a table, before its seeds.

    Attributes:
        part: which table or search it belongs to.
        method: what its row calls it.
        config: keys of `fedpriv train`; the seed is added here.
        noise_multiplier: z of every release, where the paper fixes it; None calibrates it to the budget.
    """

    part: str
    method: str
    config: dict[str, Any] = field(hash=False)
    noise_multiplier: float | None = None

    def key(self) -> str:
        """The cell as text: equal for equal cells."""
        return json.dumps(asdict(self), sort_keys=True)


More = Callable[["Tensor"], dict[str, Any]]


def run(cell: Cell, seed: int, more: More | None = None) -> dict[str, Any]:
    """The last public test score of one seeded run, and its epsilon by every accounting method.

    ``more`` gives further fields of the record from the parameters (d,) at the end.
    """
    import torch

    from fedpriv.runs.runner import execute
    from fedpriv.simulation.run import make_engine

    torch.set_num_threads(1)
    started = time.perf_counter()
    plan = make_plan(cell, seed)
    result = execute(plan, make_engine(plan.config))
    views = [v for v in result.report["privacy"]["views"] if v["gates the budget"]]
    final = {k: v for k, v in result.metrics[-1].items() if k in ("accuracy", "loss", "mse")}
    return {
        "cell": asdict(cell),
        "seed": seed,
        **final,
        **(more(result.params) if more else {}),
        "delta": views[0]["delta"] if views else None,
        "epsilon": views[0]["epsilon"] if views else None,
        "noise multiplier": result.report["privacy"]["noise multiplier"] if views else None,
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def make_plan(cell: Cell, seed: int) -> Any:
    """The cell's plan. If the cell has a noise multiplier, the budget is its epsilon by PLD."""
    from fedpriv.accounting import Budget, epsilon
    from fedpriv.config.centralised import resolve
    from fedpriv.config.plan import make_plan

    plan = make_plan(resolve({**cell.config, "seed": seed}))
    if cell.noise_multiplier is None:
        return plan
    mechanism = replace(plan.mechanism, scale=cell.noise_multiplier)
    spent = epsilon(mechanism.planned_events(), plan.config.delta, "pld").epsilon * (1 + 1e-6)
    budget = Budget(spent, plan.config.delta, "pld")
    return replace(plan, config=plan.config.changed(epsilon=spent), mechanism=mechanism, budget=budget)


def batch(path: Path, jobs: Sequence[tuple[Cell, int]], more: More | None = None) -> None:
    """Run the jobs that have no result yet, one after another, appending each as it ends."""
    done = {(json.dumps(r["cell"], sort_keys=True), r["seed"]) for r in read(path)}
    todo = [(cell, seed) for cell, seed in jobs if (cell.key(), seed) not in done]
    print(f"{len(todo)} runs to do, {len(jobs) - len(todo)} done before", flush=True)
    for cell, seed in todo:
        record = run(cell, seed, more)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        scores = {k: round(record[k], 4) for k in ("accuracy", "loss", "mse") if k in record}
        print(f"{cell.part} {cell.method} seed {seed}: {scores} in {record['seconds']} s", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """All finished runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records_of(path: Path, cell: Cell) -> list[dict[str, Any]]:
    """The cell's finished runs."""
    return [r for r in read(path) if json.dumps(r["cell"], sort_keys=True) == cell.key()]


def scores(path: Path, cell: Cell, score: str, seeds: Sequence[int] | None = None) -> list[float]:
    """The score of each of the cell's finished runs, or of those with these seeds."""
    return [r[score] for r in records_of(path, cell) if seeds is None or r["seed"] in seeds]


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (titles, *rows)]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def spread(values: Iterable[float], factor: float = 1.0, digits: int = 2) -> str:
    """Mean ± standard deviation over the seeds, and the number of seeds if it is not three."""
    values = [factor * value for value in values]
    if not values:
        return ""
    count = "" if len(values) == len(SEEDS) else f" ({len(values)})"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}{count}"
