"""What a round costs on this machine, for a model and settings of one's own, and what to change.

The configured federation runs for some rounds as it would in ``simulate``, ledger on disk and all, while a
stopwatch splits its rounds. Beside it stands the ordinary gradient: a batched forward and backward pass of
the same model over as many examples as a cohort is expected to hold, in this process.

>>> from fedpriv.config import Config
>>> small = Config.parse({"clients": 999, "sampling-rate": 0.03, "model": "logistic", "engine": "in-process"})
>>> figures = measure(small, rounds=12)
>>> sorted(figures.parts) == sorted(PARTS)
True
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedpriv import _check, cores
from fedpriv.accounting import Ledger
from fedpriv.books import RunBooks
from fedpriv.clients import OneGradient, clipped_sum
from fedpriv.config import Config
from fedpriv.node import choose_device, client_side, initial_params, make_source, make_task, make_view
from fedpriv.plan import Plan, gpu_share, make_plan, number_of_actors
from fedpriv.query import Query, SumBlock, Term
from fedpriv.round import Engine, Progress, run
from fedpriv.stopwatch import Stopwatch, Timed

PARTS = ("sampling", "data", "clipped sum", "transport", "noise", "update", "accounting")
WARM = 5  # first rounds, which are not counted

_EXAMPLES = 4096  # the most that gradients are compared on
_MUCH = 0.2  # of a round, from which a part is worth a word
_WORTH_ACTORS = 0.02  # seconds of clipped sum, from which several processes gain more than they cost


@dataclass(frozen=True)
class Figures:
    """What was measured; times are medians in seconds.

    Attributes:
        parts: seconds of a round by PARTS. Where nodes work at once, data and clipped sum are the slowest's.
        round: seconds of a whole round.
        ordinary: seconds of an ordinary gradient over the expected cohort.
        clipped: seconds of the clipped sum of the same examples' gradients, in this process.
        by_rows: whether the model is summed by forming every gradient.
        advice: what would make rounds cheaper.
    """

    parts: dict[str, float]
    round: float
    ordinary: float
    clipped: float
    by_rows: bool
    advice: tuple[str, ...]

    @property
    def overhead(self) -> float:
        """The part of a round outside the clipped sum, in [0, 1]."""
        return 1 - self.parts["clipped sum"] / self.round


def measure(config: Config, rounds: int = 40) -> Figures:
    """Run ``rounds`` rounds of the configured simulation, after WARM others, and time them.

    Raises ArgumentError for settings that cannot be simulated, or of the client level.
    """
    _check.integer("rounds", rounds, minimum=1)
    if config.level != "aggregation":
        raise _check.fail("level", config.level, "be aggregation to be timed by parts")
    plan = make_plan(config.changed(rounds=max(config.rounds, rounds + WARM)))
    watch = Stopwatch()
    engine = _timed_engine(plan.config, watch)
    try:
        laps = _laps(plan, engine, watch, rounds + WARM)
    finally:
        engine.close()
    splits = [_split(lap) for lap in laps[WARM:]]
    parts = {part: statistics.median(split[part] for split in splits) for part in PARTS}
    whole = statistics.median(lap["round"] for lap in laps[WARM:])
    ordinary, clipped, by_rows = _gradients(plan)
    return Figures(parts, whole, ordinary, clipped, by_rows, _advice(plan, parts, whole, by_rows))


def _timed_engine(config: Config, watch: Stopwatch) -> Engine:
    """The configured engine; where its time goes is on the watch after each gathering."""
    if config.engine == "in-process":
        side = client_side(config.table())
        timed = replace(side, view=cast(Any, Timed(side.view, watch, {"batch": "data"})))
        return cast(Engine, Timed(timed, watch, {"gather": "gather"}))
    from fedpriv.flower.grids.ray import RayGrid
    from fedpriv.flower.strategy import GridEngine
    from fedpriv.flower.timed_app import TIMES

    class Listening(RayGrid):
        """A grid that adds what the slowest node's reply says to the watch."""

        adds = False  # every reply has times of its own

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            times = [reply.content[TIMES] for reply in replies if TIMES in reply.content]
            if times:
                watch.add(max(times, key=lambda record: record["node"]))
            return replies

    grid = Listening(
        number_of_actors(config),
        config.table(),
        client_app="fedpriv.flower.timed_app:app",
        num_cpus=config.cpus_per_actor,
        num_gpus=gpu_share(config),
    )
    engine = GridEngine(grid, reply_timeout=config.reply_timeout)
    return cast(Engine, Timed(engine, watch, {"gather": "gather"}))


