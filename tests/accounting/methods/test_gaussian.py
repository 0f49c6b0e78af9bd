"""The plain Gaussian against high precision."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.methods import gaussian


def exact_log_delta(mu: float, eps: float) -> float:
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(eps)
        return float(mp.log(mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2)))


@settings(max_examples=40)
@given(st.floats(0.01, 8), st.floats(0, 30))
def test_log_delta(mu: float, eps: float) -> None:
    if eps / mu < 30:
        assert gaussian.log_delta(mu, eps) == pytest.approx(exact_log_delta(mu, eps), rel=1e-6, abs=1e-9)


@settings(max_examples=40)
@given(st.floats(1e-3, 20), st.floats(1e-12, 0.4))
def test_epsilon_is_the_least_and_errs_upwards(mu: float, delta: float) -> None:
    eps = gaussian.epsilon(mu, delta)
    assert exact_log_delta(mu, eps) <= math.log(delta) + 1e-12
    if eps > 1e-6:
        assert exact_log_delta(mu, eps * (1 - 1e-6)) > math.log(delta)


def test_figures_of_both_relations_and_limits() -> None:
    assert gaussian.epsilon(0.5, 1e-5) == pytest.approx(1.99, abs=5e-3)
    assert gaussian.epsilon(1.0, 1e-5) == pytest.approx(4.38, abs=5e-3)
    assert gaussian.epsilon(0.0, 1e-5) == 0
    assert gaussian.epsilon(1.0, 0.0) == math.inf
    assert gaussian.epsilon(1e-9, 1e-5) == 0
