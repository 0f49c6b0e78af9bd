"""Reshuffled epochs under zCDP: noise that decays by epoch, or when a public accuracy stalls.

Source: Yu et al. 2019 ("Differentially private model publishing for deep learning"), sections 4 and 5; the
baseline "zCDP-SGD" of Du et al. 2021, Table 1. Each epoch is a fresh random permutation of the examples, cut
into batches; each step is DP-SGD's on one batch. Symbols: sigma_e is z_e here, std over the clip norm.

Privacy, from first principles. Neighbours replace one example, so N, the batches' sizes and the law of the
permutation are the same for both. Given the permutation, the replaced example is in exactly one batch of
the epoch; the answers before it have the same law, the one on its batch is a Gaussian mechanism whose sum
moves by 2 C at most, and those after it are functions of earlier answers and of data that is the same. So
an epoch as a whole costs what ONE release of z_e does (parallel composition; a mixture over permutations
costs no more), and is one event ``sampling="none"``, ``relation="replace-one"``. Epochs compose. Nothing is
amplified: an event of Poisson sampling would not be what is done (Chua et al. 2024), and no sampler of
``fedpriv.mechanism.sampling`` reshuffles, so that the two cannot be paired by mistake. Accounting as Yu does
for add/remove neighbours needs the sizes to be secret; ours does not, and costs the doubled sensitivity,
which their z hides.

The noise may follow any schedule, or what came out before: :class:`Stalling` is their validation-based
decay, on public test accuracy of the noisy model. That noise is chosen from answers, so a zCDP filter holds
the budget in either case; schedules lose nothing by it.

>>> schedule = planned_multipliers(TimeDecay(0.05), epochs=10, budget=Budget(2.0, 1e-5, "zcdp"))
>>> [round(z, 2) for z in schedule[::3]]
[19.51, 16.97, 15.01, 13.46]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting import Budget, Event, Filter, calibrate, scaled
from fedpriv.clipping.dropout import example_seeds
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.mechanism import release
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import Query
from fedpriv.optimizers import PrivateOptimizer, State
from fedpriv.optimizers.schedules import Schedule, TimeDecay
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

__all__ = ["Multipliers", "Outcome", "Stalling", "TimeDecay", "event", "planned_multipliers", "train"]


class Multipliers(Protocol):
    """z by epoch: public numbers, or a function of noisy answers alone."""

    def __call__(self, epoch: int, params: Tensor) -> float | None:
        """z of the epoch that starts at the noisy ``params`` (d,), or None to end the run."""


@dataclass
class Stalling:
    """z falls by a factor when the public accuracy rises less than it should (Yu et al. 2019, section 5.2).

    Their rule: every ``period`` epochs, sigma becomes k sigma unless the validation accuracy has risen by
    ``least``. One object is for one run.

    Attributes:
        score: accuracy of parameters (d,) on PUBLIC data.
        start: z_0 > 0.
        factor: k in (0, 1).
        period: epochs between two looks.
        least: the rise that is enough.
        epochs: how many epochs at most.
    """

    score: Callable[[Tensor], float]
    start: float
    factor: float
    period: int
    least: float
    epochs: int

    def __post_init__(self) -> None:
        self._current = validation.finite_positive("noise-multiplier", self.start)
        validation.between("decay factor", self.factor, 0, 1)
        validation.integer("decay period", self.period, minimum=1)
        self._before = -math.inf

    def __call__(self, epoch: int, params: Tensor) -> float | None:
        """See :class:`Multipliers`."""
        if epoch >= self.epochs:
            return None
        if epoch % self.period == 0:
            now = self.score(params)
            if epoch and now - self._before < self.least:
                self._current *= self.factor
            self._before = now
        return self._current


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the last state, the epochs that were paid for, and why: "epochs" or "budget"."""

    state: State
    epochs: int
    stopped: str


def event(noise_multiplier: float, population: int | None = None) -> Event:
    """What one reshuffled epoch costs: one unsampled release under replace-one."""
    return Event(noise_multiplier, "none", "replace-one", population=population)


def planned_multipliers(decay: Schedule, epochs: int, budget: Budget) -> tuple[float, ...]:
    """z by epoch, in the ratios of ``decay``, such that all epochs together spend ``budget``.

    Raises ArgumentError or UnsupportedEvent as ``accounting.calibrate`` does.
    """
    shape = [event(decay(t)) for t in range(validation.integer("epochs", epochs, minimum=1))]
    scale = calibrate(shape, budget)
    return tuple(scaled(one, scale).noise_multiplier for one in shape)


def follow(multipliers: Sequence[float]) -> Multipliers:
    """The given numbers, one an epoch."""
    return lambda epoch, params: multipliers[epoch] if epoch < len(multipliers) else None


def train(
    optimizer: PrivateOptimizer,
    multipliers: Multipliers,
    task: Task,
    x: Tensor,
    y: Tensor,
    params: Tensor,
    batch: int,
    budget_gate: Filter,
    key: Key,
) -> Outcome:
    """Epochs of private steps, each epoch paid for before it begins.

    Args:
        optimizer: its steps are one release of r_t = 1 each, on the whole batch: DP-SGD's family with any
            clip norms.
        multipliers: z by epoch.
        task: model and loss; the unit is an example.
        x, y: all N training examples, private; N is public.
        params: theta_0 (d,).
        batch: b, the size of a batch; where it does not divide N the last one is smaller.
        books: an unused filter.
        key: OS entropy, or a seed for a run that is reproducible and not private.

    Raises ArgumentError for an optimizer whose query is not such a release, and for a batch above N.
    """
    size = len(x)
    if validation.integer("batch", batch, minimum=1) > size:
        raise validation.fail("batch", batch, f"be at most {size}, the public number of examples")
    state, epoch, index = optimizer.init(params), 0, 0
    _require_plain(optimizer, state)
    while (z := multipliers(epoch, state.params)) is not None:
        paid = event(validation.positive("noise-multiplier", z), size)
        if not budget_gate.affords([paid]):
            return Outcome(state, epoch, "budget")
        for release_number in range(index, index + -(-size // batch)):
            key.once("release", release_number)
        budget_gate.charge([paid])
        for rows in _batches(size, batch, key, epoch):
            state = _step(optimizer, state, task, x[rows], y[rows], z, min(batch, size), key, index)
            index += 1
        epoch += 1
    return Outcome(state, epoch, "epochs")


def _step(
    optimizer: PrivateOptimizer,
    state: State,
    task: Task,
    x: Tensor,
    y: Tensor,
    noise_multiplier: float,
    batch: int,
    key: Key,
    index: int,
) -> State:
    query = _require_plain(optimizer, state)
    seeds = example_seeds(key.integer("draws", index), torch.arange(len(x)))
    sums = clipped_sum(OneGradient(), task, query, x, y, seeds=seeds)
    central = Central()
    answer = release.release(sums, 1, query, noise_multiplier, central, batch, key, index)
    assert answer is not None  # the central placement always releases
    return optimizer.update(state, answer)


def _require_plain(optimizer: PrivateOptimizer, state: State) -> Query:
    query = optimizer.query(state)
    if (query.relative_noise, query.rate_factor, query.releases) != (1.0, 1.0, 1):
        allowed = "ask for one plain release a step under reshuffling"
        raise validation.fail("optimizer", type(optimizer).__name__, allowed)
    return query


def _batches(size: int, batch: int, key: Key, epoch: int) -> Iterator[Tensor]:
    """The epoch's permutation of 0..size-1, cut into batches: each index is in exactly one."""
    order = torch.from_numpy(key.generator("reshuffle", epoch).permutation(size))
    yield from torch.split(order, batch)
