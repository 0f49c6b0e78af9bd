"""DP-AGD: full-batch gradient descent that reduces its noise when no step along the noisy gradient helps.

Source: Lee & Kifer 2018 ("Concentrated differentially private gradient descent with adaptive per-iteration
privacy budget"), algorithms 1 to 3; a baseline of Wang et al. 2023, Table 2. Vectors are (d,), sums are over
all units, noise stds are of the sum.

| paper | here |
|---|---|
| rho, of (epsilon, delta) by zCDP | ``Filter(Budget(epsilon, delta, "zcdp")).limit`` |
| C_grad, C_obj | ``clip_norm``, ``clip_loss``: each unit's loss is clipped to [0, C_obj] |
| rho_ng, rho_nmax | ``gradient_share`` rho at the start, ``choice_share`` rho throughout |
| gamma, the increase of rho_ng | ``increase`` |
| Phi, the candidate step sizes, alpha_max | ``candidates`` sizes, evenly spaced in [0, alpha_max] |
| tau, eta: every tau steps alpha_max = (1 + eta) max of the last tau steps | ``refresh``, ``widen`` |
| NoisyMax(-Omega, C_obj, sqrt(2 rho_nmax)) | ``release.choose_least``, a ``noisy-max`` event |
| GradAvg(rho_old, rho_H, g, g~, C_grad) | :func:`_sharpened` |

A Gaussian release with rho has the multiplier z = (2 rho)^(-1/2), and so has the noisy-max selection. Adding
a unit raises all objective values by at most C_obj, so Laplace noise of scale z C_obj makes the selection
(1/z, 0)-DP, which costs (1/z)^2 / 2 = rho. Under replace-one both sensitivities double
(``accounting.relations``).

If the selection is "no step", the gradient is released again with rho_H - rho_old, and the two answers are
averaged with weights rho. The mean has the noise of one release with rho_H. Noise and number of the releases
depend on earlier answers, so ordinary composition does not apply: a zCDP filter enforces the budget, and
methods without a filter are refused. If the filter does not afford a release, the run ends with the last
theta.

Not from the paper: the initial values of both shares (1/60 each), and that a NaN loss counts as C_obj.

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
from collections.abc import Callable, Sequence
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

_BATCH = 1000  # examples whose losses are computed at once


@dataclass(frozen=True)
class DpAgd:
    """The settings of DP-AGD. All of them are public.

    Attributes:
        clip_norm: C_grad > 0, the clip norm of each unit's gradient.
        clip_loss: C_obj > 0, at which each unit's loss is clipped.
        gradient_share: rho_ng at the start, as a share of the budget's rho, in (0, 1).
        choice_share: rho_nmax, as a share of the budget's rho, in (0, 1).
        increase: gamma > 0.
        candidates: the size of Phi, at least 2; the first candidate is 0.
        largest_step: the initial alpha_max, > 0; steps are along a vector of norm 1.
        refresh: tau >= 1.
        widen: eta >= 0.
        most_steps: the largest number of steps, if the budget does not end the run before.
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
class Descent:
    """The result of a run. It depends only on released values.

    Attributes:
        params: theta (d,).
        steps: the chosen step sizes; none is 0.
        rho: rho_ng at the end.
        releases: the number of charged events.
        stopped: "budget" or "steps".
    """

    params: Tensor
    steps: tuple[float, ...]
    rho: float
    releases: int
    stopped: str


