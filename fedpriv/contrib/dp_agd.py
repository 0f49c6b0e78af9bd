"""DP-AGD: full-batch descent whose noise shrinks when no step along the noisy gradient helps.

Source: Lee & Kifer 2018 ("Concentrated differentially private gradient descent with adaptive per-iteration
privacy budget"), algorithms 1 to 3; a baseline of Wang et al. 2023, Table 2. Vectors are (d,), sums are over
all units, noise stds are of the sum.

| paper | here |
|---|---|
| rho, of (epsilon, delta) by zCDP | ``Filter(Budget(epsilon, delta, "zcdp")).limit`` |
| C_grad, C_obj | ``clip_norm``, ``clip_loss``: each unit's loss is cut to [0, C_obj] |
| rho_ng, rho_nmax | ``gradient_share`` rho at the start, ``choice_share`` rho throughout |
| gamma, the increase of rho_ng | ``increase`` |
| Phi, the candidate step sizes, alpha_max | ``candidates`` of them evenly over [0, alpha_max], 0 the first |
| tau, eta: every tau steps alpha_max = (1 + eta) max of the last tau steps | ``refresh``, ``widen`` |
| NoisyMax(-Omega, C_obj, sqrt(2 rho_nmax)) | ``release.choose_least``, a ``noisy-max`` event |
| GradAvg(rho_old, rho_H, g, g~, C_grad) | :func:`_sharpened` |

A Gaussian release of rho has multiplier z = (2 rho)^(-1/2), and so has the choice: a loss more raises all
objective values alike and by C_obj at most, so Laplace noise of scale z C_obj makes the choice (1/z, 0)-
private, hence (1/z)^2 / 2 = rho. Under replace-one both double, by ``accounting.relations``.

Where the choice is "no step", the gradient is asked again with rho_H - rho_old and the two answers are
averaged by their rho: the mean has the noise of one release of rho_H. How much is asked, and how often,
follows from earlier answers, so adding up events is not enough: a zCDP filter holds the budget (and the
methods without a filter refuse). Where it does not afford a release, the run ends with the last theta.

Choices of ours: both shares at the start (1/60 each), and that a loss that is not a number counts C_obj.

>>> from fedpriv.accounting import Budget
>>> import numpy as np
>>> task = Task(torch.nn.Linear(2, 2))
>>> x = torch.tensor([[1.0, 2.0], [-1.0, -2.0]]).repeat(200, 1)
>>> y = torch.tensor([0, 1]).repeat(200)
>>> settings = DpAgd(clip_norm=1.0, clip_loss=2.0, most_steps=5)
>>> budget_gate = Filter(Budget(4.0, 1e-5, "zcdp"))
>>> end = descend(settings, task, x, y, torch.zeros(6), budget_gate, Key.from_seed(1))
>>> end.stopped, len(end.steps), end.releases >= 10, budget_gate.used < 1
('steps', 5, True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.accounting import Event, Filter
from fedpriv.accounting.events import RELATIONS, Relation, Sampling
from fedpriv.clipping.dropout import example_seeds
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.mechanism import release
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

_CHUNK = 1000  # examples whose losses are computed at once


@dataclass(frozen=True)
class DpAgd:
    """The settings of DP-AGD; all of them public.

    Attributes:
        clip_norm: C_grad > 0, of each unit's gradient.
        clip_loss: C_obj > 0, the largest loss of a unit that counts.
        gradient_share: rho_ng at the start, as a share of the budget's rho, in (0, 1).
        choice_share: rho_nmax, as a share of the budget's rho, in (0, 1).
        increase: gamma > 0.
        candidates: the size of Phi, at least 2; the first of them is 0.
        largest_step: alpha_max at the start, > 0; steps are along a vector of norm 1.
        refresh: tau >= 1.
        widen: eta >= 0.
        most_steps: where the run ends, if the budget does not end it before.
    """

    clip_norm: float
    clip_loss: float
    gradient_share: float = 1 / 60
    choice_share: float = 1 / 60
    increase: float = 0.1
    candidates: int = 20
    largest_step: float = 2.0
    refresh: int = 10
    widen: float = 0.1
    most_steps: int = 10_000

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_loss", "increase", "largest_step"):
            validation.finite_positive(name.replace("_", "-"), getattr(self, name))
        for name in ("gradient_share", "choice_share"):
            validation.between(name.replace("_", "-"), getattr(self, name), 0, 1)
        validation.integer("candidates", self.candidates, minimum=2)
        validation.integer("refresh", self.refresh, minimum=1)
        validation.integer("most-steps", self.most_steps, minimum=1)
        validation.non_negative("widen", self.widen)


@dataclass(frozen=True)
class Outcome:
    """How a run ended; all of it follows from what was released.

    Attributes:
        params: theta (d,).
        steps: the step sizes that were chosen, none of them 0.
        rho: rho_ng at the end.
        releases: how many events were charged.
        stopped: "budget" or "steps".
    """

    params: Tensor
    steps: tuple[float, ...]
    rho: float
    releases: int
    stopped: str


@dataclass
class _Curator:
    """Who holds the units: answers with noise, each answer paid for before the data is touched."""

    task: Task
    x: Tensor
    y: Tensor
    settings: DpAgd
    budget_gate: Filter
    relation: Relation
    key: Key
    releases: int = 0
    sums: dict[int, Tensor] = field(default_factory=dict)

    def event(self, rho: float, mechanism: str = "gaussian") -> Event:
        """The event of rho as the filter adds it up, whatever the relation."""
        z = self.relation.moves / math.sqrt(2 * rho)
        return Event(z, Sampling.NONE, self.relation, mechanism=mechanism)

    def pay(self, event: Event) -> int | None:
        """The number of the release that is now paid for, or None where the budget does not afford it."""
        if not self.budget_gate.affords([event]):
            return None
        self.key.once("release", self.releases)
        self.budget_gate.charge([event])
        self.releases += 1
        return self.releases - 1

    def gradient(self, params: Tensor, rho: float, step: int) -> Tensor | None:
        """The noisy sum (d,) of clipped gradients, or None; step's exact sum is kept for more of it."""
        event = self.event(rho)
        index = self.pay(event)
        if index is None:
            return None
        query = Query((params,), (SumBlock((Term(self.settings.clip_norm),)),))
        if step not in self.sums:
            seeds = example_seeds(self.key.integer("draws", step), torch.arange(len(self.x)))
            sums = clipped_sum(OneGradient(), self.task, query, self.x, self.y, seeds=seeds)
            self.sums = {step: sums[0]}
        answer = release.release(
            (self.sums[step],), 1, query, event.noise_multiplier, Central(), 1.0, self.key, index
        )
        return None if answer is None else answer[0]

    def best(self, points: Sequence[Tensor], rho: float) -> int | None:
        """Which point has the least noisy objective, or None."""
        event = self.event(rho, "noisy-max")
        index = self.pay(event)
        if index is None:
            return None
        bound = self.settings.clip_loss
        values = torch.stack([objective(self.task, point, self.x, self.y, bound) for point in points])
        return release.choose_least(values, bound, event.noise_multiplier, self.key, index)


