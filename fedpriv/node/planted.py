"""Canaries that an audit plants among a run's own units (setting ``planted-canaries``).

A canary is a unit whose data is one crafted example, in place of the unit's own data. The example follows
from the unit's number alone, so that every process of a run has the same one. Where inputs are numbers, it
has random signs in a small random window and zeros elsewhere, so that the gradients of two canaries are
nearly orthogonal. Their absolute value is large enough for gradients that are longer than the run's largest
clip norm. Where inputs are tokens, they are random. The target is random, too.

Canaries lie at even places and evenly among the units. The next unit is the canary's opposite, whose gradient
has about the other direction: it has another target, or the other signs, whichever moves a sum more. It is
always there, and takes the canary's place where neighbours replace a unit.

>>> canaries(4, units=24, span=6).tolist(), canaries(1, units=2, span=2).tolist()
([0, 6, 12, 18], [0])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv import data
from fedpriv.config.schema import Config
from fedpriv.data.features import FeatureSource
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.federated.worker import Units, Worker
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.rng import Key

Values = NDArray[Any]

_SEED = 1  # of the examples, which are public: the adversary of an audit knows them
_ENOUGH = 2.0  # a gradient's norm before it is clipped, as a multiple of the largest clip norm
_REACHED = 0.99  # of that norm, since sums are rounded
_FACTORS = 4.0 ** np.arange(8)  # sizes of inputs that are tried, as multiples of the public examples' size
_ENTRIES = 9  # places of a window: few enough for windows apart, which excite different parts of a model
_SOME = 5  # canaries whose gradients are measured at each size
_TYPICAL = 100  # public examples whose inputs are measured


def canaries(count: int, units: int, span: int) -> data.Indices:
    """The unit numbers (count,) of the canaries, ascending; each one's opposite is the next unit.

    Args:
        count: 1 to :func:`most_canaries`.
        units: the number of the run's units.
        span: the units of one silo, or all units: a canary and its opposite lie in the same range.
    """
    pairs = span // 2
    chosen = np.arange(count, dtype=np.int64) * most_canaries(units, span) // count
    return np.asarray(chosen // pairs * span + 2 * (chosen % pairs))


def most_canaries(units: int, span: int) -> int:
    """How many canaries have room among so many units: each one has an opposite."""
    return units // span * (span // 2)


def planted_ids(config: Config) -> data.Indices:
    """The unit numbers of a run's canaries, of which it has at least one."""
    return canaries(config.planted_canaries, config.units, span_of(config))


def span_of(config: Config) -> int:
    """The number of units within which a unit is replaced: those of a silo, or all."""
    return config.examples_per_client if config.privacy_unit.in_silos else config.units


def planted(worker: Worker, config: Config, source: data.Source, there: data.Indices | None = None) -> Worker:
    """The worker with ``config.planted_canaries`` canaries among its units, whose inputs have the smallest
    size that makes their gradients long enough to be clipped, or the longest ones.

    ``there`` is as in :class:`PlantedUnits`. It has no effect on the examples, which all nodes agree on.
    """
    if config.augmentation_copies and isinstance(source, FeatureSource):
        source = source.images
    ids = planted_ids(config)
    view = PlantedUnits(worker.view, ids, source, _typical_size(source))
    some, wanted = ids[:: -(-len(ids) // _SOME)], _ENOUGH * _largest_clip_norm(config)

    def added(view: PlantedUnits, ids: data.Indices) -> Tensor:
        return _alone(replace(worker, view=view, own=None), ids, wanted)

    views = [replace(view, size=float(view.size * factor)) for factor in _FACTORS]
    lengths = list[float]()
    for view in views:
        lengths.append(float(added(view, some).norm(dim=1).median()))
        if lengths[-1] >= _REACHED * wanted:
            break
    view = views[int(np.argmax(lengths))]
    kinds = (view, replace(view, mirrored=True))
    apart = [float((added(kind, some) - added(kind, some + 1)).norm(dim=1).median()) for kind in kinds]
    return replace(worker, view=replace(kinds[int(np.argmax(apart))], there=there))


def _typical_size(source: data.Source) -> float:
    """The entries of a window whose norm is that of the inputs of some public examples."""
    x = source.test().x[:_TYPICAL].double().flatten(1)
    size = float(x.square().sum(1).mean().sqrt()) / math.sqrt(math.prod(_window(source.shape)))
    return size if math.isfinite(size) and size > 0 else 1.0


def _window(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a window of about _ENTRIES places, in all channels, of inputs of this shape."""
    channels, places = (shape[:1], shape[1:]) if len(shape) > 1 else ((), shape)
    side = round(_ENTRIES ** (1 / max(1, len(places))))
    return (*channels, *(min(side, length) for length in places))


def _largest_clip_norm(config: Config) -> float:
    """The largest of the run's clip norms."""
    table = config.resolved().table()
    return max((float(table[key]) for key in config.method.clip_norms), default=1.0)


def _alone(worker: Worker, ids: data.Indices, clip_norm: float) -> Tensor:
    """What each of some units adds at the model's beginning, (k, d), with this clip norm."""
    start = worker.task.initial(Key.of(_SEED).generator("initial-params"))
    query = Query((start,), (SumBlock((Term(clip_norm),)),))
    requests = [SumRequest(query, 0, (Shard(0, ids[i : i + 1], parties=1),)) for i in range(len(ids))]
    return torch.stack([worker.answer(request).sums[0] for request in requests])


@dataclass(frozen=True)
class PlantedUnits:
    """A run's own units, of which canaries and their opposites take the place of some.

    Attributes:
        units: the run's own.
        canaries: the canaries' unit numbers (m,), ascending. Their opposites follow them.
        like: the data set, whose types and shapes examples have.
        size: the absolute value of a canary's inputs, and of its target if that is a value.
        mirrored: whether opposites have the other signs in place of another target.
        there: the units of which canaries and opposites may take the place; None: all. A node has those of
            its own file that an audit does not leave out.
    """

    units: Units
    canaries: data.Indices
    like: data.Source
    size: float
    mirrored: bool = False
    there: data.Indices | None = None

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """See :class:`fedpriv.federated.worker.Units`."""
        opposite = np.isin(client_ids - 1, self.canaries)
        crafted = opposite | np.isin(client_ids, self.canaries)
        own = np.flatnonzero(~crafted)
        at = np.flatnonzero(crafted if self.there is None else crafted & np.isin(client_ids, self.there))
        x, y, owner = self.units.batch(client_ids[own], device)
        owner = torch.from_numpy(own)[owner]
        if not len(at):
            return data.Batch(x, y, owner)
        made = [self._example(int(client_ids[i]) - opposite[i], bool(opposite[i])) for i in at]
        x, y = (
            torch.cat([part, torch.from_numpy(np.stack(more)).to(part)])
            for part, more in zip((x, y), zip(*made, strict=True), strict=True)
        )
        owner = torch.cat([owner, torch.from_numpy(at)])
        order = torch.argsort(owner, stable=True)
        return data.Batch(x[order.to(x.device)], y[order.to(y.device)], owner[order])

    def _example(self, canary: int, opposite: bool) -> tuple[Values, Values]:
        """(x, y) of a canary, or of its opposite."""
        generator, like = np.random.default_rng([_SEED, canary]), self.like
        x, other = self._inputs(generator), opposite and not self.mirrored
        if opposite and self.mirrored and not like.tokens:
            x = -x
        if like.target == "value":
            return x, np.asarray((-1 if other else 1) * self.size * generator.choice([-1.0, 1.0]))
        if like.target == "tags":
            tags = generator.integers(2, size=like.classes)
            return x, 1 - tags if other else tags
        return x, np.asarray((generator.integers(like.classes) + other) % like.classes)

    def _inputs(self, generator: np.random.Generator) -> Values:
        """The inputs of a canary."""
        like = self.like
        if len(like.tokens) == 1:
            return generator.integers(1, max(2, like.tokens[0]), like.shape)  # 0 is padding
        if like.tokens:
            return generator.integers(0, like.tokens)
        x, window = np.zeros(like.shape), _window(like.shape)
        first = [generator.integers(0, n - k + 1) for n, k in zip(like.shape, window, strict=True)]
        at = tuple(slice(i, i + k) for i, k in zip(first, window, strict=True))
        x[at] = self.size * generator.choice([-1.0, 1.0], window)
        return x
