"""ADP-SGD: the noise on a gradient is fitted to the step size that it will be multiplied with.

Source: Wu et al. 2021, algorithm 1. The symbols, with the algorithm's lines; vectors are (d,):

| paper | here |
|---|---|
| theta_t, eta | ``State.params``, ``learning_rate`` |
| b_{t+1} = phi_1(b_t, g), line 4 | ``b(t)``: a schedule's value at step t is b_{t+1} |
| alpha_{t+1} = phi_2(alpha_t, b_{t+1}), line 5 | ``relative_noise(t)``, r_t; fixed before the run |
| grad f + alpha_{t+1} c_t, line 6 | the answer y: the noise std on the SUM is scale r_t C |
| theta - (eta / b_{t+1}) y, lines 6 and 7 | ``update`` |
| sigma, theorem 4.1 | the scale, from the budget by ``accounting.calibrate`` |

Given {b_t}, the utility bound's privacy term is least at alpha_t = sqrt(b_t) (remark 4.1), the default here;
alpha_t = 1 is DP-SGD with step sizes eta / b_{t+1}. The paper's phi_1 "1/sqrt(a + ct)" in section 3 is the
step size, not b. Where b follows the gradients (section 5.2) it is fed the PRIVATE y, not the gradient as
printed, so that it is post-processing; alpha cannot follow such a b and is (b_0^2 + t C)^(1/4)
(proposition 5.2), with their C called ``c_alpha`` here: it is not the clip norm.

>>> method = adp_sgd(learning_rate=0.5, clip_norm=1.0, b=Polynomial(a=20.0, c=1.0))
>>> [round(planned.relative_noise, 3) for planned in method.planned(3)]
[2.141, 2.166, 2.19]
>>> round(predicted_gain(Polynomial(20.0, 1.0), steps=11_700), 2)
1.73
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Needs, Scalar, Settings, needs, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.first_order import FirstOrder, Sgd
from fedpriv.optimizers.local_step_defaults import rate_by_noise
from fedpriv.optimizers.registry import BuildContext, DefaultRate, Method, register
from fedpriv.optimizers.schedules import SPREAD, Constant, Power, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_SLOT = "b_squared"
_ONE = Constant(1.0)
_ADAPTIVE = needs(optimizer="adaptive-adp-sgd")


class AdpSettings(Settings):
    """The settings of ADP-SGD and of adaptive ADP-SGD."""

    UNSET: ClassVar[Mapping[str, Scalar]] = {"adp-a": 20.0}

    adp_a: float = setting(
        0.0, "b_t^2 = a + c t (0: rounds); of adaptive-adp-sgd b_0^2 (0: 20)", ge=0, filled=True
    )
    adp_c: float = setting(
        1.0,
        "c; of adaptive-adp-sgd the growth of b^2 that the noise assumes, in [nu, C^2]",
        gt=0,
        needs=Needs(
            "optimizer=adp-sgd, or adp-noise=fitted",
            lambda run: run["optimizer"] == "adp-sgd" or run["adp-noise"] == "fitted",
        ),
    )
    adp_noise: Literal["fitted", "constant"] = setting(
        "fitted", "noise fitted to the step sizes; constant: DP-SGD with those steps"
    )
    adp_nu: float = setting(1e-5, "least growth of b^2 in a step", gt=0, needs=_ADAPTIVE)
    adp_beta: float = setting(1.0, "beta_t = max(beta / (t mod period + 1), 1)", gt=0, needs=_ADAPTIVE)
    adp_period: int = setting(1, "releases of an epoch", ge=1, needs=_ADAPTIVE)


@dataclass(frozen=True)
class Polynomial:
    """b_{t+1} = sqrt(a + c (t + 1)), whose step sizes decay as 1/sqrt(t) (section 5.1); a > 0, c >= 0."""

    a: float
    c: float = 1.0

    def __post_init__(self) -> None:
        validation.finite_positive("a", self.a)
        if math.isinf(validation.non_negative("c", self.c)):
            raise validation.fail("c", self.c, "be finite")

    def __call__(self, step: int) -> float:
        """b_{step + 1}."""
        return math.sqrt(self.a + self.c * (step + 1))


@dataclass(frozen=True)
class StepSize:
    """eta / b_{t+1}."""

    learning_rate: float
    b: Schedule

    def __call__(self, step: int) -> float:
        """``learning_rate / b(step)``."""
        return self.learning_rate / self.b(step)


@dataclass(frozen=True)
class Restarting:
    """beta_t = max(beta / ((t mod period) + 1), 1), the weight of section 6; period is an epoch's steps."""

    beta: float
    period: int

    def __post_init__(self) -> None:
        validation.finite_positive("beta", self.beta)
        validation.integer("period", self.period, minimum=1)

    def __call__(self, step: int) -> float:
        """beta_step."""
        return max(self.beta / (step % self.period + 1), 1.0)


