"""Schedules against their formulas."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.optimizers.schedules import Annealed, Constant, Geometric, Given, Power, Relative, check_spread


@given(st.floats(0.01, 100), st.floats(0.05, 20), st.integers(1, 1000), st.integers(0, 1000))
def test_geometric_is_du_equation_12(start: float, ratio: float, steps: int, step: int) -> None:
    assume(step <= 100 * steps)  # 20 ** 100 is a float; a run ends at step = steps
    expected = start * math.exp(math.log(ratio) * step / steps)
    assert Geometric(start, ratio, steps)(step) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 100), st.integers(1, 30), st.integers(0, 100))
def test_an_epoch_keeps_the_value_of_its_first_step(steps: int, epoch: int, step: int) -> None:
    held, smooth = Geometric(2.0, 0.25, steps, epoch), Geometric(2.0, 0.25, steps)
    assert held(step) == smooth(epoch * (step // epoch))


def test_constant_and_relative() -> None:
    assert Constant(2.5)(7) == 2.5
    assert Relative(Geometric(4.0, 0.25, 2))(1) == pytest.approx(0.5)


def test_square_root_of_a_falling_clip_grows() -> None:
    noise = Relative(Power(Geometric(2.0, 0.25, 10), -0.5))
    assert noise(0) == 1
    assert noise(10) == pytest.approx(2.0)


def test_given_refuses_what_it_cannot_be() -> None:
    assert Given.of("clip-norm", [1, 2.5])(1) == 2.5
    with pytest.raises(ArgumentError, match="step is 2"):
        Given.of("clip-norm", [1.0, 2.5])(2)
    with pytest.raises(ArgumentError, match=r"clip-norm\[1\] is -1"):
        Given.of("clip-norm", [1.0, -1.0])
    with pytest.raises(ArgumentError, match="at least one value"):
        Given.of("clip-norm", [])


@pytest.mark.parametrize("noise", [(1.0, 0.9e-6), (1.0, 0.0), (1.0, 3.0, 1e7), (1.0, math.nan)])
def test_noise_that_goes_too_far_apart_names_its_setting(noise: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"^rho-mu is 9; it must keep noise multipliers within a factor"):
        check_spread("rho-mu", 9, noise)
    check_spread("rho-mu", 9, (2.0, 1.0, 1e6))


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine"])
def test_step_sizes_rise_and_fall(shape: str) -> None:
    sizes = [Annealed(0.5, 100, shape, 0.1, warmup=10)(t) for t in range(100)]
    assert sizes[:10] == pytest.approx([0.05 * (t + 1) for t in range(10)])
    assert sizes[10] == pytest.approx(0.5)
    assert all(later <= sooner for sooner, later in itertools.pairwise(sizes[10:]))
    middle = {"constant": 0.5, "linear": 0.275, "cosine": 0.275}[shape]
    assert sizes[55] == pytest.approx(middle)
    cosine = 0.05 + 0.225 * (1 + math.cos(math.pi * 2 / 9))
    quarter = {"constant": 0.5, "linear": 0.4, "cosine": cosine}
    assert sizes[30] == pytest.approx(quarter[shape])
    cosine = 0.05 + 0.225 * (1 - math.cos(math.pi / 90))
    last = {"constant": 0.5, "linear": 0.055, "cosine": cosine}
    assert sizes[99] == pytest.approx(last[shape])
    assert Annealed(0.5, 100, shape, 0.1)(100) == pytest.approx(0.5 if shape == "constant" else 0.05)


def test_no_step_is_of_length_zero() -> None:
    for shape in ("linear", "cosine"):
        assert all(Annealed(1.0, 7, shape, warmup=3)(t) > 0 for t in range(7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 0.0}, "learning-rate is"),
        ({"shape": "cos"}, "learning-rate-schedule is"),
        ({"end": 1.5}, "learning-rate-end is"),
        ({"warmup": 9}, "warmup-steps is 9; it must be below the 9 steps"),
    ],
)
def test_impossible_step_sizes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Annealed(**{"start": 1.0, "steps": 9, **changes})
