"""Schedules against their formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpriv._check import ArgumentError
from fedpriv.schedules import Constant, Geometric, Given, Power, Relative, check_spread


@given(st.floats(0.01, 100), st.floats(0.05, 20), st.integers(1, 1000), st.integers(0, 1000))
def test_geometric_is_du_equation_12(start: float, ratio: float, steps: int, step: int) -> None:
    assume(step <= 100 * steps)  # 20 ** 100 is a float; a run ends at step = steps
    expected = start * math.exp(math.log(ratio) * step / steps)
    assert Geometric(start, ratio, steps)(step) == pytest.approx(expected, rel=1e-9)


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