def adp_sgd(learning_rate: float, clip_norm: float, b: Schedule, alpha: Schedule | None = None) -> FirstOrder:
    """Algorithm 1 for any schedule of step sizes eta / b_{t+1}.

    Args:
        learning_rate: eta > 0.
        clip_norm: C > 0, which stands for the paper's bound G.
        b: its value at step t is b_{t+1} > 0.
        alpha: its value at step t is alpha_{t+1} > 0; None is sqrt(b_{t+1}).

    Raises:
        ArgumentError: a value is out of range.
    """
    validation.finite_positive("b", b(0))
    return FirstOrder(
        rule=Sgd(),
        learning_rate=StepSize(validation.finite_positive("learning-rate", learning_rate), b),
        clip_norm=Constant(clip_norm),
        relative_noise=Power(b, 0.5) if alpha is None else alpha,
    )


@dataclass(frozen=True)
class AdaptiveAdpSgd:
    """Algorithm 1 with b_{t+1}^2 = b_t^2 + max(beta_t norm(y)^2, nu), y the private answer (section 5.2).

    Attributes:
        learning_rate: eta > 0.
        clip_norm: C > 0.
        b_0: b at the start, > 0.
        relative_noise: its value at step t is alpha_{t+1}, fixed in advance; Constant(1) is DP-SGD with
            adaptive steps.
        nu: the least growth of b^2 in a step, > 0.
        beta: its value at step t is beta_t > 0.
    """

    learning_rate: float
    clip_norm: float
    b_0: float
    relative_noise: Schedule
    nu: float = 1e-5
    beta: Schedule = _ONE

    name: ClassVar[str] = "adaptive-adp-sgd"

    def __post_init__(self) -> None:
        validation.finite_positive("learning-rate", self.learning_rate)
        validation.positive("clip-norm", self.clip_norm)
        validation.finite_positive("b-0", self.b_0)
        validation.finite_positive("nu", self.nu)

    def init(self, params: Tensor) -> State:
        """theta_0 and b_0^2."""
        return State(params, slots={_SLOT: torch.tensor(self.b_0**2, dtype=torch.float64)})

    def query(self, state: State) -> Query:
        """The gradient at theta_t, clipped to C, with relative noise alpha_{t+1} (line 6)."""
        block = SumBlock((Term(clip_norm=self.clip_norm),))
        return Query((state.params,), (block,), relative_noise=self.relative_noise(state.step))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """b_{t+1} from y, then theta - (eta / b_{t+1}) y (lines 4 and 7)."""
        growth = self.beta(state.step) * float(torch.linalg.vector_norm(answer[0], dtype=torch.float64)) ** 2
        b_squared = state.slots[_SLOT] + max(growth, self.nu)
        step_size = self.learning_rate / math.sqrt(float(b_squared))
        return state.advanced(state.params - step_size * answer[0], {_SLOT: b_squared})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round, of relative noise alpha_{t+1}."""
        return tuple(PlannedRelease(self.relative_noise(t)) for t in range(rounds))


def adaptive_adp_sgd(
    learning_rate: float,
    clip_norm: float,
    b_0: float,
    c_alpha: float,
    nu: float = 1e-5,
    beta: Schedule = _ONE,
) -> AdaptiveAdpSgd:
    """Proposition 5.2: adaptive b with alpha_{t+1} = (b_0^2 + (t + 1) c_alpha)^(1/4).

    Args:
        learning_rate, clip_norm, b_0, nu, beta: as in :class:`AdaptiveAdpSgd`.
        c_alpha: a guess, from public knowledge, of how much b^2 grows in a step, in [nu, C^2].

    Raises:
        ArgumentError: a value is out of range.
    """
    if not nu <= validation.finite_positive("c-alpha", c_alpha) <= clip_norm**2:
        raise validation.fail("c-alpha", c_alpha, f"lie in [nu, clip-norm^2] = [{nu:g}, {clip_norm**2:g}]")
    guess = Polynomial(validation.finite_positive("b-0", b_0) ** 2, c_alpha)
    return AdaptiveAdpSgd(learning_rate, clip_norm, b_0, Power(guess, 0.5), nu, beta)


def predicted_gain(b: Schedule, steps: int) -> float:
    """M_dp / M_adp = T sum(1/b^2) / (sum(1/b))^2 >= 1 over b_1..b_T (remark 4.1).

    By this factor alpha_t = sqrt(b_t) lowers the privacy term of DP-SGD's utility bound, at the same budget
    by theorem 4.1. Raises ArgumentError for ``steps`` < 1.
    """
    inverses = [1 / b(t) for t in range(validation.integer("steps", steps, minimum=1))]
    return steps * math.fsum(x * x for x in inverses) / math.fsum(inverses) ** 2


def _build(own: AdpSettings, context: BuildContext) -> FirstOrder:
    common = context.common
    return adp_sgd(common.learning_rate, common.clip_norm, Polynomial(own.adp_a, own.adp_c), _alpha(own))


def _build_adaptive(own: AdpSettings, context: BuildContext) -> AdaptiveAdpSgd:
    rate, clip = context.common.learning_rate, context.common.clip_norm
    beta, b_0 = Restarting(own.adp_beta, own.adp_period), own.adp_a**0.5
    if alpha := _alpha(own):
        return AdaptiveAdpSgd(rate, clip, b_0, alpha, own.adp_nu, beta)
    if not own.adp_nu <= own.adp_c <= clip**2:  # told by the setting's name, which the function has not
        allowed = f"lie in [adp-nu, clip-norm^2] = [{own.adp_nu:g}, {clip**2:g}]"
        raise validation.fail("adp-c", own.adp_c, allowed)
    return adaptive_adp_sgd(rate, clip, b_0, own.adp_c, own.adp_nu, beta)


def _alpha(own: AdpSettings) -> Constant | None:
    """alpha_t where it is constant; None is the fitted one."""
    return Constant(1.0) if own.adp_noise == "constant" else None


def _check_fitted(own: AdpSettings, context: BuildContext) -> None:
    """Refuse fitted noise alpha_T = sqrt(b_T) so far from DP-SGD's 1 that no scale would be found for it."""
    alpha = Polynomial(own.adp_a, own.adp_c)(context.rounds - 1) ** 0.5
    if own.adp_noise == "fitted" and not 1 / SPREAD <= alpha <= SPREAD:
        key = "adp-a" if own.adp_a > own.adp_c else "adp-c"
        allowed = f"keep (adp-a + adp-c rounds)^(1/4) within [{1 / SPREAD:g}, {SPREAD:g}]"
        raise validation.fail(key, own.table()[key], allowed, f"it is {alpha:.3g}")


