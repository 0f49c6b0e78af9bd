"""DP2: adaptive steps whose preconditioner is old, and less noisy for it.

Source: Li et al. 2023, algorithm 1, and appendix D for AdaGrad, Yogi and the two ablations. The symbols, with
algorithm 1's lines; vectors are (d,), t counts from 0 and p = t mod (s1 + s2):

| paper | here |
|---|---|
| w_t, G_t, v | ``State.params``, slots ``gradient_sum``, ``second`` |
| s1, s2 | ``sgd_steps``, ``adaptive_steps`` |
| alpha_t in the SGD and in the adaptive phase | ``learning_rate(t)``, ``adaptive_learning_rate(t)`` |
| C in the two phases | ``clip_norm`` C_1, ``adaptive_clip_norm`` C_2 (the paper tunes them apart, C.2) |
| D_t, line 9: 1 for p < s1, else sqrt(v) + epsilon | the term's divisor: units precondition, then clip |
| g~_t, line 9; noise std sigma C on the SUM | the private answer y |

Line 5 at p = s1 moves v by h = (G / s1)^2, here at the end of the SGD phase, which is the same:
RMSProp v = beta v + (1 - beta) h; AdaGrad v = v + h; Yogi v = v + (1 - beta) sign(h - v) h. (The paper
prints Yogi's sign as that of G/s1 - v^2, which mixes a gradient with a fourth power; Yogi's own is of
h - v.) DP2-Adam is ours: v as RMSProp's, over 1 - beta^k after k moves, and a first moment
m = beta1 m + (1 - beta1) y of the adaptive phase, over 1 - beta1^j at its j-th step; m is zero at the start
of each phase, since older y had another divisor.

``noise_std`` subtracts the noise's part of h, noise_std^2 / s1 (section 3.2), where it is the public std of
one coordinate of y; v is held at 0 from below (for Yogi, whose step needs h >= 0, h is).

Ablations: ``noise_first`` privatises clip(g, C_1) in both phases and divides the answer by D;
:class:`ExtraQuery` is appendix D's algorithm 2.

>>> from fedpriv.optimizers.schedules import Constant
>>> method = Dp2("rmsprop", Constant(1.0), Constant(0.1), 1.0, 3.0, sgd_steps=2, adaptive_steps=2, beta=0.0)
>>> state = method.init(torch.zeros(2))
>>> for _ in range(2):
...     state = method.update(state, (torch.tensor([1.0, 0.5]),))
>>> method.query(state).blocks[0].terms[0].divisor
tensor([1.0010, 0.5010])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Scalar, Settings, needs, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.first_order import check_decays
from fedpriv.optimizers.registry import BuildContext, Method, register
from fedpriv.optimizers.schedules import Constant, Power, Schedule, as_schedule

if TYPE_CHECKING:
    from torch import Tensor

RULES = ("rmsprop", "adagrad", "yogi", "adam")

_SUM, _SECOND, _FIRST = "gradient_sum", "second", "first"
_NOT_EXTRA = needs(dp2_variant=("standard", "noise-first"))
_DECAYS = needs(optimizer=("dp2-adam", "dp2-rmsprop", "dp2-yogi"))


class Dp2Settings(Settings):
    """The settings of all DP2 optimizers."""

    UNSET: ClassVar[Mapping[str, Scalar]] = {
        "dp2-adaptive-learning-rate": 0.05,
        "dp2-adaptive-clip-norm": 3.0,
    }

    dp2_variant: Literal["standard", "noise-first", "extra-query"] = setting(
        "standard", "DP2, or one of the paper's ablations"
    )
    dp2_sgd_steps: int = setting(10, "s1 (the delay s of extra-query)", ge=1)
    dp2_adaptive_steps: int = setting(10, "s2", ge=1, needs=_NOT_EXTRA)
    dp2_adaptive_learning_rate: float = setting(
        0.0, "step size of the adaptive phase; 0: learning-rate times dp2-epsilon", ge=0, filled=True
    )
    dp2_adaptive_clip_norm: float = setting(
        0.0,
        "C_2, of preconditioned gradients; 0: clip-norm over dp2-epsilon",
        ge=0,
        allow_inf_nan=True,
        filled=True,
        needs=needs(dp2_variant=("standard", "extra-query")),
    )
    dp2_epsilon: float = setting(1e-3, "offset of the preconditioner", ge=1e-12)
    dp2_beta: float = setting(0.9, "decay of the preconditioner", ge=0, lt=1, needs=_DECAYS)
    dp2_noise_correction: bool = setting(
        False, "subtract the noise's variance from the preconditioner", needs=_NOT_EXTRA
    )


_DEFAULT = Dp2Settings()


def moved(rule: str, beta: float, second: Tensor, square: Tensor) -> Tensor:
    """Line 5: v (d,) moved by h = ``square`` (d,), never below 0."""
    if rule == "adagrad":
        return (second + square).clamp(min=0)
    if rule == "yogi":
        square = square.clamp(min=0)
        return second + (1 - beta) * (square - second).sign() * square
    return (beta * second + (1 - beta) * square).clamp(min=0)


@dataclass(frozen=True)
class Dp2:
    """Algorithm 1 with any of four rules.

    Attributes:
        rule: one of RULES.
        learning_rate, adaptive_learning_rate: alpha_t > 0 of the SGD and of the adaptive phase.
        clip_norm, adaptive_clip_norm: C_1 of gradients, C_2 of preconditioned gradients, > 0.
        sgd_steps, adaptive_steps: s1, s2 >= 1.
        epsilon: the offset of D, > 0.
        beta: the decay of v, in [0, 1).
        beta1: the decay of Adam's first moment, in [0, 1).
        noise_std: the public std of one coordinate of y in the SGD phase, scale C_1 over the expected cohort
            where noise is central, to correct h by; 0 is no correction.
        noise_first: the ablation that preconditions after the noise, with C_1 throughout.
    """

    rule: str
    learning_rate: Schedule
    adaptive_learning_rate: Schedule
    clip_norm: float
    adaptive_clip_norm: float
    sgd_steps: int
    adaptive_steps: int
    epsilon: float = _DEFAULT.dp2_epsilon
    beta: float = _DEFAULT.dp2_beta
    beta1: float = 0.9
    noise_std: float = 0.0
    noise_first: bool = False

    def __post_init__(self) -> None:
        validation.choice("dp2-rule", self.rule, RULES)
        _check_rates(self.learning_rate, self.adaptive_learning_rate)
        validation.positive("clip-norm", self.clip_norm)
        validation.positive("adaptive-clip-norm", self.adaptive_clip_norm)
        validation.integer("sgd-steps", self.sgd_steps, minimum=1)
        validation.integer("adaptive-steps", self.adaptive_steps, minimum=1)
        validation.finite_positive("adam-epsilon", self.epsilon)
        check_decays(beta=self.beta, beta1=self.beta1)
        validation.non_negative("noise-std", self.noise_std)

    @property
    def name(self) -> str:
        """The method's name."""
        return f"dp2-{self.rule}"

    def init(self, params: Tensor) -> State:
        """w_0, G = 0, v = 0 and, for Adam, m = 0."""
        names = (_SUM, _SECOND, _FIRST) if self.rule == "adam" else (_SUM, _SECOND)
        return State(params, slots={name: torch.zeros_like(params) for name in names})

    def query(self, state: State) -> Query:
        """Line 9: gradients, preconditioned in the adaptive phase, clipped."""
        term = Term(clip_norm=self.clip_norm)
        if not self.noise_first and self._phase(state.step) >= self.sgd_steps:
            term = Term(clip_norm=self.adaptive_clip_norm, divisor=self._denominator(state))
        return Query((state.params,), (SumBlock((term,)),))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """Lines 10 and 11, line 3 at the beginning of an SGD phase, and line 5 at its end."""
        if self._phase(state.step) < self.sgd_steps:
            return self._sgd(state, answer[0])
        direction, slots = self._direction(state, answer[0])
        rate = self.adaptive_learning_rate(state.step)
        return state.advanced(state.params - rate * direction, slots)

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round."""
        return (PlannedRelease(),) * rounds

    def _phase(self, step: int) -> int:
        return step % (self.sgd_steps + self.adaptive_steps)

    def _sgd(self, state: State, y: Tensor) -> State:
        # A silo that missed the end of a phase would carry its gradients into the next one.
        phase = self._phase(state.step)
        total = state.slots[_SUM] + y if phase else y
        slots = {**state.slots, _SUM: total}
        if phase == self.sgd_steps - 1:
            square = (total / self.sgd_steps) ** 2 - self.noise_std**2 / self.sgd_steps
            slots[_SECOND] = moved(self.rule, self.beta, state.slots[_SECOND], square)
            slots[_SUM] = torch.zeros_like(total)
        return state.advanced(state.params - self.learning_rate(state.step) * y, slots)

    def _denominator(self, state: State) -> Tensor:
        """D in an adaptive phase."""
        second = state.slots[_SECOND]
        if self.rule == "adam":
            moves = state.step // (self.sgd_steps + self.adaptive_steps) + 1
            second = second / (1 - self.beta**moves)
        return second.sqrt() + self.epsilon

    def _direction(self, state: State, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.noise_first:
            y = y / self._denominator(state)
        if self.rule != "adam":
            return y, dict(state.slots)
        done = self._phase(state.step) - self.sgd_steps
        old = state.slots[_FIRST] if done else torch.zeros_like(y)
        first = self.beta1 * old + (1 - self.beta1) * y
        return first / (1 - self.beta1 ** (done + 1)), {**state.slots, _FIRST: first}


@dataclass(frozen=True)
class ExtraQuery:
    """Appendix D's algorithm 2, the ablation that asks for both gradients: adaptive in almost all steps.

    Every ``delay`` steps (t mod s = 0) it makes an SGD step on clip(g, C_1) and moves v by (G / s)^2, at
    t = 0 with the one gradient that G then holds, over s, as printed. (The authors' published code divides by
    the number of gradients in G. That differs at t = 0 alone, where it is 1.) In all other steps the SAME
    cohort answers two blocks, clip(g, C_1) for G and clip(g / (sqrt(v) + epsilon), C_2) for the step, each
    with noise of multiplier sigma. They are one event of multiplier sigma / sqrt(2), so r_t is 1 and
    1/sqrt(2).

    Attributes:
        rule: one of RULES but Adam.
        learning_rate, adaptive_learning_rate, clip_norm, adaptive_clip_norm, epsilon, beta: as in Dp2.
        delay: s >= 2.
    """

    rule: str
    learning_rate: Schedule
    adaptive_learning_rate: Schedule
    clip_norm: float
    adaptive_clip_norm: float
    delay: int
    epsilon: float = 1e-5
    beta: float = 0.9

    def __post_init__(self) -> None:
        validation.choice("dp2-rule", self.rule, RULES[:3])
        _check_rates(self.learning_rate, self.adaptive_learning_rate)
        validation.positive("clip-norm", self.clip_norm)
        validation.positive("adaptive-clip-norm", self.adaptive_clip_norm)
        validation.integer("delay", self.delay, minimum=2)
        validation.finite_positive("adam-epsilon", self.epsilon)
        check_decays(beta=self.beta)

    @property
    def name(self) -> str:
        """The method's name, with its variant."""
        return f"dp2-{self.rule}-extra-query"

    def init(self, params: Tensor) -> State:
        """w_0, G = 0, v = 0."""
        return State(params, slots={name: torch.zeros_like(params) for name in (_SUM, _SECOND)})

    def query(self, state: State) -> Query:
        """Line 5, and in adaptive steps line 11 as a second block of the same event."""
        plain = Term(clip_norm=self.clip_norm)
        if state.step % self.delay == 0:
            return Query((state.params,), (SumBlock((plain,)),))
        divisor = state.slots[_SECOND].sqrt() + self.epsilon
        ready = Term(clip_norm=self.adaptive_clip_norm, divisor=divisor)
        blocks = (SumBlock((plain,), share=0.5), SumBlock((ready,), share=0.5))
        return Query((state.params,), blocks, relative_noise=self._relative_noise(state.step))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """Lines 5 to 12."""
        total = state.slots[_SUM] + answer[0]
        if state.step % self.delay:
            step = self.adaptive_learning_rate(state.step) * answer[1]
            return state.advanced(state.params - step, {**state.slots, _SUM: total})
        second = moved(self.rule, self.beta, state.slots[_SECOND], (total / self.delay) ** 2)
        params = state.params - self.learning_rate(state.step) * answer[0]
        return state.advanced(params, {_SUM: torch.zeros_like(total), _SECOND: second})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round; those of two blocks cost more."""
        return tuple(PlannedRelease(self._relative_noise(t)) for t in range(rounds))

    def _relative_noise(self, step: int) -> float:
        return 0.5**0.5 if step % self.delay else 1.0


def _check_rates(learning_rate: Schedule, adaptive: Schedule) -> None:
    validation.finite_positive("learning-rate", learning_rate(0))
    validation.finite_positive("adaptive-learning-rate", adaptive(0))


def dp2(
    rule: str,
    learning_rate: float | Schedule,
    clip_norm: float,
    adaptive_learning_rate: float | Schedule | None = None,
    adaptive_clip_norm: float | None = None,
    *,
    sgd_steps: int = _DEFAULT.dp2_sgd_steps,
    adaptive_steps: int = _DEFAULT.dp2_adaptive_steps,
    epsilon: float = _DEFAULT.dp2_epsilon,
    beta: float = _DEFAULT.dp2_beta,
    beta1: float = 0.9,
    noise_std: float = 0.0,
    noise_first: bool = False,
) -> Dp2:
    """DP2 (Li et al. 2023, algorithm 1) with one of RULES; arguments are as of :class:`Dp2`.

    Without them, the adaptive phase's step size is ``learning_rate * epsilon`` and its clip norm is
    ``clip_norm / epsilon``: where v is 0 it is then the SGD phase.

    Raises ArgumentError for values out of range.
    """
    first = as_schedule(learning_rate)
    second: Schedule = (
        Power(first, 1.0, epsilon) if adaptive_learning_rate is None else as_schedule(adaptive_learning_rate)
    )
    clips = (clip_norm, clip_norm / epsilon if adaptive_clip_norm is None else adaptive_clip_norm)
    phases = (sgd_steps, adaptive_steps)
    return Dp2(rule, first, second, *clips, *phases, epsilon, beta, beta1, noise_std, noise_first)


def _build(rule: str, own: Dp2Settings, context: BuildContext) -> Dp2 | ExtraQuery:
    rates = (Constant(context.common.learning_rate), Constant(own.dp2_adaptive_learning_rate))
    clips = (context.common.clip_norm, own.dp2_adaptive_clip_norm)
    if own.dp2_variant == "extra-query":
        return ExtraQuery(rule, *rates, *clips, own.dp2_sgd_steps, own.dp2_epsilon, own.dp2_beta)
    corrects = own.dp2_noise_correction and context.calibrated is not None
    return Dp2(
        rule,
        *rates,
        *clips,
        sgd_steps=own.dp2_sgd_steps,
        adaptive_steps=own.dp2_adaptive_steps,
        epsilon=own.dp2_epsilon,
        beta=own.dp2_beta,
        beta1=context.common.beta1,
        noise_std=context.calibrated.noise_std(clips[0]) if corrects and context.calibrated else 0.0,
        noise_first=own.dp2_variant == "noise-first",
    )


def _check(rule: str, own: Dp2Settings, context: BuildContext) -> None:
    if rule == "adam" and own.dp2_variant == "extra-query":
        raise validation.fail("dp2-variant", "extra-query", "be another one with dp2-adam")


def _resolve(own: Dp2Settings, context: BuildContext) -> Dp2Settings:
    """Where v is 0, D is epsilon: the adaptive phase is then the SGD phase, in step, clip and noise."""
    return own.filled_in(
        dp2_adaptive_learning_rate=context.common.learning_rate * own.dp2_epsilon,
        dp2_adaptive_clip_norm=context.common.clip_norm / own.dp2_epsilon,
    )


for _rule in RULES:
    register(
        Method(
            name=f"dp2-{_rule}",
            summary="adaptive steps with a preconditioner of older, averaged answers; two ablations",
            paper="Li et al. 2023, algorithm 1 and appendix D",
            settings=Dp2Settings,
            build=partial(_build, _rule),
            check=partial(_check, _rule),
            resolve_with_rate=_resolve,
            uses=("learning-rate", "clip-norm", *(("beta1",) if _rule == "adam" else ())),
            adaptive_clipping="it has two clip norms",
            clip_norms=("clip-norm", "dp2-adaptive-clip-norm"),
            averaging=0.9 if _rule == "adam" else 0.0,  # after a stale preconditioner the newest model swings
        )
    )
