"""Noisy AdaGrad: gradients and their squares are released apart; the squares go to a public subspace.

Source: Kairouz et al. 2021, "(Nearly) Dimension Independent Private ERM with AdaGrad Rates via Publicly
Estimated Subspaces", in the diagonal form that Li et al. 2023 compare with (appendix C.6, figure 12). It is
not ``dp-adagrad``, which squares the PRIVATE gradient, asks once and needs no public data. Vectors are (d,):

| paper | here |
|---|---|
| w_t, alpha_t | ``State.params``, ``learning_rate(t)`` |
| g, clipped to C_1, with noise of its own | the first block, the private gradient ``answer[0]`` |
| the preconditioner of clean gradients, clipped, with noise of its own | the second block, ``answer[1]`` |
| G_t, its sum over the steps so far | slot ``second``, not projected |
| M_t, the mean over public x of grad f(x) grad f(x)^T | ``public`` gives the gradients (n, d) at w_t |
| V (d, k), the eigenvectors of its k largest eigenvalues (Zhou et al. 2021) | of ``public``'s SVD |
| D_t | sqrt(max(V V^T G_t, 0)) + ``epsilon`` |
| w_{t+1} = w_t - alpha_t D_t^-1 g | ``update`` |

Li et al. leave open what a unit adds to the preconditioner, and whether a step's squares or their sum is
projected. Here a unit adds the squares of its gradient's entries, clipped to C_2 by themselves. The norm of
the squares is at most the square of the norm, so that C_2 = C_1^2 clips no gradient within C_1. The sum is
projected, onto the subspace of the step.

Both sums are of ONE cohort, and ONE event of multiplier z. Each block has half of 1/z^2, and so noise of
multiplier sqrt(2) z.

>>> from fedpriv.optimizers.schedules import Constant
>>> method = NoisyAdaGrad(Constant(1.0), 2.0, 4.0, lambda params, step: torch.eye(2), rank=2, epsilon=1.0)
>>> query = method.query(method.init(torch.zeros(2)))
>>> [round(std, 3) for std in query.noise_stds(1.0)]  # sqrt(2) C_1 and sqrt(2) C_2
[2.828, 5.657]
>>> method.update(method.init(torch.zeros(2)), (torch.tensor([1.0, 1.0]), torch.tensor([9.0, -1.0]))).params
tensor([-0.2500, -1.0000])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.public_data import PublicSettings
from fedpriv.optimizers.registry import METHODS, BuildContext, Method, register, sgd_rate
from fedpriv.optimizers.schedules import Constant, Schedule

if TYPE_CHECKING:
    from torch import Tensor

_SLOT = "second"
_RANK = 10


class NoisyAdaGradSettings(PublicSettings):
    """The settings of noisy AdaGrad."""

    noisy_adagrad_clip_norm: float = setting(
        0.0, "C_2, of a gradient's squares; 0: clip-norm^2", ge=0, allow_inf_nan=True, filled=True
    )
    noisy_adagrad_rank: int = setting(
        0,
        "k, the dimension of the public subspace; 0: 10, or the public examples of a step",
        ge=0,
        filled=True,
    )
    noisy_adagrad_epsilon: float = setting(0.1, "offset of the preconditioner", ge=1e-12)


_DEFAULT = NoisyAdaGradSettings()


@dataclass(frozen=True)
class NoisyAdaGrad:
    """AdaGrad whose gradient and second moment are released apart (Li et al. 2023, appendix C.6).

    Attributes:
        learning_rate: alpha by step.
        clip_norm, square_clip_norm: C_1 of gradients, C_2 of their squares, > 0.
        public: the gradients (n, d) of public examples, as a function of (params (d,), step).
        rank: k >= 1, the dimension of the subspace; at most n is used.
        epsilon: the offset of D, > 0.
    """

    learning_rate: Schedule
    clip_norm: float
    square_clip_norm: float
    public: Callable[[Tensor, int], Tensor]
    rank: int = _RANK
    epsilon: float = _DEFAULT.noisy_adagrad_epsilon

    name: ClassVar[str] = "noisy-adagrad"

    def __post_init__(self) -> None:
        validation.positive("clip-norm", self.clip_norm)
        validation.positive("noisy-adagrad-clip-norm", self.square_clip_norm)
        validation.integer("noisy-adagrad-rank", self.rank, minimum=1)
        validation.finite_positive("noisy-adagrad-epsilon", self.epsilon)

    def init(self, params: Tensor) -> State:
        """w_0, and G = 0."""
        return State(params, slots={_SLOT: torch.zeros_like(params)})

    def query(self, state: State) -> Query:
        """The gradient, and its squares, as two blocks of one event."""
        gradient = SumBlock((Term(self.clip_norm),), share=0.5)
        squares = SumBlock((Term(self.square_clip_norm, squared=True),), share=0.5)
        return Query((state.params,), (gradient, squares))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """G moves by the noisy squares, w by the noisy gradient over D."""
        second = state.slots[_SLOT] + answer[1]
        inside = projected(second, self.public(state.params, state.step), self.rank)
        divisor = inside.clamp(min=0).sqrt() + self.epsilon
        params = state.params - self.learning_rate(state.step) * answer[0] / divisor
        return state.advanced(params, {_SLOT: second})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round."""
        return (PlannedRelease(),) * rounds


def projected(vector: Tensor, rows: Tensor, rank: int) -> Tensor:
    """V V^T ``vector`` (d,), with V the top ``rank`` right singular vectors of ``rows`` (n, d).

    Those of singular value 0 are left out: rows of rank 1 have one.
    """
    _, values, basis = torch.linalg.svd(rows, full_matrices=False)
    tiny = values[:1] * torch.finfo(rows.dtype).eps * max(rows.shape)
    basis = basis[:rank] * (values[:rank] > tiny)[:, None]
    inside: Tensor = basis.T @ (basis @ vector)
    return inside


def _build(own: NoisyAdaGradSettings, context: BuildContext) -> NoisyAdaGrad:
    rate, public = Constant(context.common.learning_rate), context.public_gradient()
    clips = context.common.clip_norm, own.noisy_adagrad_clip_norm
    return NoisyAdaGrad(rate, *clips, public.rows, own.noisy_adagrad_rank, own.noisy_adagrad_epsilon)


def _resolve(own: NoisyAdaGradSettings, context: BuildContext) -> NoisyAdaGradSettings:
    rank = min(_RANK, max(1, own.public_batch or own.public_examples))
    return own.filled_in(noisy_adagrad_clip_norm=context.common.clip_norm**2, noisy_adagrad_rank=rank)


def _check(own: NoisyAdaGradSettings, context: BuildContext) -> None:
    METHODS["adadps"].check(own, context)
    if own.noisy_adagrad_rank > (own.public_batch or own.public_examples):
        allowed = "be at most the public examples of a step"
        raise validation.fail("noisy-adagrad-rank", own.noisy_adagrad_rank, allowed)


register(
    Method(
        name=NoisyAdaGrad.name,
        summary="gradients and squares released apart, in a subspace of public examples (`public-examples`)",
        paper="Kairouz et al. 2021, as in Li et al. 2023, appendix C.6",
        settings=NoisyAdaGradSettings,
        build=_build,
        resolve=_resolve,
        check=_check,
        adaptive_clipping="it has two clip norms",
        clip_norms=("clip-norm", "noisy-adagrad-clip-norm"),
        learning_rate=sgd_rate(0.4),
    )
)
