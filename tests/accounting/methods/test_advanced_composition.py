"""Extended advanced composition, and the closed form of Wu's theorem 4.1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.events import fixed_size, poisson
from helpers.methods_suite import MethodSuite

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event, UnsupportedEvent, epsilon, scaled, theorem_scale
from fedpriv.accounting.methods import gaussian
from fedpriv.accounting.methods.advanced_composition import Advanced


class TestAdvanced(MethodSuite):
    method, kind = "advanced", "bound"
    calm = 20.0


class TestAdvancedFixedSize(TestAdvanced):
    event = staticmethod(fixed_size)


@pytest.mark.parametrize("count", [1, 500])
def test_lemma_2_2(count: int) -> None:
    """By hand for three kinds of releases, with the best of the ways to split delta. Few of them add up."""
    z, q, delta = np.array([20.0, 30.0, 50.0]), np.array([1.0, 0.3, 0.02]), 1e-5
    sums, composed = [], []
    for part in (0.1, 0.5, 0.9):
        each = (1 - part) * delta / (3 * count)
        plain = [gaussian.epsilon(1 / s, each / p) for s, p in zip(z, q, strict=True)]
        eps = np.log(1 + q * np.expm1(plain))
        spread = math.sqrt(2 * math.log(1 / (part * delta)) * count * sum(eps**2))
        sums.append(count * sum(eps))
        composed.append(spread + count * sum(eps * (np.exp(eps) - 1) / (np.exp(eps) + 1)))
    assert (min(composed) < min(sums)) == (count == 500)
    events = [poisson(20.0, 1.0, count), poisson(30.0, 0.3, count), poisson(50.0, 0.02, count)]
    found = epsilon(events, delta, "advanced").epsilon
    assert found == pytest.approx(min(*sums, *composed), rel=1e-9)


def test_composition_beats_the_plain_sum_for_many_releases() -> None:
    profile = Advanced().stages([{poisson(50.0, 0.1): 5000}], 1e-5)[0]
    each = math.log1p(0.1 * math.expm1(gaussian.epsilon(1 / 50, 1e-6 / 5000 / 0.1)))
    assert profile.epsilon(1e-5)[0] < 5000 * each / 10


def test_one_release_is_close_to_its_exact_epsilon() -> None:
    exact = gaussian.epsilon(0.5, 1e-5)
    assert exact < epsilon([Event(2.0, "none", "add-remove")], 1e-5, "advanced").epsilon < 1.01 * exact


def test_rounding_many_multipliers_gives_an_upper_bound() -> None:
    z = np.geomspace(40.0, 20.0, 1000)
    many = epsilon([poisson(float(s), 0.01) for s in z], 1e-5, "advanced").epsilon
    exact = epsilon([poisson(float(s), 0.01, 10) for s in z[5::10]], 1e-5, "advanced").epsilon
    assert exact * 0.999 < many < exact * 1.02


def test_tiny_noise_does_not_overflow() -> None:
    value = epsilon([poisson(0.02, 0.5)], 1e-5, "advanced").epsilon
    assert 1000 < value < math.inf
    assert epsilon([poisson(1e-7, 0.5)], 1e-5, "advanced").epsilon == math.inf


def test_refuses_poisson_under_replace_one_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match=r"advanced does not support poisson.*use pld or zcdp"):
        epsilon([Event(3.0, "poisson", "replace-one", rate=0.05)], 1e-5, "advanced")


def steps(count: int, n: int) -> list[Event]:
    """ADP-SGD with one example a step and alpha_t = (1 + t)^(1/4)."""
    return [Event((1 + t) ** 0.25, "without-replacement", "replace-one", 1 / n) for t in range(count)]


def test_theorem_4_1_is_equation_6() -> None:
    n, count, eps, delta = 1000, 2000, 0.1, 1e-5
    total = sum((1 + t) ** -0.5 for t in range(count))
    variance = 16**2 / (n * eps) ** 2 * math.log(16 * count / (n * delta)) * math.log(1.25 / delta) * total
    assert theorem_scale(steps(count, n), eps, delta) == pytest.approx(math.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize("n", [1000, 10_000])
def test_theorem_4_1_is_an_upper_bound_within_its_range(n: int) -> None:
    run = steps(2000, n)
    eps = 0.17 if n == 1000 else 0.017
    scale = theorem_scale(run, eps, 1e-5)
    spent = [scaled(event, scale) for event in run]
    assert epsilon(spent, 1e-5, "pld").epsilon < epsilon(spent, 1e-5, "advanced").epsilon < eps


@pytest.mark.slow
def test_theorem_4_1_is_refused_where_its_proof_does_not_hold() -> None:
    run = steps(2000, 1000)
    with pytest.raises(
        ArgumentError, match=r"epsilon=4 is outside .* theorem 4.1, whose proof holds below 0\.\d+"
    ):
        theorem_scale(run, 4.0, 1e-5)
    # The formula is proportional to 1 / epsilon.
    scale = theorem_scale(run, 0.1, 1e-5) * 0.1 / 4.0
    lower = epsilon([scaled(event, scale) for event in run], 1e-5).epsilon_lower
    assert lower is not None
    assert lower > 9.7


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Event(1.0, "none", "replace-one")], "one sampling rate"),
        ([*steps(1, 10), *steps(1, 20)], "one sampling rate"),
        ([], "one sampling rate"),
        ([Event(0.0, "without-replacement", "replace-one", 0.1)], "noise-multiplier is"),
        ([Event(1.0, "without-replacement", "replace-one", 1e-8)], "not 1"),
    ],
)
def test_theorem_4_1_names_the_unmet_condition(events: list[Event], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        theorem_scale(events, 0.1, 1e-5)
