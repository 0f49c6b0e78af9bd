"""Canaries in place of a run's units, and the adversary who guesses which of them are present.

A canary is an example with a gradient of the maximal norm in its own coordinate, so canaries do not
interfere. :func:`nodes_of` makes a run's nodes with them. :class:`Watched` wraps the run's optimizer and
shows all answers to the adversary and the auditor of :mod:`fedpriv.auditing.auditor`.
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

LARGEST = 1e5  # the largest clip norm at which the canaries' gradients are certainly clipped
SUSPECTED = (1.0, 0.5, 0.25, 0.125)  # the adversaries' assumed noise, as factors on the claimed noise
_AMPLITUDE, _FREQUENCY = 1e3, 1e3  # of the loss: gradients up to 1e6 that change sign within steps of 1e-3
_MAX_LOG_RATIO = 300.0  # log likelihood ratios above it are not changed by the sampling rate
_NO_UNITS = np.zeros(0, np.int64)


def nodes_of(plan: Plan, units: Canaries) -> Worker:
    """The run's worker with canaries as units."""
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
    """A model with one parameter per canary."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.table = nn.Embedding(canaries, 1)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.table(x)
        return values[:, 0, 0]


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss that is steep almost everywhere and quickly changes direction.

    A gradient at one point, a difference of gradients at two points, and local steps all have to be clipped.
    """
    return (2 * y - 1) * (_AMPLITUDE * torch.sin(_FREQUENCY * outputs))


@dataclass(frozen=True)
class Canaries:
    """The population of canaries; canary i has coordinate i.

    Attributes:
        there: whether each canary is present, bool (m,).
        replaced: whether an absent canary is replaced by one with the opposite gradient (replace-one).
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
    """The run's optimizer and engine, observed: the adversary sees every answer, the auditor every cohort.

    Attributes:
        plan: the run's public plan.
        side, units: the worker and the canaries, with which each canary's contribution is computed.
        scores: log likelihood ratios of each canary's presence given all answers, by adversary: (k, m).
        residuals: the auditor's tests of noise and cohorts.
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
        """See :class:`PrivateOptimizer`. The answer is observed first."""
        self._observe(self._query, answer)
        return self._inner.update(state, answer)

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`. The request's cohort is recorded."""
        self._ask = request
        return self.side.gather(request)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

    def _observe(self, query: Query, answer: NoisyAnswer) -> None:
        """Updates the adversaries' scores and the auditor's tests with one answer."""
        mechanism = self.plan.mechanism
        sampler = mechanism.sampler.resized(query.rate_factor)
        stds = query.noise_stds(mechanism.scale * query.relative_noise)
        totals = mechanism.placement.resized(query.rate_factor).total_stds(stds)
        sums = [part.double().cpu().numpy() * sampler.expected_size for part in answer]
        rate = min(1.0, sampler.expected_size / sampler.population)
        exact = self.side.answer(replace(self._ask, party_stds=None)).sums
        left = [(total - own.numpy()) / std for total, own, std in zip(sums, exact, totals, strict=True)]
        cohort = np.concatenate([shard.ids for shard in self._ask.shards] or [_NO_UNITS])
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
        """Each canary's contribution to each block if it is in the cohort, present or absent.

        Every canary has its own coordinate, so one sum contains the contributions of all.
        """
        everyone = replace(self.side, view=replace(self.units, there=np.full(self.plan.units, there)))
        shard = Shard(0, np.arange(self.plan.units), parties=0)
        sums = everyone.answer(SumRequest(query, 0, (shard,))).sums
        return [total.double().numpy() for total in sums]


def _mixed(log: Floats, rate: float) -> Floats:
    """log(1 - q + q e^log), the log likelihood ratio if the cohort is unknown."""
    if rate == 1:
        return log
    mixed: Floats = np.where(
        log < _MAX_LOG_RATIO, np.log1p(rate * np.expm1(np.minimum(log, _MAX_LOG_RATIO))), log
    )
    return mixed
