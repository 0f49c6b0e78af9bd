"""How many rounds, and how large a cohort, a budget affords."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.events import poisson
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import METHODS, Budget, Event, UnsupportedEvent, epsilon
from fedpriv.accounting.solving import rounds, sampling_rate


@settings(max_examples=10)
@given(
    st.floats(0.6, 3), st.sampled_from([1e-3, 0.02, 0.3]), st.floats(0.3, 8), st.sampled_from(list(METHODS))
)
@pytest.mark.slow
def test_the_largest_affordable_number_of_rounds(z: float, rate: float, target: float, method: str) -> None:
    budget, event = Budget(target, 1e-6, method), poisson(z, rate)
    found = rounds([event], budget)
    spent = [epsilon([poisson(z, rate, n)], 1e-6, method).epsilon for n in (max(found, 1), found + 1)]
    assert found == 0 or spent[0] <= target
    # The lattice depends on the number of steps.
    assert spent[1] > target * (1 - 1e-3 if method == "pld" else 1)
    assert found < 200 or spent[0] >= 0.99 * target


def test_rounds_of_several_releases_that_are_charged_together() -> None:
    pair = [poisson(2.0, 0.05), poisson(1.5, 0.02)]
    found = rounds(pair, Budget(3.0, 1e-5))
    run = [replace(event, count=found) for event in pair]
    assert epsilon(run, 1e-5).epsilon == pytest.approx(3, rel=0.01)


def test_rounds_by_the_closed_form() -> None:
    """Plain Gaussian noise: T releases are one of z / sqrt(T)."""
    assert rounds([Event(10.0, "none", "add-remove")], Budget(2.0, 1e-5)) == 25
    assert epsilon([Event(2.0, "none", "add-remove")], 1e-5).epsilon == pytest.approx(1.99, abs=0.01)


def test_unaffordable_and_unlimited_rounds() -> None:
    assert rounds([poisson(0.3, 1.0)], Budget(1.0, 1e-5)) == 0
    assert rounds([poisson(0.0, 0.5)], Budget(1.0, 1e-5)) == 0
    for free in ([poisson(1.0, 0.0)], [poisson(math.inf, 1.0)], []):
        with pytest.raises(ArgumentError, match="100,000,000 rounds spend less"):
            rounds(free, Budget(1.0, 1e-5))
    with pytest.raises(UnsupportedEvent, match="rdp"):
        rounds([Event(1.0, "poisson", "replace-one", 0.1)], Budget(1.0, 1e-5, "rdp"))


@pytest.mark.parametrize(
    ("event", "method"),
    [
        (poisson(1.0, 1.0, 500), "pld"),
        (poisson(1.0, 1.0, 500), "rdp"),
        (poisson(1.0, 1.0, 500), "gdp-clt"),
        (poisson(20.0, 1.0, 500), "advanced"),
        (Event(1.0, "poisson", "replace-one", count=100), "pld"),
        (Event(1.0, "without-replacement", "replace-one", count=100), "pld"),
        (Event(2.0, "without-replacement", "replace-one", population=500, cohort=500, count=100), "rdp"),
    ],
)
@pytest.mark.parametrize("target", [2.0, 6.0])
def test_the_rate_spends_the_budget_and_not_more(event: Event, method: str, target: float) -> None:
    budget = Budget(target, 1e-6, method)
    rate = sampling_rate([event], budget)
    run = replace(event, rate=rate, population=None, cohort=None)
    assert 0.99 <= epsilon([run], 1e-6, method).epsilon / target <= 1


def test_a_jump_of_epsilon_does_not_exceed_the_budget() -> None:
    """tCDP amplifies up to q = 0.1 only."""
    budget, event = Budget(2.0, 1e-6, "tcdp"), poisson(6.0, 1.0, 500)
    rate = sampling_rate([event], budget)
    assert 0 < rate <= 0.1
    assert epsilon([replace(event, rate=rate)], 1e-6, "tcdp").epsilon <= 2.0


def test_a_tiny_rate_under_a_heavy_tail() -> None:
    """Rare cohorts and little noise: few units are ever sampled, and those are exposed."""
    event = Event(0.5, "poisson", "add-remove", count=100)
    for target in (0.01, 4.0):
        rate = sampling_rate([event], Budget(target, 1e-6))
        assert epsilon([replace(event, rate=rate)], 1e-6).epsilon == pytest.approx(target, rel=0.01)


def test_the_rate_is_one_if_the_budget_affords_it() -> None:
    assert sampling_rate([poisson(100.0, 1.0)], Budget(1.0, 1e-5)) == 1.0
    assert sampling_rate([poisson(0.1, 1.0)], Budget(math.inf, 1e-5)) == 1.0


@pytest.mark.parametrize(
    ("event", "method", "message"),
    [
        (Event(1.0, "none", "add-remove"), "pld", "must be sampled"),
        (Event(1.0, "poisson", "add-remove", 0.1, truncation=1e-9), "pld", "must be sampled"),
        (
            poisson(1.0, 1.0, 500),
            "zcdp",
            "epsilon=1 at delta=1e-05 is exceeded at every sampling rate above 1e-09",
        ),
    ],
)
def test_impossible_rates_are_refused(event: Event, method: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sampling_rate([event], Budget(1.0, 1e-5, method))
