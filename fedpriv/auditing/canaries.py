"""Canaries in place of a run's units, whose contributions the audit knows in closed form.

A canary is a client or example whose gradient is far larger than the clip norm. It touches two parameters
that no other canary touches, one in each layer of a small model. A client has one, two or three examples.

>>> canaries = Canaries(np.array([True, False]), replaced=True, clients=True)
>>> batch = canaries.batch(np.array([0, 1]))
>>> batch.owner.tolist(), batch.y[:, 0].tolist()
([0, 1, 1], [0.0, -2.0, -3.0])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpriv.auditing import claims
from fedpriv.auditing.audited_units import Floats, log_ratios
from fedpriv.auditing.views import View
from fedpriv.config.builders import choose_device, make_work
from fedpriv.config.plan import Plan
from fedpriv.data import Batch, Indices
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.query import Block, Query, SumBlock, Term
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

LARGEST = 1e5  # the largest clip norm at which the canaries' gradients are certainly clipped
LAYERS = 2
_AMPLITUDE, _FREQUENCY = 1e3, 1e3  # of the loss: gradients up to 1e6 that change sign within steps of 1e-3
_SECOND = 0.5  # the slope in the second layer's parameter; 1 in the first layer's
_MOST_EXAMPLES = 3  # of a client
_MESSAGE = 32  # the numbers of parameters in each layer where each client's message is seen by itself
_FEW = (7, 5)  # the numbers of shared parameters in each layer


class _Tables(nn.Module):
    """A model of two layers with one parameter per canary each."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.first = nn.Embedding(canaries, 1)
        self.second = nn.Embedding(canaries, 1)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.first(x[:, 0])[:, 0] + _SECOND * self.second(x[:, 1])[:, 0]
        return values


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    """A steep loss; ``y`` (n, 2) holds an example's signed weight less 1, and whether its loss is linear.

    The others quickly change direction: a gradient at one point and a difference of gradients at two points
    both have to be clipped. Those that are linear push the model in one direction, whatever the model.
    """
    more, straight = y.unbind(-1)
    inner = _FREQUENCY * outputs
    return (1 + more) * (_AMPLITUDE * torch.where(straight > 0, inner, torch.sin(inner)))


