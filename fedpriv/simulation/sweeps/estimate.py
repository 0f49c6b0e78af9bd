"""How long a sweep takes on this machine, by a few rounds of each kind of cell.

Cells are of one kind if their rounds cost the same: they differ in the budget, the step size or the seed,
say. The rounds are those of the cells, with their data, and nothing of them is kept. Cells that have ended
are left out, and so is a search ([tune]) that has ended.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedpriv.config.plan import Plan
from fedpriv.report.run_folders import TUNING
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute
from fedpriv.simulation.run import make_engine
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.cell import ended
from fedpriv.simulation.sweeps.plans import Sweep
from fedpriv.simulation.sweeps.pool import threads_of

_ROUNDS = 5  # of a kind; every second one is evaluated
_PATIENCE = 60.0  # seconds after which no further kind is measured


@dataclass(frozen=True)
class Cost:
    """The seconds of a run: at its beginning and end, for a round, and for an evaluation."""

    fixed: float
    round: float
    evaluation: float

    def of(self, plan: Plan) -> float:
        """The seconds of a whole run."""
        evaluations = plan.rounds // plan.config.evaluate_every
        return self.fixed + plan.rounds * self.round + evaluations * self.evaluation


@dataclass(frozen=True)
class Estimate:
    """The time that a sweep takes.

    Attributes:
        seconds: of all runs that are left, ``jobs`` of them side by side.
        jobs: how many runs there are side by side.
        runs: how many runs are left, those of a search among them.
        kinds, measured: how many kinds of cells there are, and how many of them were measured; the others are
            taken as long as the mean of those.
    """

    seconds: float
    jobs: int
    runs: int
    kinds: int
    measured: int


def estimate(sweep: Sweep, folder: Path, jobs: int) -> Estimate | None:
    """The time that the sweep still takes; None where its cells run on Ray, which is not measured."""
    if sweep.on_ray or sweep.on_cluster:
        return None
    left = [cell for cell in sweep.cells if ended(folder / cell.name) is None]
    runs = [(sweep.plans[cell.name], 1) for cell in left]
    tuning = sweep.definition.tuning
    if tuning is not None and not (folder / TUNING).exists():
        # Candidates of a method are taken as long as its cells.
        methods = {plans.mark_without_seed(cell.config): sweep.plans[cell.name] for cell in sweep.cells}
        searched = sum(left * seeds for left, seeds in tuning.rungs)
        runs += [(plan, searched) for plan in methods.values()]
    kind_of = [plans.kind(plan.config) for plan, _ in runs]
    kinds = {kind: plan for kind, (plan, _) in zip(kind_of, runs, strict=True)}
    costs, started = dict[str, Cost](), time.monotonic()
    for kind, plan in kinds.items():
        if time.monotonic() - started < _PATIENCE:
            costs[kind] = measure(plan, threads_of(jobs))
    mean = _mean(costs.values())
    each = (costs.get(kind, mean).of(plan) for kind, (plan, _) in zip(kind_of, runs, strict=True))
    total = sum(seconds * number for seconds, (_, number) in zip(each, runs, strict=True))
    count = sum(number for _, number in runs)
    return Estimate(total / max(1, min(jobs, count)), jobs, count, len(kinds), len(costs))


def measure(plan: Plan, threads: int) -> Cost:
    """The cost of a plan's runs, by its first rounds in this process."""
    shown: list[float] = []

    def show(status: Status) -> None:
        shown.append(time.perf_counter())
        if len(shown) == _ROUNDS:
            raise KeyboardInterrupt  # as an interrupted run ends: with an evaluation and its report

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        started = time.perf_counter()
        plan = replace(plan, config=plan.config.model_copy(update={"evaluate_every": 2}))
        with tempfile.TemporaryDirectory() as scratch:  # a run's files take a good part of a short run
            output = RunFolder.create(Path(scratch) / "run", overwrite=False)
            execute(plan, make_engine(plan.config), output, show)
        whole = time.perf_counter() - started
    finally:
        torch.set_num_threads(before)
    laps = [end - begin for begin, end in itertools.pairwise(shown)]
    with_evaluation, without = laps[0::2], laps[1::2]  # round 2 is evaluated, round 3 is not
    each = statistics.median(without or with_evaluation or [whole])
    evaluation = max(0.0, statistics.median(with_evaluation) - each) if without else 0.0
    evaluations = len(shown) // 2
    return Cost(max(0.0, whole - len(shown) * each - evaluations * evaluation), each, evaluation)


def _mean(costs: Iterable[Cost]) -> Cost:
    found = [(cost.fixed, cost.round, cost.evaluation) for cost in costs]
    return Cost(*map(statistics.fmean, zip(*found, strict=True))) if found else Cost(0.0, 0.0, 0.0)
