"""DP-SRM: a private gradient estimator that is corrected by small gradient differences.

Source: Wang et al. 2023, algorithm 1 with the clipping of section 5. The symbols, with the algorithm's
lines; vectors are (d,), and t counts updates:

| paper | here |
|---|---|
| theta^t, theta^{t-1} | ``State.params``, slot ``previous`` |
| v_p^t, lines 3 and 8 | slot ``estimate`` |
| gamma, b_0, b | ``gamma``; ``first_cohort`` = b_0 / b, with b the run's usual cohort |
| C_1, C_2 (section 5) | ``clip_norm`` of a gradient, ``difference_clip_norm`` of a difference |
| eta_t, line 5 | ``step_size``: a schedule, or :class:`NormalisedStep` |
| sigma_0, sigma (noise on the MEAN) | scale r_t S / cohort: std scale r_t S on the SUM |

t = 0 asks for the gradient on a cohort of b_0 (sampling rate b_0 / N, denominator b_0) with r_0 = b_0 / b,
which gives the mean the noise that it has later per unit of sensitivity (theorem 5.1's sigma_0 / G equals
its sigma / ((1 - gamma) zeta / n_0 + gamma G)). After that one cohort is asked at two points for

    gamma clip(g_t, C_1) + (1 - gamma) clip(g_t - g_{t-1}, C_2),        S = gamma C_1 + (1 - gamma) C_2,

and v_t = (1 - gamma) v_{t-1} + y, which is line 7: the two gradients of line 7 are g_t - (1 - gamma) g_{t-1}.
Section 7.1 prints S with C_1 and C_2 exchanged; (6.1) and the theorem have it as here. Their factor 2 is
replace-one's and belongs to the accounting. gamma = 1 is DP-SGD, which asks at one point only.

The output is an iterate chosen uniformly from theta^0..theta^{T-1}. The choice needs no data, so it is drawn
before the run (:func:`draw_output_step`) and its iterate is kept; by default the last is handed out.

>>> from fedpriv.optimizers.schedules import Constant
>>> method = DpSrm(Constant(0.5), clip_norm=1.0, difference_clip_norm=0.1, gamma=0.25, first_cohort=4.0)
>>> state = method.init(torch.zeros(2))
>>> method.query(state).rate_factor
4.0
>>> state = method.update(state, (torch.tensor([2.0, 0.0]),))
>>> method.query(state).blocks[0].sensitivity
0.325
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Needs, Scalar, Settings, needs, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import OUTPUT, PlannedRelease, State
from fedpriv.optimizers.cohort_factor import require_drawable
from fedpriv.optimizers.registry import BuildContext, Method, register
from fedpriv.optimizers.schedules import Constant, Schedule, as_schedule

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fedpriv.mechanism.sampling import Sampler

_PREVIOUS, _ESTIMATE = "previous", "estimate"
_DIFFERENCE = 0.1  # C_2 / C_1 where C_2 is not given
_NORMALISED = needs(srm_step="normalised")


class SrmSettings(Settings):
    """DP-SRM's own settings."""

    UNSET: ClassVar[Mapping[str, Scalar]] = {"srm-gamma": 0.1, "srm-difference-clip-norm": 0.1}

    srm_gamma: float = setting(0.5, "gamma; 1 is DP-SGD", gt=0, le=1)
    srm_difference_clip_norm: float = setting(
        0.0,
        "C_2, of gradient differences; 0: a tenth of clip-norm",
        ge=0,
        allow_inf_nan=True,
        filled=True,
        needs=Needs("srm-gamma below 1", lambda run: run["srm-gamma"] < 1),
    )
    srm_first_cohort: float = setting(1.0, "b_0 / b, the first cohort as a multiple of the usual", gt=0)
    srm_step: Literal["constant", "normalised"] = setting(
        "constant", "learning-rate, or min(zeta / (n0 L norm(v)), 1 / (2 n0 L))"
    )
    srm_zeta: float = setting(0.1, "zeta, the accuracy aimed at", gt=0, needs=_NORMALISED)
    srm_smoothness: float = setting(1.0, "L, the gradients' Lipschitz constant", gt=0, needs=_NORMALISED)
    srm_n0: float = setting(1.0, "n_0", gt=0, needs=_NORMALISED)
    srm_random_iterate: bool = setting(
        False, "hand out an iterate chosen uniformly before the run, not the last"
    )


