"""Shared by the scripts in this folder: seeded runs, appended to a file as they end, and their spread.

A cell is one number of a table before its seeds: a run's flat configuration, and where the paper fixes the
noise instead of the budget, the noise multiplier. Finished runs are skipped the next time, so interrupted
ones go on where they were.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.data import Pair
    from fedpriv.tasks.task import Task

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one run a core; more threads a run only wait for each other

SEEDS = (0, 1, 2)
FRESH = (11, 12, 13, 14, 15)  # nothing was chosen with them
Record = dict[str, Any]


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


More = Callable[["Tensor"], Record]
Measure = Callable[["Task", "Tensor", "Pair"], Record]


def run(cell: Cell, seed: int, more: More | None = None) -> Record:
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


def trace(cell: Cell, seed: int, every: int, measure: Measure) -> list[Record]:
    """One seeded run, measured at its start, every ``every`` steps and at its end.

    ``measure`` gives the fields of a record from the task, the parameters (d,) and the public test examples.
    Each record has its step, too. A method that stops by itself has fewer steps than planned.
    """
    import torch

    from fedpriv.config.builders import initial_params, make_source, make_task, make_test
    from fedpriv.federated import loop
    from fedpriv.runs.run_ledger import open_accountant
    from fedpriv.simulation.run import make_engine

    torch.set_num_threads(1)
    plan = make_plan(cell, seed)
    source, key = make_source(plan.config), plan.key()
    task = make_task(plan.config, source)
    test = make_test(plan.config, source, torch.device("cpu"))
    found: list[Record] = []

    def observe(progress: loop.Progress) -> None:
        if progress.round % every == 0:
            found.append({"step": progress.round, **measure(task, progress.state.params, test)})

    start = initial_params(task, key)
    found.append({"step": 0, **measure(task, start, test)})
    with closing(make_engine(plan.config)) as engine, open_accountant(plan, None, None) as accountant:
        outcome = loop.run(plan.mechanism, start, engine, accountant, key, plan.cohorts(key), observe)
    if found[-1]["step"] < outcome.state.step:
        found.append({"step": outcome.state.step, **measure(task, outcome.state.params, test)})
    return found


def batch(path: Path, jobs: Sequence[tuple[Cell, int]], more: More | None = None) -> None:
    """Run the cells with these seeds as :func:`collect` does."""
    runs = [{"cell": asdict(cell), "seed": seed} for cell, seed in jobs]
    collect(path, runs, lambda job: run(Cell(**job["cell"]), job["seed"], more))


def collect(
    path: Path, jobs: Iterable[Record], run: Callable[[Record], Record], workers: int | None = None
) -> None:
    """Run the jobs of which the file has no record, and append each one's record as it ends.

    Args:
        path: the file of records.
        jobs: of each run the fields that tell its record from others.
        run: gives the whole record of a job.
        workers: how many processes run jobs side by side; None runs them here, one after another.
    """
    todo = unfinished(path, jobs)
    if workers is None:
        append(path, map(run, todo))
    elif todo:
        with ProcessPoolExecutor(workers) as pool:
            running = [pool.submit(run, job) for job in todo]
            append(path, (done.result() for done in as_completed(running)))


def unfinished(path: Path, jobs: Iterable[Record]) -> list[Record]:
    """The jobs of which the file has no record, as they would be read from it; tells how many there are."""
    done, wanted = read(path), [json.loads(json.dumps(job)) for job in jobs]
    todo = [job for job in wanted if not any(job.items() <= record.items() for record in done)]
    print(f"{len(todo)} runs to do, {len(wanted) - len(todo)} done before", flush=True)
    return todo


def append(path: Path, records: Iterable[Record]) -> None:
    """Write finished runs to the file, and tell of each."""
    for record in records:
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        told = {key: value for key, value in record.items() if isinstance(value, str | int | float | dict)}
        print(json.dumps(told), flush=True)


def read(path: Path) -> list[Record]:
    """All finished runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records_of(path: Path, cell: Cell, seeds: Sequence[int] | None = None) -> list[Record]:
    """The cell's finished runs, or those with these seeds, in the order of the seeds."""
    found = [r for r in read(path) if json.dumps(r["cell"], sort_keys=True) == cell.key()]
    return found if seeds is None else [r for seed in seeds for r in found if r["seed"] == seed]


def scores(path: Path, cell: Cell, score: str, seeds: Sequence[int] | None = None) -> list[float]:
    """The score of each of the cell's finished runs, or of those with these seeds."""
    return [r[score] for r in records_of(path, cell, seeds)]


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