@dataclass(frozen=True)
class Canaries:
    """The population of canaries; canary i has parameter i of each layer.

    Attributes:
        there: whether each canary is present, bool (m,).
        replaced: whether an absent canary is replaced by one with the opposite gradient (replace-one).
        clients: whether canaries are clients with several examples, not single examples.
        linear: whether all losses are linear, as for local steps, and not only every other canary's.
        period: canary i has parameter i modulo this number, as where silos train apart, or where each message
            is seen by itself; 0: m.
        shared: whether canaries share a few parameters of each layer, in different ways. The closed form is
            not for such canaries.
    """

    there: NDArray[np.bool_]
    replaced: bool
    clients: bool = False
    linear: bool = False
    period: int = 0
    shared: bool = False

    @property
    def parameters(self) -> int:
        """The number of parameters of a layer."""
        return self.period or len(self.there)

    def examples(self, ids: Indices) -> Indices:
        """The number of examples of each of these canaries."""
        return 1 + ids % _MOST_EXAMPLES if self.clients else np.ones_like(ids)

    def straight(self, ids: Indices) -> NDArray[np.bool_]:
        """Whether each of these canaries has a linear loss."""
        return np.full(len(ids), True) if self.linear else ids % 2 == 1

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """See :class:`fedpriv.federated.worker.Units`."""
        positions = np.arange(len(client_ids))
        if not self.replaced:
            positions = positions[self.there[client_ids]]
        counts = self.examples(client_ids[positions])
        owner = np.repeat(positions, counts)
        ids = client_ids[owner]
        place = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        weight = np.where(self.there[ids], 1.0, -1.0) * (1 + place)
        y = np.stack([weight - 1, self.straight(ids)], axis=1).astype(np.float32)
        places = [ids % (few if self.shared else self.parameters) for few in _FEW]
        x = np.stack([np.minimum(own, self.parameters - 1) for own in places], axis=1)
        inputs, labels = (torch.from_numpy(part).to(device) for part in (x, y))
        return Batch(inputs, labels, torch.from_numpy(owner))

    def contributions(self, query: Query, ids: Indices, sign: int = 1) -> list[Floats]:
        """What each present canary of ``ids`` adds to each block: (LAYERS, k), or (k,) for an indicator.

        With ``sign`` -1 it is what the canary with the opposite gradient adds, which replaces an absent one.
        By an offset canaries add a little to all parameters. Here it counts in their own, and in norms.
        """
        gradients, places = self._signed(query, ids, sign), ids % self.parameters

        def added(block: Block) -> Floats:
            if isinstance(block, SumBlock):
                reached = [Reach.of(term, gradients, places) for term in block.terms if term.weight]
                return np.asarray(np.sum([one.factors * one.own for one in reached], axis=0))
            inside = Reach.of(block.term, gradients, places).norms <= block.threshold
            return inside.astype(np.float64) - 0.5

        return [added(block) for block in query.blocks]

    def _signed(self, query: Query, ids: Indices, sign: int) -> list[Floats]:
        return [sign * self._gradients(point, ids) for point in query.points]

    def _elsewhere(self, block: SumBlock, query: Query, ids: Indices, sign: int) -> Floats:
        """What canaries add by offsets to all parameters but their own: (LAYERS, parameters)."""
        whole, places = np.zeros((LAYERS, self.parameters)), ids % self.parameters
        for term in block.terms:
            if term.offset is None or not term.weight:
                continue
            reach = Reach.of(term, self._signed(query, ids, sign), places)
            factors = np.broadcast_to(reach.factors, reach.own.shape)
            whole += factors.sum(1, keepdims=True) * reach.rest
            for row, own, rest in zip(whole, factors, reach.rest, strict=True):
                np.subtract.at(row, places, own * rest[places])
        return whole

    def shaped(self, values: Floats) -> Floats:
        """With a row for each layer."""
        return values.reshape(LAYERS, -1) if values.ndim else values

    def expected(
        self, query: Query, release: int, units: Indices, cohort: Indices, rate: float
    ) -> list[Floats]:
        """See :class:`AuditedUnits`. Nothing, since no other canary adds to a canary's parameters."""
        return [np.zeros(()) for _ in query.blocks]

    def ratios(
        self,
        query: Query,
        release: int,
        ids: Indices,
        sums: Sequence[Floats],
        stds: Sequence[float],
        rate: float,
        others: Indices,
        factors: Sequence[float],
    ) -> Iterator[tuple[int, Floats]]:
        """See :class:`AuditedUnits`. No other canary adds to a canary's parameters, but by an offset. That is
        far below the noise, since gradients are so long.
        """
        places = ids % self.parameters
        own = [total[:, places] if total.ndim else total for total in sums]
        for sign in (1, -1) if self.replaced else (1,):
            logs = log_ratios(query, own, self.contributions(query, ids, sign), stds)
            yield sign, np.array([logs / factor**2 for factor in factors])

    def moves(self, query: Query, ids: Indices, change: Floats) -> Floats:
        """See :class:`AuditedUnits`."""
        pairs = zip(self.contributions(query, ids), query.blocks, strict=True)
        own = next(part for part, block in pairs if isinstance(block, SumBlock))
        return np.asarray(-(self.shaped(change)[:, ids % self.parameters] * own).sum(0))

    def in_steps(self) -> Canaries:
        """Canaries that share parameters, so that a fault can let one of them change what another adds."""
        return replace(self, shared=True)

    def probed(self, ids: Indices, most: int) -> Indices:
        """Present canaries with different numbers of examples and losses."""
        ids = ids if self.replaced else ids[self.there[ids]]
        _, first = np.unique(-10 * self.examples(ids) - self.straight(ids), return_index=True)
        return np.asarray(ids[first[:most]])

    def flipped(self, unit: int) -> Canaries:
        """See :class:`AuditedUnits`."""
        there = self.there.copy()
        there[unit] = not there[unit]
        return replace(self, there=there)

    def _gradients(self, point: Tensor, ids: Indices) -> Floats:
        """The gradient of each present canary at the point, in its parameters (LAYERS, k)."""
        first, second = point.detach().cpu().float().numpy().reshape(LAYERS, -1)[:, ids % self.parameters]
        inner = np.float32(_FREQUENCY) * (first + np.float32(_SECOND) * second)
        slope = np.where(self.straight(ids), 1.0, np.cos(inner.astype(np.float64)))
        weight = (1 + self.examples(ids)) / 2  # the mean of 1, 2, ...
        return np.asarray(weight * _AMPLITUDE * _FREQUENCY * slope * np.array([[1.0], [_SECOND]]))

    def total(self, query: Query, release: int, ids: Indices) -> list[Floats]:
        """The exact sums over the canaries ``ids``: (LAYERS, parameters), or () for an indicator."""
        there = self.there[ids]
        sums = self._total(query, ids[there], 1)
        if not self.replaced:
            return sums
        return [one + other for one, other in zip(sums, self._total(query, ids[~there], -1), strict=True)]

    def _total(self, query: Query, ids: Indices, sign: int) -> list[Floats]:
        """The exact sums over canaries that all are present, or are all replaced."""
        sums = list[Floats]()
        for block, added in zip(query.blocks, self.contributions(query, ids, sign), strict=True):
            if not isinstance(block, SumBlock):
                sums.append(np.asarray(added.sum()))
                continue
            whole = self._elsewhere(block, query, ids, sign)
            for row, values in zip(whole, added, strict=True):
                np.add.at(row, ids % self.parameters, values)
            sums.append(whole)
        return sums


