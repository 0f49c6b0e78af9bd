"""Averaging around any optimizer: what is handed out is a moving average of the models, not the newest.

    average_t = d_t average_{t-1} + (1 - d_t) theta_t,   d_t = min(decay, (1 + t) / (10 + t))

As De et al. 2022 ("Unlocking high-accuracy differentially private image classification through scale") do:
private iterates wander with the noise, and their mean does so less. It is post-processing of models that were
released anyway, so it costs no privacy; the optimizer's own iterates, queries and noise stay as they are.

>>> import torch
>>> from fedpriv.optimizers.first_order import dp_sgd
>>> method = ExponentialMovingAverage(dp_sgd(learning_rate=1.0, clip_norm=1.0), decay=0.99)
>>> state = method.init(torch.zeros(1))
>>> for answer in (torch.tensor([-1.0]), torch.tensor([0.0])):
...     state = method.update(state, (answer,))
>>> state.params, state.output  # d_1 = 2/11, d_2 = 3/12
(tensor([1.]), tensor([0.9545]))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.settings import Settings, setting
from fedpriv.mechanism.query import NoisyAnswer, Query
from fedpriv.optimizers.base import OUTPUT, OptimizerWrapper, State, Wrapper, register_wrapper

if TYPE_CHECKING:
    from torch import Tensor


class AveragingSettings(Settings):
    """The settings of averaging."""

    averaging: float = setting(
        -1.0,
        "decay of the average of models that is handed out; 0: the newest is; -1: the optimizer's own",
        ge=-1,
        lt=1,
        filled=True,
    )


@dataclass(frozen=True)
class ExponentialMovingAverage(OptimizerWrapper):
    """An optimizer whose average is handed out (``State.output``).

    Attributes:
        inner: the optimizer; it must hand out its newest model itself.
        decay: in (0, 1): the average reaches back over about 1 / (1 - decay) releases.
    """

    decay: float

    def __post_init__(self) -> None:
        validation.between("averaging", self.decay, 0, 1)

    def init(self, params: Tensor) -> State:
        """The inner state, and theta_0 as the average.

        Raises ArgumentError where the inner optimizer hands out another model than the newest.
        """
        state = self.inner.init(params)
        if OUTPUT in state.slots:
            raise validation.fail("averaging", self.decay, "be 0 where another model is handed out")
        return self._with(state, params.clone())

    def query(self, state: State) -> Query:
        """The inner query."""
        return self.inner.query(self._own(state))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The inner update, and the average with its model."""
        after = self.inner.update(self._own(state), answer)
        decay = min(self.decay, (1 + after.step) / (10 + after.step))
        return self._with(after, state.output.lerp(after.params, 1 - decay))

    def _own(self, state: State) -> State:
        return replace(state, slots={name: slot for name, slot in state.slots.items() if name != OUTPUT})

    def _with(self, state: State, average: Tensor) -> State:
        return replace(state, slots={**state.slots, OUTPUT: average})


register_wrapper(
    Wrapper(
        key="averaging",
        summary="hands out a moving average of the models, at no cost of privacy",
        paper="De et al. 2022",
    )
)
