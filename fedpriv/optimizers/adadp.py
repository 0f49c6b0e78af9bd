"""ADADP: the step size follows the difference between one full step and two half steps.

Source: Koskela & Honkela 2020, algorithms 1 and 2. The symbols; vectors are (d,):

| paper | here |
|---|---|
| theta_l, eta_l | ``State.params``, slot ``step_size`` |
| G_1, G_2 | the private answers of the step's first and second release |
| theta_{l+1/2} = theta_l - eta_l/2 G_1 | the point of the second release |
| theta_{l+1}, hat theta_{l+1} | the full step, the two half steps |
| err, equation 4.1 | :func:`scaled_error` |
| tau, alpha_min, alpha_max | ``tolerance``, ``alpha_min``, ``alpha_max`` |
| C, sigma; noise std C sigma on the SUM | ``clip_norm``, the scale |

A step is two releases of the loop, each over a cohort of its own and each paid for (theorem 9). The query
says so, and no step is begun whose second release would not be affordable. ``State.step`` counts releases,
and between the two the state's parameters stay theta_l. Clip norms and noise depend on no answer, so
adapting and discarding are post-processing. An err of 0 raises the step size by alpha_max.

Section 5.2 ends with plain steps of eta / (1 + 0.1 k), k = 1, 2, ... epochs after the switch (equation
5.1; its "50 steps" are epochs): one release each, from release ``decay_after`` on.

There are three variants:

| ``variant`` | point that is kept | step size times | err | discard |
|---|---|---|---|---|
| ``paper`` | the full step | tau / err | equation 4.1 | as ``discard`` says |
| ``half-steps``, the default | the two half steps | sqrt(tau / err) | equation 4.1 | as ``discard`` says |
| ``authors-code`` | the two half steps | sqrt(tau / err) | sqrt(10) times equation 4.1 | always |

``authors-code`` is what the authors published as code. It sums err over the ten copies of the weights that
it keeps for per-example gradients, so that its tau = 1 is 0.316 in equation 4.1. The default takes the point
and the root from there: the paper's text uses half of the releases for err alone, and learns much less at the
same budget. The paper has tau = 1 and alpha_max = 1.1 for thousands of steps. In a hundred, the step size
grew so until the models swung, so that the defaults are tau = 1.5 and alpha_max = 1.02, and a run hands out
an average of its models (simulations/defaults/README.md).

The paper's tau lets the noise in each parameter grow to a variance of 1 (section 4.2), which is large or
small by the parameters' own scale alone: a layer of 256 inputs starts below 1/16. Without a ``tolerance``,
tau follows from theta_0 instead, which no data has touched: the noise of T steps may grow as large as the
largest of the starting weights (:func:`default_tolerance`). That is ours, and not in the paper.

>>> import torch
>>> method = Adadp(step_size=1.0, clip_norm=1.0, tolerance=0.1, variant="paper")
>>> state = method.init(torch.zeros(1))
>>> for gradient in (1.0, 0.5):
...     state = method.update(state, (torch.tensor([gradient]),))
>>> state.params, round(method.step_size_of(state), 3)  # err = 0.25: the step size falls
(tensor([-1.]), 0.9)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Needs, Scalar, Settings, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.registry import BuildContext, Method, register, sgd_rate

if TYPE_CHECKING:
    from torch import Tensor

Variant = Literal["half-steps", "paper", "authors-code"]
_COPIES = 10  # of the weights in the authors' code, over which it sums the error

_STEP_SIZE, _TOLERANCE, _FIRST = "step_size", "tolerance", "first_gradient"
_DECAYS = Needs("adadp-decay-after above 0", lambda run: run["adadp-decay-after"] > 0)


class AdadpSettings(Settings):
    """ADADP's own settings."""

    # The defaults of 0.1.0.
    UNSET: ClassVar[Mapping[str, Scalar]] = {
        "adadp-variant": "paper",
        "adadp-tolerance": 1.0,
        "adadp-alpha-max": 1.1,
    }

    adadp_tolerance: float = setting(1.5, "tau; 0: the largest starting weight times sqrt(d / 2T)", ge=0)
    adadp_alpha_min: float = setting(0.9, "least change of the step size", gt=0, le=1)
    adadp_alpha_max: float = setting(1.02, "largest change of the step size", ge=1)
    adadp_discard: bool = setting(False, "throw steps away whose error is above tau")
    adadp_decay_after: int = setting(
        0, "releases (even) after which plain decaying steps begin; 0: never", ge=0
    )
    adadp_epoch: int = setting(1, "releases of an epoch of the decay", ge=1, needs=_DECAYS)
    adadp_decay: float = setting(0.1, "rate of the decay by epoch", ge=0, needs=_DECAYS)
    adadp_variant: Variant = setting(
        "half-steps",
        "half-steps keeps the two half steps, paper the full step; authors-code also discards and measures "
        "the error sqrt(10) times as large",
    )


