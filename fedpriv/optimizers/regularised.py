"""Regularisers outside the clip, around any optimizer.

The objective is the mean loss plus a regulariser R that touches no data, so its gradient is public: it is
added to the noisy answer, neither clipped nor noised, where inside the clip it would shrink what each unit
says and be paid for. A unit's term is A_k = (sum_j a_kj g(theta_j)) / D_k, and the gradient of R takes the
same way: to the answer of each sum block

    sum_k  w_k (sum_j a_kj grad R(theta_j)) / D_k

is added, which for units that are not clipped is what adding R to each of their losses would give, in
expectation over the cohort and exactly where everyone takes part. So it is right for DP2's preconditioned
gradients and for DP-SRM's differences (whose estimate then carries grad R(theta_t) exactly). Released bits
are of the data alone and get nothing. R is of all trained parameters, biases included.

The update must be one of gradients, at their full size. With several local steps a client's vector is none;
PDA-DPMD scales its answers by alpha_t, and R with them: the configuration refuses both.

>>> import torch
>>> from fedpriv.optimizers.first_order import dp_sgd
>>> method = Regularised(dp_sgd(learning_rate=0.5, clip_norm=1.0), L2(0.1))
>>> state = method.init(torch.tensor([1.0, 2.0]))
>>> method.update(state, (torch.tensor([2.0, 0.0]),)).params
tensor([-0.0500,  1.9000])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedpriv._internal import validation
from fedpriv._internal.settings import Needs, Settings, setting
from fedpriv.mechanism.query import NoisyAnswer, SumBlock
from fedpriv.optimizers.base import OptimizerWrapper, State, Wrapper, register_wrapper

if TYPE_CHECKING:
    from torch import Tensor


class RegulariserSettings(Settings):
    """The settings of regularisers."""

    regulariser: Literal["none", "l2", "nonconvex"] = setting(
        "none", "added to the loss outside the clip; nonconvex: sum of theta^2 / (1 + theta^2)"
    )
    regularisation: float = setting(
        0.001,
        "lambda, the weight of the regulariser",
        gt=0,
        needs=Needs("a regulariser", lambda run: run["regulariser"] != "none"),
    )


@dataclass(frozen=True)
class Regulariser(ABC):
    """A public function R of the parameters.

    Attributes:
        strength: lambda > 0.
    """

    strength: float

    def __post_init__(self) -> None:
        validation.finite_positive("regularisation", self.strength)

    @abstractmethod
    def gradient(self, point: Tensor) -> Tensor:
        """grad R at the parameters (d,)."""


class L2(Regulariser):
    """R = strength / 2 norm(theta)^2."""

    def gradient(self, point: Tensor) -> Tensor:
        """lambda theta."""
        return self.strength * point


class Nonconvex(Regulariser):
    """R = strength sum_j theta_j^2 / (1 + theta_j^2) (Wang et al. 2023, section 7.1, lambda = 0.001)."""

    def gradient(self, point: Tensor) -> Tensor:
        """2 lambda theta_j / (1 + theta_j^2)^2."""
        return 2 * self.strength * point / (1 + point.square()).square()


@dataclass(frozen=True)
class Regularised(OptimizerWrapper):
    """An optimizer of the mean loss plus R; what is asked of the data does not change.

    Attributes:
        inner: the optimizer, as it is for the mean loss alone.
        regulariser: R.
    """

    regulariser: Regulariser

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The inner update on the answer with R's part added."""
        query = self.inner.query(state)
        # What an inner rule subtracts before the clip, it has subtracted. Squares of g + grad R do not follow
        # from squares of g, so they stay those of the mean loss.
        slopes = [self.regulariser.gradient(point) for point in query.points]
        added = []
        for block, value in zip(query.blocks, answer, strict=True):
            if isinstance(block, SumBlock):
                for term in block.terms:
                    if not term.squared:
                        value = value + term.weight * replace(term, offset=None).combine(slopes)
            added.append(value)
        return self.inner.update(state, tuple(added))


register_wrapper(
    Wrapper(
        key="regulariser",
        summary="`l2` or `nonconvex`: added to the loss, outside the clip",
        paper="Wang et al. 2023, section 7.1",
    )
)
