"""Canaries in place of a run's units, and the adversary who guesses which of them are there.

A canary is an example whose gradient is as large as can be, in a coordinate of its own, so that it meets no
other; :func:`nodes_of` makes a run's nodes of them. :class:`Watched` is the run's optimizer, and passes all
answers by the adversary and the auditor of :mod:`fedpriv.auditing.auditor`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpriv.auditing.noise_tests import Residuals
from fedpriv.config.builders import choose_device, make_work
from fedpriv.config.plan import Plan
from fedpriv.data import Batch, Indices
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock
from fedpriv.optimizers.base import PlannedRelease, PrivateOptimizer, State
from fedpriv.tasks.task import Task

Floats = NDArray[np.float64]

LARGEST = 1e5  # clip norm that the canaries' gradients are surely clipped at
SUSPECTED = (1.0, 0.5, 0.25, 0.125)  # factors on the noise that is said, which adversaries go by
_HEIGHT, _SPEED = 1e3, 1e3  # of the loss: gradients of up to 1e6, which turn over within steps of 1e-3
_MOST_LOG = 300.0  # of a likelihood ratio: beyond it a rate's logarithm is nothing
_NOBODY = np.zeros(0, np.int64)


def nodes_of(plan: Plan, units: Canaries) -> Worker:
    """The run's nodes, whose units are canaries."""
    config = plan.config
    return Worker(
        task=Task(_Table(plan.units), _loss),
        work=make_work(config),
        view=units,
        key=plan.key(),
        device=choose_device(config.device),
        memory=config.memory_budget * 2**20,
    )


class _Table(nn.Module):
    """One number for each canary."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.table = nn.Embedding(canaries, 1)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.table(x)
        return values[:, 0, 0]


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Steep wherever it is, and as steep in another direction a little further on: what a gradient at one
    point, a difference between two points and several local steps have to clip."""
    return (2 * y - 1) * (_HEIGHT * torch.sin(_SPEED * outputs))


@dataclass(frozen=True)
class Canaries:
    """Unit numbers -> canaries, each of its own coordinate.

    Attributes:
        there: whether each canary is, bool (m,).
        replaced: whether who is not there is another canary, of the opposite gradient, and not nobody.
    """

    there: NDArray[np.bool_]
    replaced: bool

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """See :class:`fedpriv.federated.worker.Units`."""
        positions = np.arange(len(client_ids))
        if not self.replaced:
            positions = positions[self.there[client_ids]]
        ids = client_ids[positions]
        x, y, owner = ids[:, None], self.there[ids].astype(np.float32), positions
        return Batch(*(torch.from_numpy(part).to(device) for part in (x, y, owner)))


@dataclass
class Watched:
    """The run's optimizer and its nodes: the adversary sees every answer, and the auditor every cohort.

    Attributes:
        plan: the run's, which is public.
        side, units: the nodes and the canaries, by which the adversary computes what one of them would add.
        scores: log-likelihood ratios of having been there, given all answers, by each adversary: (k, m).
        residuals: what the auditor finds of noise and cohorts.
    """

    plan: Plan
    side: Worker
    units: Canaries
    scores: Floats = field(init=False)
    residuals: Residuals = field(init=False)
    _query: Query = field(init=False)
    _ask: SumRequest = field(init=False)

    def __post_init__(self) -> None:
        self._inner: PrivateOptimizer = self.plan.mechanism.optimizer
        self.scores = np.zeros((len(SUSPECTED), self.plan.units))
        self.residuals = Residuals(self.plan.units)

    def init(self, params: Tensor) -> State:
        """See :class:`PrivateOptimizer`."""
        return self._inner.init(params)

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """See :class:`PrivateOptimizer`."""
        return self._inner.planned(rounds)

    def query(self, state: State) -> Query:
        """See :class:`PrivateOptimizer`."""
        self._query = self._inner.query(state)
        return self._query

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """See :class:`PrivateOptimizer`; the answer is looked at first."""
        self._look(self._query, answer)
        return self._inner.update(state, answer)

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`; whom it asks is noted."""
        self._ask = request
        return self.side.gather(request)

    def close(self) -> None:
        """Nothing to release."""

    def _look(self, query: Query, answer: NoisyAnswer) -> None:
        mechanism = self.plan.mechanism
        sampler = mechanism.sampler.resized(query.rate_factor)
        stds = query.noise_stds(mechanism.scale * query.relative_noise)
        totals = mechanism.placement.resized(query.rate_factor).total_stds(stds)
        sums = [part.double().cpu().numpy() * sampler.expected_size for part in answer]
        rate = min(1.0, sampler.expected_size / sampler.population)
        exact = self.side.answer(replace(self._ask, party_stds=None)).sums
        left = [(total - own.numpy()) / std for total, own, std in zip(sums, exact, totals, strict=True)]
        cohort = np.concatenate([shard.ids for shard in self._ask.shards] or [_NOBODY])
        self.residuals.add(left, cohort, rate)
        for sign, there in ((1, True), (-1, False)):
            adds = self._contributions(query, there)
            logs = [
                (2 * total * add - add**2) / (2 * std**2)
                for total, add, std, block in zip(sums, adds, totals, query.blocks, strict=True)
                if isinstance(block, SumBlock)
            ]
            for score, factor in zip(self.scores, SUSPECTED, strict=True):
                score += sign * _mixed(np.sum(logs, axis=0) / factor**2, rate)

    def _contributions(self, query: Query, there: bool) -> list[Floats]:
        """What each canary adds to each block if it is in the cohort, there or not: in its own coordinate, so
        that all of them are one sum."""
        everyone = replace(self.side, view=replace(self.units, there=np.full(self.plan.units, there)))
        shard = Shard(0, np.arange(self.plan.units), parties=0)
        sums = everyone.answer(SumRequest(query, 0, (shard,))).sums
        return [total.double().numpy() for total in sums]


def _mixed(log: Floats, rate: float) -> Floats:
    """log(1 - q + q e^log): nobody knows who was in the cohort."""
    if rate == 1:
        return log
    mixed: Floats = np.where(log < _MOST_LOG, np.log1p(rate * np.expm1(np.minimum(log, _MOST_LOG))), log)
    return mixed
