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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fedpriv import _check


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


@dataclass(frozen=True)
class Geometric:
    """``start * ratio ** (t / steps)``, the curves of Du et al. 2021, equations 9 and 12.

    ``ratio`` would be reached at t = steps, one step after the last.
    """

    start: float
    ratio: float
    steps: int

    def __post_init__(self) -> None:
        _check.finite_positive("schedule ratio", self.ratio)
        _check.integer("steps", self.steps, minimum=1)

    def __call__(self, step: int) -> float:
        """``start * ratio ** (step / steps)``."""
        return float(self.start * self.ratio ** (step / self.steps))


@dataclass(frozen=True)
class Given:
    """A given sequence, one value a step. Asking past its end raises ArgumentError."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, name: str, values: Iterable[float]) -> Given:
        """The sequence, each value checked to be positive and finite under ``name``."""
        checked = tuple(_check.finite_positive(f"{name}[{i}]", v) for i, v in enumerate(values))
        if not checked:
            raise _check.fail(name, checked, "hold at least one value")
        return cls(checked)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        if step >= len(self.values):
            raise _check.fail(
                "step", step, f"be below {len(self.values)}", "the given sequence ends there"
            )
        return self.values[step]


@dataclass(frozen=True)
class Power:
    """``base(t) ** exponent``; with exponent -1/2 over C_t it is Du's theory, sigma_t ~ sqrt(C_t)."""

    base: Schedule
    exponent: float

    def __call__(self, step: int) -> float:
        """``base(step) ** exponent``."""
        return float(self.base(step) ** self.exponent)


@dataclass(frozen=True)
class Relative:
    """``base(t) / base(0)``: a schedule scaled to start at 1."""

    base: Schedule

    def __call__(self, step: int) -> float:
        """``base(step) / base(0)``."""
        return self.base(step) / self.base(0)
