"""Runs that draw the same cohorts and the same normals, made together, with gradients in closed form.

Each run is `fedpriv train` with its plan's configuration and `noise-draws=fast`. There, the methods of a seed
draw the same cohorts and the same normals. Here their steps are made side by side: a cohort is read once and
its noise is drawn once, which costs less than one run after another. They end at the same parameters up to
rounding (tests/simulations/test_side_by_side.py).

The optimizers are the package's own: only the clipped sums are written anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from batches import Cell, Record, append, make_plan, records_of
from torch import Tensor

from fedpriv._internal.allocator import tune_allocator
from fedpriv.config.builders import initial_params, make_source, make_task, make_test
from fedpriv.config.plan import Plan
from fedpriv.data import Source
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.query import Term
from fedpriv.mechanism.release import SERVER
from fedpriv.models import build
from fedpriv.models.layers import FACTORS
from fedpriv.report.adversaries import all_methods
from fedpriv.rng import Key


class Model(Protocol):
    """Clipped sums of the gradients of one model at several parameter vectors."""

    def sums(self, points: Sequence[Tensor], ids: Tensor, terms: Sequence[Term]) -> list[Tensor]:
        """For each point (d,) and its term the sum (d,) over the examples ``ids`` (n,) of what is clipped."""
        ...


class Softmax:
    """Softmax regression, whose gradients are (p - e_y) (x, 1)^T.

    Args:
        x, y: all training examples (N, ...) and labels (N,).
        classes: the number of labels.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        self._x = torch.cat([x.flatten(1), torch.ones(len(x), 1)], dim=1)
        self._y, self._classes, self._norms = y, classes, self._x.norm(dim=1)

    @classmethod
    def of(cls, source: Source, examples: int) -> Softmax:
        """The model `logistic` on a data set."""
        return cls(*source.batch(np.arange(examples)), source.classes)

    def sums(self, points: Sequence[Tensor], ids: Tensor, terms: Sequence[Term]) -> list[Tensor]:
        """See :class:`Model`. Terms have no divisor."""
        x, features = self._x[ids], self._x.shape[1] - 1
        split = features * self._classes
        weights = [torch.cat([p[:split].view(-1, features), p[split:, None]], dim=1) for p in points]
        residuals = torch.softmax((x @ torch.cat(weights).T).view(len(ids), len(points), -1), dim=2)
        residuals[torch.arange(len(ids)), :, self._y[ids]] -= 1
        norms = residuals.norm(dim=2) * self._norms[ids, None]
        factors = [term.factors(own) for term, own in zip(terms, norms.unbind(1), strict=True)]
        residuals *= torch.stack(factors, dim=1)[:, :, None]
        totals = (residuals.flatten(1).T @ x).view(len(points), -1, features + 1)
        return [torch.cat([t[:, :-1].reshape(-1), t[:, -1]]) for t in totals]


class Perceptron:
    """A network of linear layers without biases and ReLU between them, and softmax.

    Args:
        x, y: all training examples (N, features) and labels (N,).
        shapes: of the layers' weights, from the input on.
    """

    def __init__(self, x: Tensor, y: Tensor, shapes: Sequence[tuple[int, int]]) -> None:
        self._x, self._y, self._shapes = x, y, shapes

    @classmethod
    def of(cls, source: Source, examples: int) -> Perceptron:
        """The model `mlp-no-bias-3` on a data set of rows."""
        shapes = [
            tuple(weight.shape)
            for weight in build("mlp-no-bias-3", source.shape, source.classes).parameters()
        ]
        return cls(*source.batch(np.arange(examples)), shapes)

    def sums(self, points: Sequence[Tensor], ids: Tensor, terms: Sequence[Term]) -> list[Tensor]:
        """See :class:`Model`. Terms have no divisor."""
        x, y = self._x[ids], self._y[ids]
        return [self._sum(point, x, y, term) for point, term in zip(points, terms, strict=True)]

    def _sum(self, point: Tensor, x: Tensor, y: Tensor, term: Term) -> Tensor:
        parts = point.split([rows * columns for rows, columns in self._shapes])
        weights = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        inputs = [x]
        for weight in weights[:-1]:
            inputs.append((inputs[-1] @ weight.T).relu_())
        error = torch.softmax(inputs[-1] @ weights[-1].T, dim=1)
        error[torch.arange(len(y)), y] -= 1
        errors = [error]  # of the layers' outputs, from the last one on
        for weight, outputs in zip(weights[:0:-1], inputs[:0:-1], strict=True):
            errors.append((errors[-1] @ weight) * (outputs > 0))
        pairs = list(zip(inputs, reversed(errors), strict=True))
        squares = sum(given.square().sum(1) * error.square().sum(1) for given, error in pairs)
        factors = term.factors(torch.as_tensor(squares).sqrt())[:, None]
        return torch.cat([((error * factors).T @ given).flatten() for given, error in pairs])