@dataclass(frozen=True)
class Reach:
    """A term's vectors A of some canaries. They differ in each canary's own parameters alone.

    Attributes:
        own: A in each canary's own parameters, (LAYERS, k).
        rest: A in any other parameters, (LAYERS, parameters): what an offset leaves there.
        norms: of A, (k,), or of its part of each layer, (LAYERS, k).
        factors: what A is multiplied by in the sum: the weight, and the clip's factor; of the same shape.
    """

    own: Floats
    rest: Floats
    norms: Floats
    factors: Floats

    @classmethod
    def of(cls, term: Term, gradients: Sequence[Floats], places: Indices) -> Reach:
        """Those of canaries with these gradients (LAYERS, k) at the query's points, in these parameters."""
        own = np.asarray(sum(a * g for a, g in zip(term.at, gradients, strict=False)))
        rest = np.zeros((LAYERS, 1))
        if term.offset is not None:
            rest = -_layered(term.offset)
            own = own + rest[:, places]
        if term.divisor is not None:
            divisor = _layered(term.divisor)
            own, rest = own / divisor[:, places], rest / divisor
        if term.squared:
            own, rest = own**2, rest**2
        squares = own**2
        if term.offset is not None:
            squares = squares + (rest**2).sum(1, keepdims=True) - rest[:, places] ** 2
        norms = np.sqrt(squares if term.per_layer else squares.sum(0))
        bound = term.clip_norm / LAYERS**0.5 if term.per_layer else term.clip_norm
        if term.gamma:
            return cls(own, rest, norms, term.weight * bound / (norms + term.gamma))
        return cls(own, rest, norms, term.weight * np.minimum(1.0, bound / np.maximum(norms, 1e-300)))


def _layered(vector: Tensor) -> Floats:
    """A vector (d,) of the model, with a row for each layer."""
    return vector.detach().cpu().double().numpy().reshape(LAYERS, -1)


def nodes_of(plan: Plan, units: Canaries, key: Key) -> Worker:
    """The run's worker with canaries as units."""
    config = plan.config
    return Worker(
        task=Task(_Tables(units.parameters), _loss),
        work=make_work(config),
        view=units,
        key=key,
        device=choose_device(config.device),
        memory=config.memory_budget * 2**20,
        exact=config.exact_noise,
    )


def canaries_of(plan: Plan, there: NDArray[np.bool_], view: View = View.MODELS) -> Canaries:
    """The canaries in place of the plan's units, for an adversary with this view."""
    config, clients = plan.config, not plan.config.privacy_unit.in_silos
    messages = view is View.SERVER
    # A server knows who sends a message, so that a client can only be replaced.
    replaced = claims.replaces(config) or (messages and clients)
    # The last model shows the sum of all releases, in which only what does not change its direction adds up.
    linear = config.trains_locally or view is View.LAST_MODEL
    period = config.examples_per_client if config.by_silo or (messages and not clients) else 0
    return Canaries(there, replaced, clients, linear, _MESSAGE if messages and clients else period)
