"""The optimizer protocol: a state, a question about the data, and an update on the noisy answer.

A private optimizer does not know where it runs. It is three pure functions (``init``, ``query``,
``update``) and the public list of what it will ask (``planned``), from which a budget is calibrated
before any data is touched. ``update`` sees only noisy answers, so it is post-processing and free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from fedpriv._internal.registry import Registry
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term

if TYPE_CHECKING:
    from torch import Tensor

OUTPUT = "output"  # the slot of parameters that are handed out in place of the newest


@dataclass(frozen=True)
class State:
    """Everything an optimizer remembers; all of it follows from noisy answers.

    Attributes:
        params: the model's parameters, shape (d,).
        step: how many updates were made.
        slots: named tensors of the rule (momentum, second moments, an adaptive clip norm, ...).
    """

    params: Tensor
    step: int = 0
    slots: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def output(self) -> Tensor:
        """The parameters (d,) that a run hands out: slot OUTPUT where there is one, else params."""
        return self.slots.get(OUTPUT, self.params)

    def advanced(self, params: Tensor, slots: Mapping[str, Tensor]) -> State:
        """The state after one update."""
        return replace(self, params=params, step=self.step + 1, slots=dict(slots))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, as they are stored in safetensors files."""
        return {"params": self.params, **{f"slot/{k}": v for k, v in self.slots.items()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], step: int) -> State:
        """The state whose ``tensors()`` these are."""
        slots = {k.removeprefix("slot/"): v for k, v in tensors.items() if k.startswith("slot/")}
        return cls(params=tensors["params"], step=step, slots=slots)


@dataclass(frozen=True)
class PlannedRelease:
    """One release as it is known before the run: its r_t and its cohort's size factor."""

    relative_noise: float = 1.0
    rate_factor: float = 1.0


class PublicFunction(Protocol):
    """A function of public data alone, as the gradient of the loss on public examples is."""

    def __call__(self, params: Tensor, step: int, /) -> Tensor:
        """Its value (d,) at parameters (d,) in a step."""


class PublicGradients(PublicFunction, Protocol):
    """The gradient of the loss on public examples, and each example's."""

    def rows(self, params: Tensor, step: int, /) -> Tensor:
        """The gradients (n, d) of a step's public examples, whose mean is the value."""


class PrivateOptimizer(Protocol):
    """What every optimizer of this package is."""

    def init(self, params: Tensor) -> State:
        """The state before the first step, from parameters of shape (d,)."""

    def query(self, state: State) -> Query:
        """The question of this step. It depends on the state, hence on noisy answers only."""

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The state after the noisy answer to ``query(state)``."""

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """The releases of a run of this many rounds, in order; public and independent of any data."""


class BaseOptimizer:
    """The base class of an optimizer of your own: one clipped gradient a round, and one release for it.

    A subclass needs ``update`` alone: ``answer[0]`` is the noisy sum of clipped gradients over the expected
    cohort size, shape (d,). Methods must be pure functions: everything that an optimizer remembers is in its
    :class:`State`, in the slots where it is more than the parameters.

    Attributes:
        clip_norm: C, the largest norm of what one unit adds to the sum.

    >>> class Halving(BaseOptimizer):
    ...     def update(self, state, answer):
    ...         rate = 4.0 * 0.5 ** (state.step // 20)
    ...         return state.advanced(state.params - rate * answer[0], state.slots)
    >>> import torch
    >>> Halving().update(State(torch.zeros(2)), (torch.ones(2),)).params
    tensor([-4., -4.])
    """

    clip_norm: float = 1.0

    def init(self, params: Tensor) -> State:
        """The state before the first step, from parameters of shape (d,)."""
        return State(params)

    def query(self, state: State) -> Query:
        """The sum of the units' gradients at the parameters, each clipped to ``clip_norm``."""
        return Query((state.params,), (SumBlock((Term(clip_norm=self.clip_norm),)),))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The state after the noisy answer; a subclass says how."""
        raise NotImplementedError(f"{type(self).__name__} must define update(self, state, answer)")

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round."""
        return (PlannedRelease(),) * rounds


@dataclass(frozen=True)
class Wrapper:
    """What goes around any optimizer, for tables.

    Attributes:
        key: the setting that turns it on.
        summary: what it is, in a few words.
        paper: its source.
    """

    key: str
    summary: str
    paper: str


WRAPPERS = Registry[Wrapper]("wrapper")


def register_wrapper(wrapper: Wrapper) -> Wrapper:
    """Add a wrapper to WRAPPERS."""
    return WRAPPERS.add(wrapper.key, wrapper)


@dataclass(frozen=True)
class OptimizerWrapper:
    """An optimizer around another: as the inner one, but for what a subclass changes.

    Attributes:
        inner: the optimizer.
    """

    inner: PrivateOptimizer

    def init(self, params: Tensor) -> State:
        """The inner state."""
        return self.inner.init(params)

    def query(self, state: State) -> Query:
        """The inner query."""
        return self.inner.query(state)

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The inner update."""
        return self.inner.update(state, answer)

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """The inner releases."""
        return self.inner.planned(rounds)