_DEFAULT = SrmSettings()


@dataclass(frozen=True)
class NormalisedStep:
    """Line 5: eta_t = min(zeta / (n_0 L norm(v_t)), 1 / (2 n_0 L)), so no step is longer than zeta / (n_0 L).

    Attributes:
        zeta: the accuracy that is aimed at, > 0.
        smoothness: L > 0, the Lipschitz constant of the gradients.
        n_0: > 0; L D_F / G^2 in theorem 5.4.
    """

    zeta: float
    smoothness: float = 1.0
    n_0: float = 1.0

    def __post_init__(self) -> None:
        validation.finite_positive("zeta", self.zeta)
        validation.finite_positive("smoothness", self.smoothness)
        validation.finite_positive("n-0", self.n_0)

    def of(self, estimate: Tensor) -> float:
        """eta_t for the estimate v_t (d,)."""
        length = float(torch.linalg.vector_norm(estimate, dtype=torch.float64))
        longest = 1 / (2 * self.n_0 * self.smoothness)
        # zeta / length may divide by zero, so lengths are compared, not step sizes.
        return longest if length <= 2 * self.zeta else self.zeta / (self.n_0 * self.smoothness * length)


@dataclass(frozen=True)
class DpSrm:
    """Algorithm 1.

    Attributes:
        step_size: eta_t, a schedule (a Constant in the paper's networks) or a NormalisedStep.
        clip_norm: C_1 > 0, of gradients.
        difference_clip_norm: C_2 > 0, of differences between gradients of one unit.
        gamma: the momentum parameter, in (0, 1].
        first_cohort: b_0 / b > 0, how many times the usual cohort the first one is.
        output_step: the number of the iterate that is handed out (``State.output``; the newest until it is
            reached); None is the last.
    """

    step_size: Schedule | NormalisedStep
    clip_norm: float
    difference_clip_norm: float
    gamma: float
    first_cohort: float = 1.0
    output_step: int | None = None

    name: ClassVar[str] = "dp-srm"

    def __post_init__(self) -> None:
        if not isinstance(self.step_size, NormalisedStep):
            validation.finite_positive("learning-rate", self.step_size(0))
        validation.positive("clip-norm", self.clip_norm)
        validation.positive("difference-clip-norm", self.difference_clip_norm)
        if not 0 < validation.real("gamma", self.gamma) <= 1:
            raise validation.fail("gamma", self.gamma, "lie in (0, 1]")
        validation.finite_positive("first-cohort", self.first_cohort)
        if self.output_step is not None:
            validation.integer("output-step", self.output_step)

    def init(self, params: Tensor) -> State:
        """theta^0, with no estimate yet."""
        slots = {_PREVIOUS: params.clone(), _ESTIMATE: torch.zeros_like(params)}
        return State(params, slots=slots if self.output_step is None else {**slots, OUTPUT: params.clone()})

    def query(self, state: State) -> Query:
        """Lines 1 to 3 at t = 0, then lines 6 to 8: what the cohort adds up."""
        gradient = SumBlock((Term(clip_norm=self.clip_norm),))
        if state.step == 0:
            ratio = self.first_cohort
            return Query((state.params,), (gradient,), relative_noise=ratio, rate_factor=ratio)
        if self.gamma == 1:
            return Query((state.params,), (gradient,))
        terms = (
            Term(clip_norm=self.clip_norm, weight=self.gamma),
            Term(clip_norm=self.difference_clip_norm, weight=1 - self.gamma, at=(1.0, -1.0)),
        )
        return Query((state.params, state.slots[_PREVIOUS]), (SumBlock(terms),))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """v_t = (1 - gamma) v_{t-1} + y (v_0 = y), then theta^{t+1} = theta^t - eta_t v_t (line 5)."""
        estimate = answer[0]
        if state.step:
            estimate = (1 - self.gamma) * state.slots[_ESTIMATE] + estimate
        rule = self.step_size
        eta = rule.of(estimate) if isinstance(rule, NormalisedStep) else rule(state.step)
        params = state.params - eta * estimate
        slots = {_PREVIOUS: state.params, _ESTIMATE: estimate}
        if self.output_step is not None:
            reached = state.step + 1 <= self.output_step
            slots[OUTPUT] = params.clone() if reached else state.slots[OUTPUT]
        return state.advanced(params, slots)

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """The first release over b_0 with r_0 = b_0 / b, then one a round."""
        first = PlannedRelease(self.first_cohort, self.first_cohort)
        return (first, *[PlannedRelease()] * (rounds - 1)) if rounds else ()


