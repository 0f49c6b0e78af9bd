"""The advantage that events allow is delta at epsilon 0: closed forms, dp-accounting, simulated guesses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from fedpriv.accounting import Event, UnsupportedEvent, advantage


@pytest.mark.parametrize("z", [0.3, 1.0, 7.0, 200.0])
def test_one_gaussian_has_its_closed_form(z: float) -> None:
    """Total variation of N(0, z) and N(1, z), and of N(-1, z) and N(1, z)."""
    assert advantage([Event(z, "none", "add-remove")]) == pytest.approx(2 * stats.norm.cdf(0.5 / z) - 1)
    assert advantage([Event(z, "none", "replace-one")]) == pytest.approx(2 * stats.norm.cdf(1 / z) - 1)


@pytest.mark.parametrize(("z", "rate", "rounds"), [(1.0, 0.01, 100), (2.0, 0.1, 60), (0.6, 1e-3, 1000)])
def test_sampled_gaussians_agree_with_dp_accounting(z: float, rate: float, rounds: int) -> None:
    ours = advantage([Event(z, "poisson", "add-remove", rate=rate, count=rounds)])
    one = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=1e-4
    )
    assert ours == pytest.approx(one.self_compose(rounds).get_delta_for_epsilon(0.0), rel=2e-3)


@pytest.mark.parametrize("z", [1e-3, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1, 0.5])
def test_one_sampled_release_has_its_closed_form(z: float, rate: float) -> None:
    """It is q times the distance of the two Gaussians, and more noise never increases it."""
    true = rate * (2 * stats.norm.cdf(0.5 / z) - 1)
    ours = advantage([Event(z, "poisson", "add-remove", rate=rate)])
    assert true * (1 - 1e-9) <= ours <= true * 1.03
    replaced = rate * (2 * stats.norm.cdf(1 / z) - 1)
    for sampling in ("poisson", "without-replacement"):
        ours = advantage([Event(z, sampling, "replace-one", rate=rate)])
        assert replaced * (1 - 1e-9) <= ours <= 1.001 * rate


@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.slow), 5])
def test_few_releases_agree_with_dp_accounting(rounds: int) -> None:
    ours = advantage([Event(0.7, "poisson", "add-remove", rate=0.05, count=rounds)])
    one = privacy_loss_distribution.from_gaussian_mechanism(
        0.7, sampling_prob=0.05, value_discretization_interval=1e-4
    )
    assert ours == pytest.approx(one.self_compose(rounds).get_delta_for_epsilon(0.0), rel=2e-3)


def test_no_threshold_test_exceeds_the_advantage() -> None:
    """The likelihood-ratio test of 4 sampled releases, on a million draws."""
    z, rate, rounds, draws = 0.8, 0.3, 4, 10**6
    generator = np.random.default_rng(0)
    scores = []
    for there in (0, 1):
        joined = there * (generator.random((rounds, draws)) < rate)
        seen = joined + generator.normal(0, z, (rounds, draws))
        scores.append(np.log1p(rate * np.expm1((2 * seen - 1) / (2 * z * z))).sum(0))
    found = float((scores[1] > 0).mean() - (scores[0] > 0).mean())
    bound = advantage([Event(z, "poisson", "add-remove", rate=rate, count=rounds)])
    assert found == pytest.approx(bound, abs=4 / math.sqrt(draws))


def test_no_events_and_no_noise() -> None:
    assert advantage([]) == advantage([Event(1.0, "poisson", "add-remove", rate=0.0)]) == 0
    assert advantage([Event(0.0, "none", "add-remove")]) == 1


def test_a_truncated_cohort_adds_its_distance() -> None:
    plain = Event(2.0, "poisson", "add-remove", rate=0.1, population=1000)
    cut = Event(2.0, "poisson", "add-remove", rate=0.1, population=1000, truncation=1e-3)
    assert advantage([cut] * 3) == pytest.approx(advantage([plain] * 3) + 6e-3)


def test_unsupported_events_are_refused() -> None:
    with pytest.raises(UnsupportedEvent, match="cannot be composed"):
        advantage([Event(1.0, "none", "add-remove"), Event(1.0, "none", "replace-one")])
    with pytest.raises(UnsupportedEvent):
        advantage([Event(1.0, "none", "add-remove", mechanism="noisy-max")])
