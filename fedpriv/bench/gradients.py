"""The run's clipped sums and an ordinary gradient over the same examples, timed in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.bench.figures import Comparison
from fedpriv.clipping.ghost.clipped_sum import terms_of
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers import rule_of
from fedpriv.clipping.invariance import summed_alone
from fedpriv.clipping.precision import Precision, computing
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.federated.worker import Worker, to_device
from fedpriv.mechanism.query import IndicatorBlock, Query
from fedpriv.node.factory import make_worker
from fedpriv.optimizers.base import PrivateOptimizer, State
from fedpriv.tasks.task import Task

_EXAMPLES = 4096  # the largest number of examples for the comparison
_COUNTED_UNITS = 8  # units whose examples give the mean number of examples per unit
_STEPS, _GOLDEN = 64, (5**0.5 - 1) / 2  # inspected steps; golden-ratio spacing avoids resonance with cycles


def compare(plan: Plan, state: State) -> Comparison:
    """Time both at a state that the run's optimizer has reached."""
    side = make_worker(plan.config.table())
    units, x, y, owner = _examples(plan, side)
    asked = typical_queries(plan.mechanism.optimizer, state, plan.mechanism.rounds)
    queries = [to_device(query, side.device) for query, _ in asked]
    params = queries[0].points[0]

    def ordinary() -> Tensor:
        leaf = params.clone().requires_grad_()
        with computing(plan.config.precision, side.device):
            loss = side.task.losses(leaf, x, y).mean()
        return torch.autograd.grad(loss, leaf)[0]

    def clipped(own: Worker, query: Query) -> Tensor:
        return clipped_sum(own.work, own.task, query, x, y, owner, units, memory=own.memory)[0]

    sides = {"": side, **_others(plan.config, side)}
    calls = [lambda s=s, q=q: clipped(s, q) for s in sides.values() for q in queries]
    seconds = _alternated([ordinary, *calls])
    each = np.array(seconds[1:]).reshape(len(sides), len(queries)) @ [share for _, share in asked]
    by_rows = ""
    if isinstance(side.work, OneGradient):
        clipper = clipper_of(side.task, side.work.precision)
        if any(term.needs_rows for query in queries for term in terms_of(query.blocks)):
            by_rows = f"{plan.config.optimizer} clips more than the gradient itself"
        elif not clipper.coverage(side.task, params, x, y, side.task.dropout.draws):
            by_rows = why_by_rows(side.task)
    instead = dict(zip(list(sides)[1:], each[1:].tolist(), strict=True))
    alone = summed_alone(side.task)
    return Comparison(len(x), units, seconds[0], float(each[0]), by_rows, alone, instead)


def _examples(plan: Plan, side: Worker) -> tuple[int, Tensor, Tensor, Tensor]:
    """Units spread evenly over the population: their number, examples, labels and owners."""
    population = plan.config.units

    def batch(units: int) -> tuple[Tensor, Tensor, Tensor]:
        return side.view.batch(np.arange(units, dtype=np.int64) * (population // units), side.device)

    counted = min(population, _COUNTED_UNITS)
    each = max(1, len(batch(counted)[0]) // counted)
    units = min(population, max(1, round(plan.mechanism.sampler.expected_size)), max(1, _EXAMPLES // each))
    return units, *batch(units)


def typical_queries(optimizer: PrivateOptimizer, state: State, rounds: int) -> list[tuple[Query, float]]:
    """One query of each kind that occurs in ``rounds`` rounds, with its share of all, most frequent first.

    The cost of a query depends on the number of its points, and on how its terms combine, divide and clip.
    """
    found: dict[Hashable, list[Query]] = {}
    for number in range(_STEPS):
        query = optimizer.query(replace(state, step=int(rounds * (number * _GOLDEN % 1))))
        found.setdefault(_kind(query), []).append(query)
    ordered = sorted(found.values(), key=len, reverse=True)
    return [(queries[0], len(queries) / _STEPS) for queries in ordered]


def _kind(query: Query) -> Hashable:
    blocks = [(b.term,) if isinstance(b, IndicatorBlock) else b.terms for b in query.blocks]
    terms = tuple(
        tuple((t.at, t.divisor is None, t.needs_rows, t.per_layer, t.gamma > 0) for t in terms)
        for terms in blocks
    )
    return len(query.points), terms


def _others(config: Config, side: Worker) -> Mapping[str, Worker]:
    """The worker with settings that may be faster on a GPU; they do not help on a CPU."""
    if side.device.type == "cpu":
        return {}
    room = f"memory-budget={2 * config.memory_budget}"
    others = {room: replace(side, memory=2 * side.memory)}
    if config.precision == "float32" and isinstance(side.work, OneGradient):
        lower: tuple[Precision, ...] = ("tf32", "bf16")
        for precision in lower:
            others[f"precision={precision}"] = replace(side, work=OneGradient(precision))
    return others


def why_by_rows(task: Task) -> str:
    """Why gradients are formed: too many parameters have no layer rule, or the trial failed."""
    named = dict(task.module.named_parameters())
    trained = {id(named[name]) for name in task.layout.names}
    unknown = [
        f"{name or 'the model itself'} ({type(layer).__name__})"
        for name, layer in task.module.named_modules()
        if any(id(parameter) in trained for parameter in layer.parameters(recurse=False))
        and (rule_of(type(layer)) is None or "forward" in vars(layer))
    ]
    if clipper_of(task).layers or not unknown:
        return "a trial found that examples mix, or that a weight is used outside its layer"
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    return f"fedpriv.clipping.ghost.layers has no rule for {', '.join(unknown[:3])}{more}"


def _alternated(sides: Sequence[Callable[[], Tensor]], times: int = 9) -> list[float]:
    """Median seconds of each side, measured alternately; the first turn is not counted."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(times + 1):
        for own, side in zip(seconds, sides, strict=True):
            started = time.perf_counter()
            float(side().sum())  # also waits for the device
            own.append(time.perf_counter() - started)
    return [statistics.median(own[1:]) for own in seconds]