def _resolve(own: AdpSettings, context: BuildContext) -> AdpSettings:
    return own.filled_in(adp_a=float(context.rounds))


def _resolve_adaptive(own: AdpSettings, context: BuildContext) -> AdpSettings:
    return own.filled_in(adp_a=20.0)


def _rate(own: AdpSettings, context: BuildContext) -> float:
    """DP-SGD's step over b at half time; the paper's a = 20 is for about 10^4 steps."""
    step = 1.0 if context.local_steps else 4.0
    return step * math.sqrt(own.adp_a + own.adp_c * context.rounds / 2)


def _schedules(own: AdpSettings, context: BuildContext) -> tuple[Schedule, Schedule]:
    method = _build_adaptive(own, context)
    return Constant(method.clip_norm), method.relative_noise


def _factors(own: AdpSettings, context: BuildContext, stds: Sequence[float]) -> list[float]:
    """1 / b_{t+1}, where norm(y)^2 is that of noise alone, d std^2."""
    method, dimension = _build_adaptive(own, context), context.dimension()
    growth = (max(method.beta(t) * dimension * std**2, method.nu) for t, std in enumerate(stds))
    return [1 / math.sqrt(method.b_0**2 + total) for total in itertools.accumulate(growth)]


register(
    Method(
        name="adp-sgd",
        summary="noise fitted to decaying step sizes",
        paper="Wu et al. 2021, algorithm 1 and section 5.1",
        settings=AdpSettings,
        build=_build,
        check=_check_fitted,
        resolve=_resolve,
        learning_rate=DefaultRate("4 sqrt(adp-a + adp-c rounds / 2); a quarter with work=local-steps", _rate),
        averaging=0.9,
    )
)
register(
    Method(
        name=AdaptiveAdpSgd.name,
        summary="the same with step sizes that follow the private gradients",
        paper="Wu et al. 2021, section 5.2",
        settings=AdpSettings,
        build=_build_adaptive,
        check=_check_fitted,
        resolve=_resolve_adaptive,
        learning_rate=rate_by_noise(20.0, _schedules, _factors),  # over b, which is 4.6 at the start
        averaging=0.9,  # its steps fall too slowly in a short run to still the noise
    )
)
