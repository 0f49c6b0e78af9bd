"""The odds of attacks: above the best test's where that is known, and not far above."""

from __future__ import annotations

import pytest
from scipy import stats

from fedpriv.accounting import Event
from fedpriv.accounting.attack_odds import FALSE_POSITIVE_RATES, attack_odds


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("count", [1, 9])
def test_bounds_are_close_to_the_best_test_of_gaussians(multiplier: float, count: int) -> None:
    """Neyman and Pearson: at a false positive rate a the best test finds Phi(Phi^-1(a) + mu)."""
    mu = count**0.5 / multiplier
    odds = attack_odds([Event(multiplier, "none", "add-remove", count=count)])
    best = stats.norm.cdf(mu / 2)
    assert best <= odds.accuracy <= best + 1e-3
    for rate in FALSE_POSITIVE_RATES:
        best = stats.norm.cdf(stats.norm.ppf(rate) + mu)
        assert best <= odds.found[rate] <= min(1.0, 1.6 * best)


def test_a_replaced_unit_is_found_as_with_half_the_noise() -> None:
    replaced = attack_odds([Event(2.0, "none", "replace-one")])
    moved = attack_odds([Event(1.0, "none", "add-remove")])
    assert replaced.accuracy == pytest.approx(moved.accuracy, abs=1e-3)
    assert replaced.found[0.01] == pytest.approx(moved.found[0.01], rel=0.02)


def test_secret_sampling_lowers_the_odds() -> None:
    odds = [attack_odds([Event(1.0, "poisson", "add-remove", rate=q, count=50)]) for q in (0.01, 0.1)]
    assert 0.5 < odds[0].accuracy < odds[1].accuracy < 1
    assert 0.001 < odds[0].found[0.001] < odds[1].found[0.001]


def test_little_noise_bounds_nothing_and_much_noise_all() -> None:
    none = attack_odds([Event(0.01, "none", "add-remove", count=100)])
    assert none.accuracy == pytest.approx(1)
    assert none.found == dict.fromkeys(FALSE_POSITIVE_RATES, 1.0)
    much = attack_odds([Event(1e4, "none", "add-remove")])
    assert much.accuracy < 0.501
    assert much.found[0.01] < 0.011
