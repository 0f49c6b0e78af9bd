"""Private SpiderBoost: a gradient on a large cohort from time to time, and small differences in between.

Source: Arora et al. 2022, "Faster rates of convergence to stationary points in differentially private
optimization", algorithm 1, with which Wang et al. 2023 compare DP-SRM (table 1) and which they do not run,
because its noise is hard to determine in practice. Here a budget determines it. Vectors are (d,), t counts
updates:

| paper | here |
|---|---|
| w_t, w_{t-1} | ``State.params``, slot ``previous`` |
| nabla_t | slot ``estimate`` |
| q, the length of a phase | ``phase`` |
| b_1, b_2 | ``full_cohort`` = b_1 / b_2, with b_2 the run's usual cohort |
| L_0, the Lipschitz constant of the loss | ``clip_norm`` of a gradient |
| L_1 norm(w_t - w_{t-1}), the largest difference | ``smoothness`` times the distance, a clip norm |
| the cap of its noise, sigma-hat_2 | ``difference_clip_norm``, a cap of that clip norm |
| sigma_1, sigma_2 (noise on the MEAN) | scale r_t S_t / cohort: std scale r_t S_t on the SUM |

Where t is a multiple of q, a cohort of b_1 is asked for the gradient: nabla_t = y. Else a cohort of b_2 is
asked at two points, for the clipped difference of each unit's gradients: nabla_t = nabla_{t-1} + y. Then
w_{t+1} = w_t - eta_t nabla_t.

The clip norm of differences follows from released parameters alone, so the sensitivity S_t of each release
is public. The paper assumes that gradients and differences keep to L_0 and L_1; here both are clipped. After
a step of no length a small clip norm is left, because a sum always has one. As in DP-SRM the large cohort
has r_t = b_1 / b_2, which gives all means the same noise per unit of sensitivity. The paper returns an
iterate chosen uniformly, for its theorem; here it is the last one.

>>> from fedpriv.optimizers.schedules import Constant
>>> method = PrivateSpiderBoost(Constant(0.5), 1.0, 0.4, smoothness=0.2, phase=2, full_cohort=4.0)
>>> state = method.init(torch.zeros(2))
>>> method.query(state).rate_factor
4.0
>>> state = method.update(state, (torch.tensor([2.0, 0.0]),))  # moves by 1
>>> method.query(state).blocks[0].sensitivity
0.2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Settings, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.cohort_factor import require_drawable
from fedpriv.optimizers.registry import BuildContext, Method, register, sgd_rate
from fedpriv.optimizers.schedules import Constant, Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.mechanism.sampling import Sampler

_PREVIOUS, _ESTIMATE = "previous", "estimate"
_DIFFERENCE = 0.1  # the cap over the clip norm, where it is not given
_LEAST = 1e-3  # the smallest clip norm of differences over its cap


class SpiderBoostSettings(Settings):
    """Private SpiderBoost's own settings."""

    spiderboost_phase: int = setting(10, "q, releases from one full gradient to the next", ge=1)
    spiderboost_full_cohort: float = setting(
        1.0, "b_1 / b_2, the cohort of a full gradient as a multiple of the usual", gt=0
    )
    spiderboost_smoothness: float = setting(
        1.0, "L_1, the gradients' Lipschitz constant: bounds a difference by the step's length", gt=0
    )
    spiderboost_difference_clip_norm: float = setting(
        0.0,
        "the largest clip norm of gradient differences; 0: a tenth of clip-norm",
        ge=0,
        allow_inf_nan=True,
        filled=True,
    )


