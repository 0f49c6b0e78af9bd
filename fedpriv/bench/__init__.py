"""Benchmarks of a configured run on this machine, with advice on faster settings.

The configured federation runs for some rounds as in ``simulate``, with its ledger on the same disk, while a
stopwatch measures the parts of a round. Then the model is evaluated and the files are written once. For
comparison, this process computes an ordinary gradient: one batched forward and backward pass of the same
model over the expected number of examples of a cohort.

>>> from fedpriv.config.schema import Config
>>> small = Config.parse({"clients": 999, "sampling-rate": 0.03, "model": "logistic", "engine": "in-process"})
>>> figures = measure(small, rounds=12)
>>> sorted(figures.parts) == sorted(PARTS)
True
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from fedpriv._internal import hardware, run_files, validation
from fedpriv._internal.tensor_io import packed
from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv.accounting import Ledger
from fedpriv.bench.advice import advise
from fedpriv.bench.engines import TimedEngine, timed_engine
from fedpriv.bench.figures import PARTS, Comparison, Figures, shares, split
from fedpriv.bench.gradients import compare
from fedpriv.config.builders import choose_device, initial_params, make_source, make_task, make_test
from fedpriv.config.plan import Plan, make_plan, number_of_actors
from fedpriv.config.resumable import obstacle
from fedpriv.config.schema import Config
from fedpriv.federated.loop import Progress, run
from fedpriv.optimizers.base import State
from fedpriv.runs import checkpoints
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.run_dir import RunFolder

__all__ = ["PARTS", "WARM", "Comparison", "Figures", "measure"]

WARM = 5  # warm-up rounds, which are not counted
_EVALUATIONS = 4  # number of evaluations; the first one is not counted


def measure(
    config: Config, rounds: int = 40, observe: Callable[[int], None] = lambda rounds: None
) -> Figures:
    """Run WARM warm-up rounds and ``rounds`` timed rounds of the configured simulation.

    ``observe`` is called after each round, including warm-up rounds, with the number of rounds so far. Its
    time is not counted.

    Raises ArgumentError for settings that cannot be simulated, and for level=client.
    """
    validation.integer("rounds", rounds, minimum=1)
    if config.by_silo:
        hint = "a step of one silo is a round of level=aggregation with clients=1 and silo-steps=1"
        raise validation.fail("level", config.level, "be aggregation to be timed by parts", hint)
    plan = make_plan(config.changed(rounds=max(config.rounds, rounds + WARM)))
    config, watch = plan.config, Stopwatch()
    place = ledger_place(config.out)
    engine = timed_engine(config, watch)
    try:
        laps, state, evaluation = _laps(plan, engine, watch, rounds + WARM, place, observe)
        actors_memory = engine.memory()
    finally:
        engine.close()
    memory = hardware.peak_memory()  # before the comparison, which is not part of a run
    splits = [split(lap) for lap in laps[WARM:]]
    whole = statistics.median(sum(parts.values()) for parts in splits)
    compared = compare(plan, state)
    expected = plan.mechanism.sampler.expected_size * compared.examples / compared.units
    actors = 0 if config.in_process else number_of_actors(config)
    figures = Figures(
        shares=shares(splits),
        round=whole,
        evaluation=evaluation,
        compared=compared,
        examples_per_second=expected / whole,
        device=str(choose_device(config.device)),
        actors=actors,
        threads=max(1, int(config.cpus_per_actor)) if actors else torch.get_num_threads(),
        memory=memory,
        actors_memory=actors_memory,
        ledger=str(place),
    )
    return replace(figures, advice=advise(plan, figures))


def ledger_place(out: str) -> Path:
    """The nearest existing folder of the output folder's path."""
    path = Path(out or "runs").absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _laps(
    plan: Plan,
    engine: TimedEngine,
    watch: Stopwatch,
    rounds: int,
    place: Path,
    report: Callable[[int], None],
) -> tuple[list[dict[str, float]], State, float]:
    """The stopwatch's seconds after each round, with the total as ``round``; the last state; the seconds of
    an evaluation."""
    key, laps = plan.key(), list[dict[str, float]]()
    mechanism = replace(
        plan.mechanism,
        rounds=rounds,
        optimizer=cast(Any, Timed(plan.mechanism.optimizer, watch, {"query": "update", "update": "update"})),
    )
    started = time.perf_counter()

    def observe(progress: Progress) -> None:
        nonlocal started
        lap = {**watch.take(), "round": time.perf_counter() - started}
        lap["round"] -= lap.get("aside", 0.0)
        laps.append(lap)
        report(progress.round)
        started = time.perf_counter()

    params = initial_params(make_task(plan.config, make_source(plan.config)), key)
    try:
        made = tempfile.TemporaryDirectory(prefix=".fedpriv-bench-", dir=place)
    except OSError as error:
        hint = error.strerror or ""
        raise validation.fail("out", str(place), "be a folder to write to", hint) from None
    with made as folder, Ledger.create(path := Path(folder) / run_files.LEDGER, {}) as ledger:
        plain = RunAccountant(plan, ledger, path)
        budget_gate = Timed(plain, watch, {"affords": "accounting", "charge": "accounting"})
        cohorts = Timed(plan.cohorts(key), watch, {"draw": "sampling"})
        outcome = run(mechanism, params, engine, cast(Any, budget_gate), key, cast(Any, cohorts), observe)
        return laps, outcome.state, _evaluation(plan, outcome.state, plain, RunFolder(Path(folder)))


def _evaluation(plan: Plan, state: State, budget_gate: RunAccountant, folder: RunFolder) -> float:
    """The median seconds to evaluate the model, and to write it and the checkpoint."""
    config, source = plan.config, make_source(plan.config)
    task, device = make_task(config, source), choose_device(config.device)
    test = make_test(config, source, device)
    seconds = []
    for _ in range(_EVALUATIONS):
        started = time.perf_counter()
        task.evaluate(state.output.to(device), *test, config.memory_budget * 2**20)
        budget_gate.spent()
        folder.write(run_files.MODEL, packed(task.layout.split(state.output), {}))
        if obstacle(plan.config) is None:
            folder.write(run_files.STATE, checkpoints.packed(plan, task.layout, state, budget_gate.head, ()))
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
