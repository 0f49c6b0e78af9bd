"""Step-indexed curves: clip norm, step size and relative noise as plain functions of t = 0..T-1.

A schedule is public and fixed before the run, which is what makes the whole privacy cost known in
advance. All are frozen, so equal settings compare and serialise equal.

>>> decay = Geometric(start=1.5, ratio=0.25, steps=4)
>>> [round(decay(t), 4) for t in range(4)]
[1.5, 1.0607, 0.75, 0.5303]
>>> round(Relative(Power(decay, -0.5))(2), 4)
1.4142
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from fedpriv._internal import validation

SPREAD = 1e6  # the largest relative noise of a run over the smallest; more is no schedule but an oversight


class Schedule(Protocol):
    """A function of the step t >= 0."""

    def __call__(self, step: int) -> float:
        """The value at ``step``."""


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def __call__(self, step: int) -> float:
        """``value``."""
        return self.value


def as_schedule(value: float | Schedule) -> Schedule:
    """The schedule, or a number as one that is constant."""
    return value if callable(value) else Constant(value)


@dataclass(frozen=True)
class Geometric:
    """``start * ratio ** (t / steps)``, the curves of Du et al. 2021, equations 9 and 12.

    ``ratio`` would be reached at t = steps, one step after the last. The value stays for the ``epoch``
    steps of an epoch, at that of the first of them.
    """

    start: float
    ratio: float
    steps: int
    epoch: int = 1

    def __post_init__(self) -> None:
        validation.finite_positive("schedule ratio", self.ratio)
        validation.integer("steps", self.steps, minimum=1)
        validation.integer("epoch", self.epoch, minimum=1)

    def __call__(self, step: int) -> float:
        """``start * ratio ** (step / steps)``, of the first step of its epoch."""
        first = step - step % self.epoch
        return float(self.start * self.ratio ** (first / self.steps))


@dataclass(frozen=True)
class Given:
    """A given sequence, one value a step. Asking past its end raises ArgumentError."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, name: str, values: Iterable[float]) -> Given:
        """The sequence, each value checked to be positive and finite under ``name``."""
        checked = tuple(validation.finite_positive(f"{name}[{i}]", v) for i, v in enumerate(values))
        if not checked:
            raise validation.fail(name, checked, "hold at least one value")
        return cls(checked)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        if step >= len(self.values):
            raise validation.fail(
                "step", step, f"be below {len(self.values)}", "the given sequence ends there"
            )
        return self.values[step]


@dataclass(frozen=True)
class Power:
    """``factor * base(t) ** exponent``; exponent -1/2 over C_t is Du's theory, sigma_t ~ sqrt(C_t)."""

    base: Schedule
    exponent: float
    factor: float = 1.0

    def __call__(self, step: int) -> float:
        """``factor * base(step) ** exponent``."""
        return float(self.factor * self.base(step) ** self.exponent)


@dataclass(frozen=True)
class Relative:
    """``base(t) / base(0)``: a schedule scaled to start at 1."""

    base: Schedule

    def __call__(self, step: int) -> float:
        """``base(step) / base(0)``."""
        return self.base(step) / self.base(0)


@dataclass(frozen=True)
class TimeDecay:
    """1 / (1 + k t): Yu et al. 2019's time-based decay of the noise; k = ``rate`` > 0."""

    rate: float

    def __post_init__(self) -> None:
        validation.finite_positive("decay rate", self.rate)

    def __call__(self, step: int) -> float:
        """1 / (1 + rate * step)."""
        return 1 / (1 + self.rate * step)


@dataclass(frozen=True)
class ExponentialDecay:
    """exp(-k t): Yu et al. 2019's exponential decay; k = ``rate`` > 0."""

    rate: float

    def __post_init__(self) -> None:
        validation.finite_positive("decay rate", self.rate)

    def __call__(self, step: int) -> float:
        """exp(-rate * step)."""
        return math.exp(-self.rate * step)


@dataclass(frozen=True)
class StepDecay:
    """k^floor(t / period): Yu et al. 2019's step decay; k = ``factor`` in (0, 1)."""

    factor: float
    period: int

    def __post_init__(self) -> None:
        validation.between("decay factor", self.factor, 0, 1)
        validation.integer("decay period", self.period, minimum=1)

    def __call__(self, step: int) -> float:
        """factor ** (step // period)."""
        return float(self.factor ** (step // self.period))


@dataclass(frozen=True)
class PolynomialDecay:
    """(1 - end) (1 - t/period)^k + end, and ``end`` from then on: Yu et al. 2019's polynomial decay.

    k = ``power`` > 0 (1 is linear) and ``end`` in (0, 1) is sigma_end / sigma_0.
    """

    end: float
    power: float
    period: int

    def __post_init__(self) -> None:
        validation.between("decay end", self.end, 0, 1)
        validation.finite_positive("decay power", self.power)
        validation.integer("decay period", self.period, minimum=1)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        left = 1 - min(step, self.period) / self.period
        return (1 - self.end) * float(left**self.power) + self.end


@dataclass(frozen=True)
class PerEpoch:
    """``base(t // length)``: a schedule of epochs, constant within each."""

    base: Schedule
    length: int

    def __post_init__(self) -> None:
        validation.integer("epoch length", self.length, minimum=1)

    def __call__(self, step: int) -> float:
        """``base(step // length)``."""
        return self.base(step // self.length)


Annealing = Literal["constant", "linear", "cosine"]
ANNEALING: tuple[Annealing, ...] = get_args(Annealing)


@dataclass(frozen=True)
class Annealed:
    """Step sizes that rise to ``start`` within ``warmup`` steps, and fall towards ``end`` times that.

    Steps are counted from 1 on the way up. From there the fall is ``linear``, or along half a ``cosine``
    (Loshchilov & Hutter 2017, equation 5, without restarts), or none (``constant``); the end would be
    reached at t = steps, one step after the last, so that no release is made for a step of length 0.
    """

    start: float
    steps: int
    shape: str = "constant"
    end: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        validation.finite_positive("learning-rate", self.start)
        validation.integer("steps", self.steps, minimum=1)
        validation.choice("learning-rate-schedule", self.shape, ANNEALING)
        if not 0 <= validation.real("learning-rate-end", self.end) <= 1:
            raise validation.fail("learning-rate-end", self.end, "lie in [0, 1]")
        if validation.integer("warmup-steps", self.warmup) >= self.steps:
            raise validation.fail("warmup-steps", self.warmup, f"be below the {self.steps} steps of the run")

    def __call__(self, step: int) -> float:
        """The step size at ``step``."""
        if step < self.warmup:
            return self.start * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.shape]
        return self.start * (self.end + (1 - self.end) * left)


def check_spread(name: str, value: object, noise: Iterable[float]) -> None:
    """Refuse the setting that gives relative noise of a run, or its extremes, more than SPREAD apart.

    Raises ArgumentError with the setting's ``name`` and ``value``.
    """
    values = list(noise)
    least, most = min(values), max(values)
    if not all(value > 0 for value in values) or most / least > SPREAD:
        hint = f"relative noise would be from {least:.3g} to {most:.3g}"
        raise validation.fail(name, value, f"keep noise multipliers within a factor of {SPREAD:g}", hint)