class Factorisation:
    """Matrix factorisation, whose gradients of (p_u q_i - r)^2 / 2 are (p_u q_i - r) (q_i, p_u).

    Args:
        x: all ratings' users and items (N, 2).
        y: the ratings (N,).
        users: the number of users, whose rows are the first of the parameters.
    """

    def __init__(self, x: Tensor, y: Tensor, users: int) -> None:
        self._rows, self._y = x.long() + torch.tensor([0, users]), y

    @classmethod
    def of(cls, source: Source, examples: int) -> Factorisation:
        """The model `factors` on a data set."""
        return cls(*source.batch(np.arange(examples)), source.tokens[0])

    def sums(self, points: Sequence[Tensor], ids: Tensor, terms: Sequence[Term]) -> list[Tensor]:
        """See :class:`Model`."""
        rows, y = self._rows[ids], self._y[ids]
        return [self._sum(point, rows, y, term) for point, term in zip(points, terms, strict=True)]

    @staticmethod
    def _sum(point: Tensor, rows: Tensor, y: Tensor, term: Term) -> Tensor:
        factors = point.view(-1, FACTORS)[rows]  # (n, 2, FACTORS)
        gradients = (factors.prod(1).sum(1) - y)[:, None, None] * factors.flip(1)
        if term.divisor is not None:
            gradients /= term.divisor.view(-1, FACTORS)[rows]
        gradients *= term.factors(gradients.flatten(1).norm(dim=1))[:, None, None]
        total = torch.zeros_like(point).view(-1, FACTORS)
        return total.index_add_(0, rows.flatten(), gradients.flatten(0, 1)).flatten()


Maker = Callable[[Source, int], Model]


def side_by_side(plans: Sequence[Plan], seed: int, make: Maker) -> list[dict[str, float]]:
    """The test scores of what the plans' runs hand out, all run with this seed.

    The plans differ in their optimizers and noise alone. Each block of a query is one term at one point.
    """
    tune_allocator()
    torch.set_num_threads(1)
    config, sampler = plans[0].config, plans[0].mechanism.sampler
    source = make_source(config)
    task, key = make_task(config, source), Key.from_seed(seed)
    model, start = make(source, config.units), initial_params(task, key)
    optimizers = [plan.mechanism.optimizer for plan in plans]
    states = [optimizer.init(start) for optimizer in optimizers]
    for t in range(config.rounds):
        ids = torch.from_numpy(sampler.draw(key.generator("cohort", t)))
        queries = [optimizer.query(state) for optimizer, state in zip(optimizers, states, strict=True)]
        blocks = [(query.points[0], block.terms[0]) for query in queries for block in query.blocks]
        ahead = Normals(key, (SERVER, t), [start] * max(len(query.blocks) for query in queries))
        sums = iter(model.sums([point for point, _ in blocks], ids, [term for _, term in blocks]))
        normals = ahead.take()
        for i, query in enumerate(queries):
            stds = query.noise_stds(plans[i].mechanism.scale * query.relative_noise)
            drawn = zip(stds, normals, strict=False)
            answer = tuple(next(sums).add(noise, alpha=std) / sampler.expected_size for std, noise in drawn)
            states[i] = optimizers[i].update(states[i], answer)
    tests = [make_test(plan.config, source, torch.device("cpu")) for plan in plans]
    return [task.evaluate(state.output, *test) for state, test in zip(states, tests, strict=True)]


def run_together(path: Path, cells: Sequence[Cell], seed: int, make: Maker) -> None:
    """Run the cells that have no record with this seed yet, and append a record for each.

    The records are as :func:`batches.run` makes them, but that ``seconds`` are those of all of them.
    """
    todo = [cell for cell in cells if not records_of(path, cell, [seed])]
    print(f"seed {seed}: {len(todo)} runs to do, {len(cells) - len(todo)} done before", flush=True)
    if not todo:
        return
    started = time.perf_counter()
    plans = [make_plan(cell, seed) for cell in todo]
    scores = side_by_side(plans, seed, make)
    append(path, [_record(*one, seed, started) for one in zip(todo, plans, scores, strict=True)])


def _record(cell: Cell, plan: Plan, scores: dict[str, float], seed: int, started: float) -> Record:
    events = plan.mechanism.planned_events()
    return {
        "cell": asdict(cell),
        "seed": seed,
        **scores,
        "delta": plan.config.delta,
        "epsilon": all_methods(events, plan.config.delta, plan.budget.method),
        "noise multiplier": {"first": events[0].noise_multiplier, "last": events[-1].noise_multiplier},
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }
