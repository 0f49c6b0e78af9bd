"""The attack on the last digits of released floats: could the noise alone have given them?

Where all other units add 0, a released number is the noise alone, or the noise and what the target adds.
Fast noise is a float32 number times public factors, which leaves gaps: a number in a gap shows that the
target was there. Exact noise is a whole number of public steps, and so are sums: there are no gaps.

The adversary sees the noisy answers; a client's own message under local noise; and the model, whose update it
inverts where the update moves each parameter by its own answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedpriv import data
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated import loop
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism import release as release_module
from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.grid import on_grid as summed
from fedpriv.mechanism.placement import Placement
from fedpriv.mechanism.query import Block, NoisyAnswer, Query, SumBlock
from fedpriv.node import silo
from fedpriv.node.factory import make_worker
from fedpriv.node.silo import SiloWorker, TrainRequest, make_silo_worker
from fedpriv.optimizers.base import State
from fedpriv.rng import Key
from helpers.toys import CountingGate

DIMENSION = 7850  # of the softmax regression, on images of 28 x 28
UNITS, OWN = 100, 160  # the last OWN features are those of the target alone
_NEAR = 8  # floats on either side of one that is found by division or halving
_LARGEST = 2.0**10  # of an answer, when an update is inverted


def _own_coordinates() -> Tensor:
    """The weights of the target's own features; the layout has the weights first."""
    own = np.zeros((10, 784), bool)
    own[:, -OWN:] = True
    return torch.from_numpy(np.flatnonzero(own))


COORDINATES = _own_coordinates()


@dataclass(frozen=True)
class Images:
    """Units with one image (1, 28, 28) each."""

    x: Tensor
    y: Tensor

    @classmethod
    @functools.cache
    def of(cls, with_target: bool) -> Images:
        """100 images; the first is the target's, or blank."""
        x = torch.rand(UNITS, 784, generator=torch.Generator().manual_seed(1))
        x[1:, -OWN:] = 0.0
        if not with_target:
            x[0] = 0.0
        return cls(x.view(-1, 1, 28, 28), torch.arange(UNITS) % 10)

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        return data.Batch(self.x[client_ids], self.y[client_ids], torch.arange(len(client_ids)))


# Which numbers the noise alone can give.


def on_grid(values: Tensor, step: float, size: float) -> Tensor:
    """Whether whole multiples of a step, divided by the cohort's expected size, can give these floats."""
    whole = (values.double() * size / step).round()
    each = [((whole + more) * step / size).to(values.dtype) == values for more in (-1, 0, 1)]
    return torch.stack(each).any(0)


def drawable(values: Tensor, std: float, noisy: Callable[[Tensor], Tensor]) -> Tensor:
    """Whether ``noisy`` of float32 numbers, which is about ``std`` times them, can give these floats."""
    return torch.stack([noisy(draw) == values for draw in near((values.double() / std).float())]).any(0)


def ranks(values: Tensor) -> Tensor:
    """The places of float32 numbers among all of them, counted from 0."""
    whole = values.contiguous().view(torch.int32)
    return torch.where(whole < 0, -(whole & 0x7FFFFFFF), whole)


def at_ranks(places: Tensor) -> Tensor:
    """The inverse of :func:`ranks`."""
    return places.abs().int().view(torch.float32).copysign(places.float())


def near(values: Tensor) -> Iterator[Tensor]:
    """The float32 numbers around these, ascending."""
    for more in range(-_NEAR, _NEAR + 1):
        yield at_ranks(ranks(values) + more)


@dataclass(frozen=True)
class Seen:
    """One noisy vector that the adversary sees, and what is public about its noise.

    Attributes:
        values: the vector (d,).
        block: the query's block.
        std: of the noise of one party, or of the server.
        parties: the number of parties whose noise was drawn at once; 0: the server's noise.
        size: the public number that divided it.
        exact: whether the noise is exact.
    """

    values: Tensor
    block: Block
    std: float
    parties: int
    size: float
    exact: bool

    def possible(self, values: Tensor) -> Tensor:
        """Whether the noise alone can give these numbers."""
        if self.exact:
            return on_grid(values, noise_step(self.block, self.std), self.size)
        factor = self.std * max(1, self.parties) ** 0.5

        def noisy(draw: Tensor) -> Tensor:
            if not self.parties:
                return (torch.zeros_like(draw).double().add(draw, alpha=factor) / self.size).to(values.dtype)
            message = summed(torch.zeros_like(draw).add(draw, alpha=factor), self.block, self.std)
            return (message / self.size).to(values.dtype)

        return drawable(values, factor / self.size, noisy)

    def shows_the_target(self) -> bool:
        """The guess: whether a number of the target's coordinates is impossible without it."""
        if not isinstance(self.block, SumBlock):
            return False
        return not bool(self.possible(self.values[COORDINATES]).all())


@dataclass(frozen=True)
class Release:
    """A release of a run: the noise multiplier of its event, and what is seen of it."""

    noise_multiplier: float
    seen: tuple[Seen, ...]

    def as_exact(self) -> Release:
        """The same numbers, as if their noise were exact."""
        return replace(self, seen=tuple(replace(one, exact=True) for one in self.seen))


@dataclass(frozen=True)
class Attacked:
    """A run: its releases, its model after them, and what it began with."""

    plan: Plan
    releases: tuple[Release, ...]
    params: Tensor

    def by_answers(self) -> bool:
        """The guess of who sees the noisy answers."""
        return any(seen.shows_the_target() for release in self.releases for seen in release.seen)

    def by_model(self) -> bool:
        """The guess of who sees the model alone, and inverts the public update."""
        [release] = self.releases
        [seen] = release.seen
        optimizer = self.plan.mechanism.optimizer
        before = optimizer.init(torch.zeros(DIMENSION))
        return not bool(inverted(lambda y: optimizer.update(before, (y,)), self.params, seen.possible).all())

    @property
    def allowed(self) -> float:
        """The largest chance of a right guess that the accounted noise allows.

        The target's vector and the blank image's are at most 2 S apart, under noise of std z S.
        """
        return float(stats.norm.cdf(sum(release.noise_multiplier**-2 for release in self.releases) ** 0.5))


def inverted(
    update: Callable[[Tensor], State], params: Tensor, possible: Callable[[Tensor], Tensor]
) -> Tensor:
    """Whether a possible answer leads to the target's parameters, for each of them.

    Each parameter falls with its own answer. So halving an interval finds the answer, up to some floats,
    which are all tried.
    """
    largest = ranks(torch.full((DIMENSION,), _LARGEST)).long()
    low, high = -largest, largest
    while (high - low).max() > 1:
        middle = (low + high) // 2
        above = update(at_ranks(middle)).params > params
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    answers = list(near(at_ranks(high)))
    same = torch.stack([(update(answer).params == params)[COORDINATES] for answer in answers])
    assert same.any(0).all(), "the update is not inverted"
    return (same & torch.stack([possible(answer[COORDINATES]) for answer in answers])).any(0)


# The runs under attack.


@dataclass(frozen=True)
class TargetApart:
    """An engine that computes the target's message, or its silo's, by itself, and keeps it."""

    inner: Worker
    silos: bool
    messages: list[PartialSum]

    def gather(self, request: SumRequest) -> PartialSum:
        (first, *others) = self._split(request.shards)
        message, rest = (
            self.inner.gather(replace(request, shards=each)) for each in ((first,), tuple(others))
        )
        self.messages.append(PartialSum(tuple(part.clone() for part in message.sums), message.parties))
        sums = tuple(a + b for a, b in zip(message.sums, rest.sums, strict=True))
        return PartialSum(sums, message.parties + rest.parties)

    def _split(self, shards: tuple[Shard, ...]) -> list[Shard]:
        if self.silos:
            return list(shards)
        [shard] = shards
        return [replace(shard, ids=shard.ids[:1], parties=1), Shard(1, shard.ids[1:], shard.parties - 1)]

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Target:
    """A configuration under attack, with everything in place that does not depend on the target."""

    plan: Plan
    worker: Worker | SiloWorker

    @classmethod
    def of(cls, config: Config) -> Target:
        plan = make_plan(config)
        make = make_silo_worker if plan.by_silo else make_worker
        target = cls(plan, make(plan.config.table()))
        target.run(False)  # a worker sums its first batch in float64, with fast noise, too
        return target

    def run(self, with_target: bool) -> Attacked:
        """One run of the whole plan, or of the silo of the target."""
        zeros, view = torch.zeros(DIMENSION), Images.of(with_target)
        with recorded(self.plan) as (releases, messages):
            if isinstance(self.worker, SiloWorker):
                node = replace(self.worker, side=replace(self.worker.side, view=view), memories={})
                request = TrainRequest(zeros, 0, silo.round_events(self.plan, 0), (0,))
                params = node.train(request)[0].delta.float()  # the model before it is 0
            else:
                side, key = replace(self.worker, view=view), Key.fresh()
                mechanism, silos = self.plan.mechanism, self.plan.config.privacy_unit.in_silos
                engine = TargetApart(side, silos, messages) if mechanism.placement.server_view else side
                cohorts = self.plan.cohorts(key)
                params = loop.run(mechanism, zeros, engine, CountingGate(), key, cohorts).state.params
        return Attacked(self.plan, tuple(releases), params)


@contextmanager
def recorded(plan: Plan) -> Iterator[tuple[list[Release], list[PartialSum]]]:
    """Keeps what is seen of each release: the target's message where an engine adds it, else the answer."""
    right, releases, messages = release_module.release, list[Release](), list[PartialSum]()

    def kept(
        sums: Any, replies: int, query: Query, z: float, placement: Placement, size: float, *rest: Any
    ) -> NoisyAnswer | None:
        answer = right(sums, replies, query, z, placement, size, *rest)
        assert answer is not None
        owed = query.noise_stds(z)
        stds = placement.party_stds(owed)
        values, parties, divisor = answer, replies if stds else 0, size
        if messages:
            values, parties, divisor = messages.pop().sums, 1, 1.0
        each = zip(values, query.blocks, stds or owed, strict=True)
        exact = plan.config.exact_noise
        seen = (Seen(value.clone(), block, std, parties, divisor, exact) for value, block, std in each)
        releases.append(Release(z, tuple(seen)))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_module, "release", kept)
        yield releases, messages


def right_guesses(
    config: Config, trials: int, guesses: Sequence[Callable[[Attacked], bool]]
) -> tuple[list[int], float]:
    """How often each guess about a fair coin is right, and the chance that the accounted noise allows."""
    target, right, allowed = Target.of(config), [0] * len(guesses), 0.0
    for present in np.random.default_rng(3).random(trials) < 0.5:
        attacked = target.run(bool(present))
        right = [before + (guess(attacked) == present) for before, guess in zip(right, guesses, strict=True)]
        allowed = max(allowed, attacked.allowed)
    return right, allowed