@dataclass
class _Curator:
    """The party with the data. It answers with noise, and charges each answer before it reads the data."""

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
        """The event that costs rho in the filter, under this relation."""
        z = self.relation.moves / math.sqrt(2 * rho)
        return Event(z, Sampling.NONE, self.relation, mechanism=mechanism)

    def pay(self, event: Event) -> int | None:
        """Charges a release and returns its number, or None if the budget does not afford it."""
        if not self.budget_gate.affords([event]):
            return None
        self.key.once("release", self.releases)
        self.budget_gate.charge([event])
        self.releases += 1
        return self.releases - 1

    def gradient(self, params: Tensor, rho: float, step: int) -> Tensor | None:
        """The noisy sum (d,) of clipped gradients, or None. The exact sum is cached for repeated releases."""
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

    def best(self, points: Sequence[Tensor], rho: float, public: Tensor | None = None) -> int | None:
        """The index of the point with the smallest noisy objective, or None if it is not affordable.

        ``public`` (points,) is added to the objective of each point.
        """
        event = self.event(rho, "noisy-max")
        index = self.pay(event)
        if index is None:
            return None
        bound = self.settings.clip_loss
        values = torch.stack([objective(self.task, point, self.x, self.y, bound) for point in points])
        values = values if public is None else values + public.double()
        return release.choose_least(values, bound, event.noise_multiplier, self.key, index)


@torch.no_grad()
def objective(task: Task, params: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """The sum over units of their losses clipped to [0, bound], float64 (). A NaN loss counts as bound."""
    total = torch.zeros((), dtype=torch.float64, device=params.device)

    def loss(x: Tensor, y: Tensor) -> Tensor:  # of one example, so that the model cannot mix examples
        return task.losses(params, x[None], y[None])[0]

    for part, labels in zip(torch.split(x, _BATCH), torch.split(y, _BATCH), strict=True):
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
    penalty: Callable[[Tensor], Tensor] | None = None,
) -> Descent:
    """Runs DP-AGD over all units until the budget or the steps end.

    Args:
        settings: the public settings.
        task: model and loss; the privacy unit is an example.
        x, y: all training examples (n, ...), private.
        params: theta_0 (d,).
        budget_gate: an unused zCDP filter, with a ledger if charges must be stored.
        key: from OS entropy; or from a seed, and then the run is reproducible and not private.
        relation: the neighbouring relation.
        penalty: a public function of theta (d,) that is added to the SUM of losses, such as N R(theta) with a
            regulariser R and a public N. It is outside the clips and changes no sensitivity: it moves the
            sums of neighbouring data sets alike.

    Raises ArgumentError if the filter does not use zCDP.
    """
    validation.choice("accounting", budget_gate.budget.method, ("zcdp",), "DP-AGD needs a zCDP filter")
    validation.choice("relation", relation, RELATIONS)
    curator = _Curator(task, x, y, settings, budget_gate, Relation(relation), key)
    rho, largest = settings.gradient_share * budget_gate.limit, settings.largest_step
    steps: list[float] = []
    while len(steps) < settings.most_steps:
        sizes = [largest * k / (settings.candidates - 1) for k in range(settings.candidates)]
        found, rho = _step(curator, params, sizes, rho, len(steps), penalty)
        if found is None:
            return Descent(params, tuple(steps), rho, curator.releases, "budget")
        params, size = found
        steps.append(size)
        if len(steps) % settings.refresh == 0:
            largest = (1 + settings.widen) * max(steps[-settings.refresh :])
    return Descent(params, tuple(steps), rho, curator.releases, "steps")


def _step(
    curator: _Curator,
    params: Tensor,
    sizes: Sequence[float],
    rho: float,
    step: int,
    penalty: Callable[[Tensor], Tensor] | None = None,
) -> tuple[tuple[Tensor, float] | None, float]:
    """((the next theta, its step size) or None if the budget ended, rho_ng)."""
    noisy = curator.gradient(params, rho, step)
    slope = torch.func.grad(penalty)(params) if penalty else torch.zeros_like(params)
    while noisy is not None:
        direction = (noisy + slope) / torch.linalg.vector_norm(noisy + slope)
        points = [params - size * direction for size in sizes]
        public = torch.stack([penalty(point) for point in points]) if penalty else None
        chosen = curator.best(points, curator.settings.choice_share * curator.budget_gate.limit, public)
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
    """GradAvg: the weighted mean of answers with rho and ``raised`` - rho, which is an answer with
    ``raised``.
    """
    return (rho * noisy + (raised - rho) * more) / raised
