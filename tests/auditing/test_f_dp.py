"""The test of a trade-off curve from one run, against a linear program, closed forms and sound runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from fedpriv.accounting import Event, epsilon
from fedpriv.auditing.attack_curve import AttackCurve
from fedpriv.auditing.f_dp import curve_p_value, most_certain, proved_by_curves, refuted
from fedpriv.auditing.trade_off import TradeOff


def gaussian(mu: float) -> list[Event]:
    return [Event(1 / mu, "none", "add-remove")]


def largest_probability(curve: TradeOff, coins: int, guesses: int, right: int) -> float:
    """The largest P[N >= right] that the inequalities allow, by linear programming."""
    i = np.arange(guesses + 1)
    rows, bounds = [], []
    for j in range(guesses):
        true, false = np.where(i > j, i / coins, 0), np.where(i >= j, (guesses - i) / coins, 0)
        for slope, offset in zip(curve.slopes, curve.offsets, strict=True):
            rows.append(slope * true - false)
            bounds.append(-offset)
    found = optimize.linprog(
        -(i >= right).astype(float), np.array(rows), bounds, np.ones((1, guesses + 1)), [1.0], bounds=(0, 1)
    )
    return float(-found.fun)


@pytest.mark.parametrize(("coins", "guesses", "right"), [(12, 12, 9), (12, 12, 12), (30, 12, 10), (20, 8, 8)])
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_it_is_the_largest_probability_that_the_inequalities_allow(
    coins: int, guesses: int, right: int, mu: float
) -> None:
    epsilons = np.linspace(0, 6, 12)
    above, below = (stats.norm.cdf(sign * mu / 2 - epsilons / mu) for sign in (1, -1))
    deltas = above - np.exp(epsilons) * below
    curve = TradeOff.of_profile(epsilons, deltas)
    most = largest_probability(curve, coins, guesses, right)
    assert not refuted(curve, coins, guesses, right, most * (1 - 1e-6))
    if most < 0.999:
        assert refuted(curve, coins, guesses, right, most * (1 + 1e-6) + 1e-9)
        assert most - 1e-9 <= curve_p_value(curve, coins, guesses, right) <= most * (1 + 1e-4) + 1e-9


def test_p_values_of_sound_runs_are_rarely_small_and_those_of_others_are() -> None:
    """Independent Gaussian scores, whose curve is exact; the generator is seeded, so this is no chance."""
    draws, curve, coins = np.random.default_rng(0), TradeOff.of(gaussian(1.0)), 200

    def p_values(mu: float) -> list[float]:
        found = []
        for _ in range(100):
            there = draws.random(coins) < 0.5
            scores = mu * there + draws.standard_normal(coins) - mu / 2
            right = ((scores > 0) == there)[np.argsort(-abs(scores))]
            counts = (coins, most_certain(coins))
            found.append(min(curve_p_value(curve, coins, n, int(right[:n].sum())) for n in counts))
        return found

    assert np.mean(np.array(p_values(1.0)) < 0.1) < 0.1
    assert np.mean(np.array(p_values(4.0)) < 0.01) > 0.9


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_curve_of_one_gaussian_is_its_closed_form(mu: float) -> None:
    """Dong, Roth & Su 2022, equation 6. The lines lie above the curve, by little."""
    curve = TradeOff.of(gaussian(mu))
    for false in (1e-3, 0.01, 0.2, 0.5, 0.9):
        exact = stats.norm.cdf(stats.norm.ppf(false) + mu)
        assert exact <= curve.most_true(false) * (1 + 1e-9)
        assert curve.most_true(false) == pytest.approx(exact, rel=2e-3)
        assert curve.least_false(exact) == pytest.approx(false, rel=2e-2)


def test_the_curve_of_sampled_releases_is_above_every_threshold_of_the_mixture() -> None:
    """One Poisson release: thresholds on the output have closed forms, in both directions."""
    rate, z = 0.3, 0.8
    curve = TradeOff.of([Event(z, "poisson", "add-remove", rate=rate)])
    for x in np.linspace(-3, 4, 15):
        absent, present = stats.norm.sf(x / z), stats.norm.sf((x - 1) / z)
        mixed = (1 - rate) * absent + rate * present
        assert mixed <= curve.most_true(absent) + 1e-9
        assert 1 - absent <= curve.most_true(1 - mixed) + 1e-9
    assert curve.most_true(absent) < present


@pytest.mark.parametrize(("mu", "coins"), [(1.0, 4000), (0.3, 4000)])
def test_sound_runs_are_not_refuted_more_often_than_stated(mu: float, coins: int) -> None:
    """Each of 200 sound runs is refuted with probability 0.05 at most; flake rate 1e-6."""
    generator, curve, refutations = np.random.default_rng(5), TradeOff.of(gaussian(mu)), 0
    for _ in range(200):
        there = generator.random(coins) < 0.5
        scores = generator.standard_normal(coins) / mu + there - 0.5
        surest = np.argsort(-abs(scores))[:125]
        refutations += refuted(curve, coins, 125, int(((scores > 0) == there)[surest].sum()), 0.05)
    assert refutations <= stats.binom.isf(1e-6, 200, 0.05)


def test_it_holds_for_guesses_that_depend_on_each_other() -> None:
    """With probability delta all coins are told, else none: the worst case of (0, delta)-DP."""
    delta, coins = 0.02, 40
    curve = TradeOff.of_profile(np.zeros(1), np.array([delta]))
    for right in (30, 40):
        exact = delta + (1 - delta) * float(stats.binom.sf(right - 1, coins, 0.5))
        assert not refuted(curve, coins, coins, right, exact * (1 - 1e-6))
    assert refuted(curve, coins, coins, 40, 3 * delta)


def test_one_run_proves_three_fifths_of_a_gaussian_claim() -> None:
    generator, events, delta = np.random.default_rng(0), gaussian(1.0), 1e-5
    claimed = epsilon(events, delta).epsilon
    there = generator.random(20_000) < 0.5
    scores = generator.standard_normal(20_000) + there - 0.5
    right = ((scores > 0) == there)[np.argsort(-abs(scores))]
    assert 0.6 * claimed < proved_by_curves(events, right, delta, 0.95) < claimed


def test_guesses_by_chance_prove_nothing() -> None:
    right = np.random.default_rng(1).random(5000) < 0.5
    assert proved_by_curves(gaussian(1.0), right, 1e-5, 0.95) == 0
    assert proved_by_curves(gaussian(1.0), right[:0], 1e-5, 0.95) == 0


def test_the_attack_curve_counts_all_thresholds() -> None:
    there = np.array([True, False, True, False, True, True])
    curve = AttackCurve.of(np.array([5.0, 4.0, 3.0, 3.0, 2.0, 1.0]), there)
    assert [curve.true_rate(rate) for rate in (0.0, 0.4, 0.5, 1.0)] == [0.25, 0.25, 0.25, 1.0]
    assert math.isclose(curve.true_rate(0.99), 0.25)