def dp_srm(
    learning_rate: float | Schedule | NormalisedStep,
    clip_norm: float,
    difference_clip_norm: float | None = None,
    gamma: float = _DEFAULT.srm_gamma,
    *,
    first_cohort: float = _DEFAULT.srm_first_cohort,
    output_step: int | None = None,
) -> DpSrm:
    """DP-SRM (Wang et al. 2023, algorithm 1); arguments are as of :class:`DpSrm`.

    Without it, ``difference_clip_norm`` is a tenth of ``clip_norm``.

    Raises ArgumentError for values out of range.
    """
    second = _DIFFERENCE * clip_norm if difference_clip_norm is None else difference_clip_norm
    step = learning_rate if isinstance(learning_rate, NormalisedStep) else as_schedule(learning_rate)
    return DpSrm(step, clip_norm, second, gamma, first_cohort, output_step)


def draw_output_step(rounds: int, generator: np.random.Generator) -> int:
    """The number of the iterate to hand out, uniform on 0..rounds-1 (the algorithm's output line).

    Raises ArgumentError for ``rounds`` < 1.
    """
    return int(generator.integers(validation.integer("rounds", rounds, minimum=1)))


def _build(own: SrmSettings, context: BuildContext) -> DpSrm:
    step: Constant | NormalisedStep = Constant(context.common.learning_rate)
    if own.srm_step == "normalised":
        step = NormalisedStep(own.srm_zeta, own.srm_smoothness, own.srm_n0)
    chosen = None
    if own.srm_random_iterate:
        chosen = draw_output_step(context.rounds, context.draw("output-step"))
    clips = (context.common.clip_norm, own.srm_difference_clip_norm)
    return DpSrm(step, *clips, own.srm_gamma, own.srm_first_cohort, chosen)


def _check(own: SrmSettings, context: BuildContext) -> None:
    common = context.common
    if own.srm_random_iterate and context.by_silo:
        # A silo's iterates are not the server's models, of which it would be one.
        raise validation.fail("srm-random-iterate", True, "be false with level client")
    if own.srm_random_iterate and common.averaging:
        raise validation.fail("averaging", common.averaging, "be 0 with srm-random-iterate")


def _check_first_cohort(own: SrmSettings, sampler: Sampler, context: BuildContext) -> None:
    require_drawable("srm-first-cohort", own.srm_first_cohort, sampler, context.placement)


def _resolve(own: SrmSettings, context: BuildContext) -> SrmSettings:
    """With gamma = 0.5 the noise gathers as S / gamma = 1.1 C_1, so that DP-SGD's step suits."""
    return own.filled_in(srm_difference_clip_norm=_DIFFERENCE * context.common.clip_norm)


def _draws(own: SrmSettings) -> bool:
    return own.srm_random_iterate


register(
    Method(
        name=DpSrm.name,
        summary="recursive momentum from small gradient differences, two clip norms",
        paper="Wang et al. 2023, algorithm 1",
        settings=SrmSettings,
        build=_build,
        check=_check,
        check_sampler=_check_first_cohort,
        resolve=_resolve,
        needs={"learning-rate": needs(srm_step="constant")},
        adaptive_clipping="it has two clip norms",
        draws=_draws,
        clip_norms=("clip-norm", "srm-difference-clip-norm"),
    )
)
