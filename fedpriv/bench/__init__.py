"""What a round costs on this machine, for a model and settings of one's own, and what to change.

The configured federation runs for some rounds as it would in ``simulate``, its ledger on the same disk, while
a stopwatch splits its rounds; then it is evaluated, and its files are written, as would be done every so many
rounds. Beside it stands the ordinary gradient: a batched forward and backward pass of the same model over as
many examples as a cohort is expected to hold, in this process.

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

from fedpriv._internal import hardware, validation
from fedpriv._internal.tensor_io import packed
from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv.accounting import Ledger
from fedpriv.bench.advice import advise
from fedpriv.bench.engines import TimedEngine, timed_engine
from fedpriv.bench.figures import PARTS, Comparison, Figures, shares, split
from fedpriv.bench.gradients import compare
from fedpriv.config.builders import choose_device, initial_params, make_source, make_task, make_test
from fedpriv.config.plan import Plan, make_plan, number_of_actors
from fedpriv.config.schema import Config
from fedpriv.federated.loop import Progress, run
from fedpriv.optimizers.base import State
from fedpriv.runs import checkpoints
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.run_dir import RunFolder

__all__ = ["PARTS", "WARM", "Comparison", "Figures", "measure"]

WARM = 5  # first rounds, which are not counted
_EVALUATIONS = 4  # the first of which is not counted


def measure(
    config: Config, rounds: int = 40, observe: Callable[[int], None] = lambda rounds: None
) -> Figures:
    """Run ``rounds`` rounds of the configured simulation, after WARM others, and time them.

    ``observe`` is called after each round, the WARM ones too, with how many there were; it is not timed.

    Raises ArgumentError for settings that cannot be simulated, or of the client level.
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
        theirs = engine.memory()
    finally:
        engine.close()
    mine = hardware.peak_memory()  # before what follows, which no run does
    splits = [split(lap) for lap in laps[WARM:]]
    whole = statistics.median(sum(parts.values()) for parts in splits)
    compared = compare(plan, state)
    expected = plan.mechanism.sampler.expected_size * compared.examples / compared.units
    actors = 0 if config.in_process else number_of_actors(config)
    figures = Figures(
        parts={part: statistics.median(one[part] for one in splits) for part in PARTS},
        shares=shares(splits),
        round=whole,
        evaluation=evaluation,
        compared=compared,
        examples_per_second=expected / whole,
        device=str(choose_device(config.device)),
        actors=actors,
        threads=max(1, int(config.cpus_per_actor)) if actors else torch.get_num_threads(),
        memory=mine,
        actors_memory=theirs,
        ledger=str(place),
    )
    return replace(figures, advice=advise(plan, figures))


def ledger_place(out: str) -> Path:
    """The folder that is there and holds, or will hold, the output folder of this name, or is it."""
    path = Path(out or "runs").absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _laps(
    plan: Plan,
    engine: TimedEngine,
    watch: Stopwatch,
    rounds: int,
    place: Path,
    told: Callable[[int], None],
) -> tuple[list[dict[str, float]], State, float]:
    """The watch after each round, the whole as ``round``; the last state, and an evaluation's seconds."""
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
        told(progress.round)
        started = time.perf_counter()

    params = initial_params(make_task(plan.config, make_source(plan.config)), key)
    try:
        made = tempfile.TemporaryDirectory(prefix=".fedpriv-bench-", dir=place)
    except OSError as error:
        hint = error.strerror or ""
        raise validation.fail("out", str(place), "be a folder to write to", hint) from None
    with made as folder, Ledger.create(path := Path(folder) / "ledger.jsonl", {}) as ledger:
        plain = RunAccountant(plan, ledger, path)
        budget_gate = Timed(plain, watch, {"affords": "accounting", "charge": "accounting"})
        cohorts = Timed(plan.cohorts(key), watch, {"draw": "sampling"})
        outcome = run(mechanism, params, engine, cast(Any, budget_gate), key, cast(Any, cohorts), observe)
        return laps, outcome.state, _evaluation(plan, outcome.state, plain, RunFolder(Path(folder)))


def _evaluation(plan: Plan, state: State, budget_gate: RunAccountant, folder: RunFolder) -> float:
    """Seconds that a run takes to evaluate its model, and to write it and what it could be taken up from."""
    config, source = plan.config, make_source(plan.config)
    task, device = make_task(config, source), choose_device(config.device)
    test = make_test(config, source, device)
    taken = []
    for _ in range(_EVALUATIONS):
        started = time.perf_counter()
        task.evaluate(state.output.to(device), *test, config.memory_budget * 2**20)
        budget_gate.spent()
        folder.write("model.safetensors", packed(task.layout.split(state.output), {}))
        if checkpoints.obstacle(plan) is None:
            folder.write(checkpoints.FILE, checkpoints.packed(plan, task.layout, state, budget_gate, ()))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])