@dataclass(frozen=True)
class PrivateSpiderBoost:
    """Algorithm 1.

    Attributes:
        step_size: eta_t, a schedule; a Constant in the paper.
        clip_norm: of gradients, > 0.
        difference_clip_norm: the largest clip norm of differences between gradients of one unit, > 0.
        smoothness: L_1 > 0. Differences are clipped to L_1 times the last step's length, where that is less.
        phase: q >= 1; 1 is DP-SGD.
        full_cohort: b_1 / b_2 > 0.
    """

    step_size: Schedule
    clip_norm: float
    difference_clip_norm: float
    smoothness: float = 1.0
    phase: int = 10
    full_cohort: float = 1.0

    name: ClassVar[str] = "private-spiderboost"

    def __post_init__(self) -> None:
        validation.finite_positive("learning-rate", self.step_size(0))
        validation.positive("clip-norm", self.clip_norm)
        validation.positive("difference-clip-norm", self.difference_clip_norm)
        validation.finite_positive("smoothness", self.smoothness)
        validation.integer("phase", self.phase, minimum=1)
        validation.finite_positive("full-cohort", self.full_cohort)

    def init(self, params: Tensor) -> State:
        """w_0, with no estimate yet."""
        return State(params, slots={_PREVIOUS: params.clone(), _ESTIMATE: torch.zeros_like(params)})

    def query(self, state: State) -> Query:
        """The gradient where a phase begins, else the difference of the gradients at w_t and w_{t-1}."""
        if state.step % self.phase == 0:
            ratio = self.full_cohort
            gradient = SumBlock((Term(clip_norm=self.clip_norm),))
            return Query((state.params,), (gradient,), relative_noise=ratio, rate_factor=ratio)
        difference = Term(clip_norm=self.bound(state), at=(1.0, -1.0))
        return Query((state.params, state.slots[_PREVIOUS]), (SumBlock((difference,)),))

    def bound(self, state: State) -> float:
        """The clip norm of differences: L_1 norm(w_t - w_{t-1}), from a small part of its cap to the cap."""
        cap = self.difference_clip_norm
        if math.isinf(cap):
            return cap
        moved = torch.linalg.vector_norm(state.params - state.slots[_PREVIOUS], dtype=torch.float64)
        return min(cap, max(self.smoothness * float(moved), _LEAST * cap))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """nabla_t = y where a phase begins, else nabla_{t-1} + y; then w_{t+1} = w_t - eta_t nabla_t."""
        estimate = answer[0]
        if state.step % self.phase:
            estimate = state.slots[_ESTIMATE] + estimate
        params = state.params - self.step_size(state.step) * estimate
        return state.advanced(params, {_PREVIOUS: state.params, _ESTIMATE: estimate})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """A release over b_1 with r_t = b_1 / b_2 where a phase begins, else a usual one."""
        full = PlannedRelease(self.full_cohort, self.full_cohort)
        return tuple(PlannedRelease() if t % self.phase else full for t in range(rounds))


def _build(own: SpiderBoostSettings, context: BuildContext) -> PrivateSpiderBoost:
    return PrivateSpiderBoost(
        Constant(context.common.learning_rate),
        context.common.clip_norm,
        own.spiderboost_difference_clip_norm,
        own.spiderboost_smoothness,
        own.spiderboost_phase,
        own.spiderboost_full_cohort,
    )


def _check_full_cohort(own: SpiderBoostSettings, sampler: Sampler, context: BuildContext) -> None:
    require_drawable("spiderboost-full-cohort", own.spiderboost_full_cohort, sampler, context.placement)


def _resolve(own: SpiderBoostSettings, context: BuildContext) -> SpiderBoostSettings:
    return own.filled_in(spiderboost_difference_clip_norm=_DIFFERENCE * context.common.clip_norm)


register(
    Method(
        name=PrivateSpiderBoost.name,
        summary="full gradients from time to time, and in between differences clipped by the step's length",
        paper="Arora et al. 2022, algorithm 1",
        settings=SpiderBoostSettings,
        build=_build,
        learning_rate=sgd_rate(1.0),  # differences are clipped: after long steps the estimate lags behind
        check_sampler=_check_full_cohort,
        resolve=_resolve,
        adaptive_clipping="it has two clip norms",
        clip_norms=("clip-norm", "spiderboost-difference-clip-norm"),
    )
)