def _laps(plan: Plan, engine: Engine, watch: Stopwatch, rounds: int) -> list[dict[str, float]]:
    """The watch after each round, with the whole as ``round``."""
    key, laps = plan.key(), list[dict[str, float]]()
    setup = replace(
        plan.setup,
        rounds=rounds,
        optimizer=cast(Any, Timed(plan.setup.optimizer, watch, {"query": "update", "update": "update"})),
    )
    started = time.perf_counter()

    def observe(progress: Progress) -> None:
        nonlocal started
        now = time.perf_counter()
        laps.append({**watch.take(), "round": now - started})
        started = time.perf_counter()

    params = initial_params(make_task(plan.config, make_source(plan.config)), key)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(path := Path(folder) / "ledger.jsonl", {}) as ledger,
    ):
        books = Timed(RunBooks(plan, ledger, path), watch, {"affords": "accounting", "charge": "accounting"})
        cohorts = Timed(plan.cohorts(key), watch, {"draw": "sampling"})
        run(setup, params, engine, cast(Any, books), key, cast(Any, cohorts), observe)
    return laps


def _split(lap: dict[str, float]) -> dict[str, float]:
    """A round's seconds by PARTS; noise is what is left: it is drawn meanwhile, awaited and added."""
    made, gathered = lap.get("data", 0.0), lap["gather"]
    summed = lap["answer"] - made if "answer" in lap else gathered - made
    split = {
        "sampling": lap["sampling"],
        "data": made,
        "clipped sum": summed,
        "transport": gathered - made - summed,
        "update": lap["update"],
        "accounting": lap["accounting"],
    }
    return {**split, "noise": max(0.0, lap["round"] - sum(split.values()))}


def _gradients(plan: Plan) -> tuple[float, float, bool]:
    """Seconds of an ordinary and of a clipped gradient over a cohort's examples, and whether by rows."""
    config = plan.config
    source, device = make_source(config), choose_device(config.device)
    task = make_task(config, source)
    size = min(config.units, max(1, round(plan.setup.sampler.expected_size)), _EXAMPLES)
    x, y, _ = make_view(config, source).batch(np.arange(size, dtype=np.int64), device)
    params = initial_params(task, plan.key()).to(device)
    query = Query((params,), (SumBlock((Term(config.clip_norm),)),))

    def ordinary() -> Tensor:
        leaf = params.clone().requires_grad_()
        return torch.autograd.grad(task.losses(leaf, x, y).mean(), leaf)[0]

    def clipped() -> Tensor:
        return clipped_sum(OneGradient(), task, query, x, y)[0]

    seconds = _alternated([ordinary, clipped])
    return seconds[0], seconds[1], not task.book.suits(task, params, x, y)


def _alternated(sides: Sequence[Callable[[], Tensor]], times: int = 9) -> list[float]:
    """Median seconds of each side, taken in turns, the first turn not counted."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(times + 1):
        for own, side in zip(taken, sides, strict=True):
            started = time.perf_counter()
            float(side().sum())  # waits for a device too
            own.append(time.perf_counter() - started)
    return [statistics.median(own[1:]) for own in taken]


def _advice(plan: Plan, parts: dict[str, float], whole: float, by_rows: bool) -> tuple[str, ...]:
    """What would make rounds cheaper, by what stands out."""
    config, here = plan.config, cores.usable()
    share = {part: seconds / whole for part, seconds in parts.items()}
    ray = config.engine == "ray"
    chunks = math.ceil(plan.setup.sampler.expected_size / plan.chunk_size)
    actors = number_of_actors(config)
    found = []
    if by_rows:
        found.append(
            "every gradient is formed, since a layer of this model is of no kind that fedpriv.clipping.kinds "
            "knows, or mixes examples: a kind for it would save memory and most of the clipped sum"
        )
    if ray and chunks < actors:
        each = max(1, math.ceil(plan.setup.sampler.expected_size / actors))
        found.append(f"{actors} actors share {chunks} chunk(s) a round: chunk-size={each} uses them all")
    if share["transport"] > _MUCH:
        found.append(
            f"transport takes {share['transport']:.0%} of a round: larger cohorts, fewer actors or "
            "engine=in-process have less of it"
        )
    if not ray and here > 1 and parts["clipped sum"] > _WORTH_ACTORS:
        found.append(f"one process computes, and this machine has {here} cores: engine=ray uses them")
    if share["data"] > _MUCH:
        found.append(
            f"making examples takes {share['data']:.0%} of a round: a data set that is not made on the fly "
            "costs less, and more actors share the work"
        )
    if share["accounting"] > _MUCH:
        found.append(
            f"accounting takes {share['accounting']:.0%} of a round, most of it waiting for the ledger to be "
            "on disk: an output folder on a faster disk helps"
        )
    return tuple(found)