_DEFAULT = AdadpSettings()


@dataclass(frozen=True)
class Adadp:
    """Algorithm 2, with the decay of equation 5.1 after it.

    Attributes:
        step_size: eta_0 > 0; the algorithm soon forgets it.
        clip_norm: C > 0.
        tolerance: tau > 0; or None, which takes :func:`default_tolerance` by the largest of theta_0.
        steps: T, the steps of two releases that the run is meant to make; needed without a tolerance.
        alpha_min, alpha_max: bounds of a step size's change, 0 < alpha_min <= 1 <= alpha_max.
        discard: whether a step with err > tau is thrown away (algorithm 1's stabiliser; the paper's text goes
            without for networks).
        decay_after: the even number of releases after which plain decaying steps begin; None is never.
        epoch: releases of an epoch, by which the decay goes.
        decay: its rate, >= 0.
        variant: which point is kept and how err counts; see the table above.
    """

    step_size: float
    clip_norm: float
    tolerance: float | None = _DEFAULT.adadp_tolerance
    alpha_min: float = _DEFAULT.adadp_alpha_min
    alpha_max: float = _DEFAULT.adadp_alpha_max
    discard: bool = _DEFAULT.adadp_discard
    decay_after: int | None = None
    epoch: int = _DEFAULT.adadp_epoch
    decay: float = _DEFAULT.adadp_decay
    variant: Variant = _DEFAULT.adadp_variant
    steps: int | None = None

    name: ClassVar[str] = "adadp"

    def __post_init__(self) -> None:
        validation.finite_positive("learning-rate", self.step_size)
        validation.positive("clip-norm", self.clip_norm)
        if self.tolerance is not None:
            validation.finite_positive("tolerance", self.tolerance)
        if self.tolerance is None or self.steps is not None:
            validation.integer("steps", self.steps, minimum=1)
        if not 0 < validation.real("alpha-min", self.alpha_min) <= 1:
            raise validation.fail("alpha-min", self.alpha_min, "lie in (0, 1]")
        if validation.finite_positive("alpha-max", self.alpha_max) < 1:
            raise validation.fail("alpha-max", self.alpha_max, "be at least 1")
        if self.decay_after is not None and validation.integer("adadp-decay-after", self.decay_after, 2) % 2:
            raise validation.fail("adadp-decay-after", self.decay_after, "be even", "a step is two releases")
        validation.choice("variant", self.variant, get_args(Variant))
        validation.integer("epoch", self.epoch, minimum=1)
        if math.isinf(validation.non_negative("decay", self.decay)):
            raise validation.fail("decay", self.decay, "be finite")

    def init(self, params: Tensor) -> State:
        """theta_0, eta_0 and tau."""
        numbers = {_STEP_SIZE: self.step_size, _TOLERANCE: self._tolerance_from(params)}
        slots = {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}
        return State(params, slots={**slots, _FIRST: torch.zeros_like(params)})

    def query(self, state: State) -> Query:
        """The gradient at theta_l, then at theta_{l+1/2}; at theta in the decaying phase."""
        block = SumBlock((Term(clip_norm=self.clip_norm),))
        if self._decays(state.step):
            return Query((state.params,), (block,))
        if state.step % 2 == 0:
            return Query((state.params,), (block,), releases=2)
        return Query((self._half_way(state),), (block,))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """Keep G_1; with G_2, the step and its step size (algorithms 1 and 2); or a plain step (5.1)."""
        if self._decays(state.step):
            step = self._decayed(state) * answer[0]
            return state.advanced(state.params - step, state.slots)
        if state.step % 2 == 0:
            return state.advanced(state.params, {**state.slots, _FIRST: answer[0]})
        eta = self.step_size_of(state)
        full = state.params - eta * state.slots[_FIRST]
        halves = self._half_way(state) - eta / 2 * answer[0]
        error, tolerance = scaled_error(full, halves), self.tolerance_of(state)
        if self.variant == "authors-code":
            error *= math.sqrt(_COPIES)
        taken = full if self.variant == "paper" else halves
        if (self.discard or self.variant == "authors-code") and not error <= tolerance:
            taken = state.params.clone()
        slots = {
            **state.slots,
            _STEP_SIZE: state.slots[_STEP_SIZE] * self._factor(error, tolerance),
            _FIRST: torch.zeros_like(state.params),
        }
        return state.advanced(taken, slots)

    def step_size_of(self, state: State) -> float:
        """eta of the adaptive phase as it stands: public, since it follows from noisy answers."""
        return float(state.slots[_STEP_SIZE])

    def tolerance_of(self, state: State) -> float:
        """tau, the same all run long: public, since theta_0 is."""
        return float(state.slots[_TOLERANCE])

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """The releases that this many rounds have room for: whole steps of two, then single ones."""
        adaptive = rounds if self.decay_after is None else min(rounds, self.decay_after)
        return (PlannedRelease(),) * (rounds - adaptive + adaptive // 2 * 2)

    def _decays(self, step: int) -> bool:
        return self.decay_after is not None and step >= self.decay_after

    def _decayed(self, state: State) -> float:
        assert self.decay_after is not None
        epochs = (state.step - self.decay_after) // self.epoch + 1
        return self.step_size_of(state) / (1 + self.decay * epochs)

    def _half_way(self, state: State) -> Tensor:
        return state.params - self.step_size_of(state) / 2 * state.slots[_FIRST]

    def _tolerance_from(self, params: Tensor) -> float:
        if self.tolerance is not None:
            return self.tolerance
        assert self.steps is not None
        return default_tolerance(params.numel(), self.steps, float(params.abs().max()) or 1.0)

    def _factor(self, error: float, tolerance: float) -> float:
        if error == 0:
            return self.alpha_max
        ratio = tolerance / error
        if self.variant != "paper":
            ratio = math.sqrt(ratio)
        # In this order an error that overflowed to NaN, too, gives alpha_min.
        return min(self.alpha_max, max(self.alpha_min, ratio))


def adadp(
    learning_rate: float,
    clip_norm: float,
    tolerance: float | None = _DEFAULT.adadp_tolerance,
    *,
    alpha_min: float = _DEFAULT.adadp_alpha_min,
    alpha_max: float = _DEFAULT.adadp_alpha_max,
    discard: bool = _DEFAULT.adadp_discard,
    decay_after: int | None = None,
    epoch: int = _DEFAULT.adadp_epoch,
    decay: float = _DEFAULT.adadp_decay,
    variant: Variant = _DEFAULT.adadp_variant,
    steps: int | None = None,
) -> Adadp:
    """ADADP (Koskela & Honkela 2020, algorithm 2); arguments are as of :class:`Adadp`.

    ``learning_rate`` is eta_0, from which the step size moves. Raises ArgumentError for values out of range.
    """
    return Adadp(
        learning_rate,
        clip_norm,
        tolerance,
        alpha_min,
        alpha_max,
        discard,
        decay_after,
        epoch,
        decay,
        variant,
        steps,
    )


def scaled_error(full: Tensor, halves: Tensor) -> float:
    """Equation 4.1: the 2-norm of (full - halves) / max(1, abs(full)), for points of shape (d,)."""
    scaled = (full - halves).abs().double() / full.abs().double().clamp(min=1)
    return float(torch.linalg.vector_norm(scaled))


def default_tolerance(dimension: int, steps: int, scale: float = 1.0) -> float:
    """tau = scale * sqrt(d / (2 T)) for d parameters and T steps of two releases (section 4.2).

    The noise that each parameter gathers in the run then has a std of about ``scale``, which is 1 in the
    paper. Raises ArgumentError for numbers < 1, and a scale that is not finite and positive.
    """
    d = validation.integer("dimension", dimension, minimum=1)
    per_step = d / (2 * validation.integer("steps", steps, minimum=1))
    return validation.finite_positive("scale", scale) * math.sqrt(per_step)


def _build(own: AdadpSettings, context: BuildContext) -> Adadp:
    rounds = context.rounds
    adaptive = min(rounds, own.adadp_decay_after or rounds)
    return Adadp(
        context.common.learning_rate,
        context.common.clip_norm,
        tolerance=own.adadp_tolerance or None,
        steps=adaptive // 2,
        alpha_min=own.adadp_alpha_min,
        alpha_max=own.adadp_alpha_max,
        discard=own.adadp_discard,
        decay_after=own.adadp_decay_after or None,
        epoch=own.adadp_epoch,
        decay=own.adadp_decay,
        variant=own.adadp_variant,
    )


def _check(own: AdadpSettings, context: BuildContext) -> None:
    if context.by_silo and context.silo_steps % 2:
        raise validation.fail(
            "silo-steps", context.silo_steps, "be even with adadp", "its step is two releases"
        )
    if context.rounds % 2:
        raise validation.fail(
            "rounds", context.rounds, "be even with optimizer adadp", "a step is two releases"
        )


register(
    Method(
        name=Adadp.name,
        summary="step sizes from one full step against two half steps, two releases each",
        paper="Koskela & Honkela 2020, algorithms 1 and 2",
        settings=AdadpSettings,
        build=_build,
        check=_check,
        learning_rate=sgd_rate(8.0),  # two half steps of 4
        averaging=0.9,  # its steps do not shrink towards the end, so that the newest model swings
        adaptive_clipping="the two releases of its step must be clipped alike",
    )
)