@torch.no_grad()
def objective(task: Task, params: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """The sum over units of their losses cut to [0, bound], float64 (); what is not a number counts bound."""
    total = torch.zeros((), dtype=torch.float64, device=params.device)

    def loss(x: Tensor, y: Tensor) -> Tensor:  # of one alone, whatever the model does with several
        return task.losses(params, x[None], y[None])[0]

    for part, labels in zip(torch.split(x, _CHUNK), torch.split(y, _CHUNK), strict=True):
        losses = torch.func.vmap(loss)(part, labels).double() if len(part) else total.new_zeros(0)
        total += losses.nan_to_num(nan=bound, posinf=bound).clamp(0.0, bound).sum()
    return total


def descend(
    settings: DpAgd,
    task: Task,
    x: Tensor,
    y: Tensor,
    params: Tensor,
    budget_gate: Filter,
    key: Key,
    relation: str = "add-remove",
) -> Outcome:
    """Run DP-AGD over all units until the budget or the steps end.

    Args:
        settings: all public numbers.
        task: model and loss; the unit is an example.
        x, y: all training examples (n, ...), private.
        params: theta_0 (d,).
        books: an unused zCDP filter, with a ledger where charges are to last.
        key: OS entropy, or a seed for a run that is reproducible and not private.
        relation: of neighbours.

    Raises ArgumentError where the filter is not of zCDP.
    """
    validation.choice("accounting", budget_gate.budget.method, ("zcdp",), "DP-AGD chooses by pure privacy")
    validation.choice("relation", relation, RELATIONS)
    curator = _Curator(task, x, y, settings, budget_gate, Relation(relation), key)
    rho, largest = settings.gradient_share * budget_gate.limit, settings.largest_step
    steps: list[float] = []
    while len(steps) < settings.most_steps:
        sizes = [largest * k / (settings.candidates - 1) for k in range(settings.candidates)]
        found, rho = _step(curator, params, sizes, rho, len(steps))
        if found is None:
            return Outcome(params, tuple(steps), rho, curator.releases, "budget")
        params, size = found
        steps.append(size)
        if len(steps) % settings.refresh == 0:
            largest = (1 + settings.widen) * max(steps[-settings.refresh :])
    return Outcome(params, tuple(steps), rho, curator.releases, "steps")


def _step(
    curator: _Curator, params: Tensor, sizes: Sequence[float], rho: float, step: int
) -> tuple[tuple[Tensor, float] | None, float]:
    """((the next theta, its step size), rho_ng); None where the budget ended first."""
    noisy = curator.gradient(params, rho, step)
    while noisy is not None:
        direction = noisy / torch.linalg.vector_norm(noisy)
        points = [params - size * direction for size in sizes]
        chosen = curator.best(points, curator.settings.choice_share * curator.budget_gate.limit)
        if chosen is None:
            break
        if chosen:
            return (points[chosen], sizes[chosen]), rho
        raised = (1 + curator.settings.increase) * rho
        more = curator.gradient(params, raised - rho, step)
        noisy = None if more is None else _sharpened(noisy, rho, more, raised)
        rho = raised
    return None, rho


def _sharpened(noisy: Tensor, rho: float, more: Tensor, raised: float) -> Tensor:
    """GradAvg: answers with rho and with ``raised`` - rho, averaged by them: an answer with ``raised``."""
    return (rho * noisy + (raised - rho) * more) / raised
