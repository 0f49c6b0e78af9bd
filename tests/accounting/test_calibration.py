"""From a budget to the noise, on the safe side."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, Event, UnsupportedEvent, calibrate, epsilon, scaled
from fedpriv.accounting.calibration import search


def share(events: list[Event], budget: Budget) -> float:
    scale = calibrate(events, budget)
    spent = epsilon([scaled(event, scale) for event in events], budget.delta, budget.method)
    return spent.epsilon / budget.epsilon


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.floats(0.2, 5), st.integers(1, 200)), min_size=1, max_size=4),
    st.floats(1e-3, 0.5),
    st.floats(0.05, 20),
    st.sampled_from([1e-5, 1e-9]),
    st.sampled_from(["pld", "gdp-clt"]),
)
def test_spends_the_budget_and_not_more(
    runs: list[tuple[float, int]], rate: float, target: float, delta: float, method: str
) -> None:
    events = [Event(z, "poisson", "add-remove", rate=rate, count=n) for z, n in runs]
    assert 0.99 <= share(events, Budget(target, delta, method)) <= 1


@pytest.mark.parametrize(
    ("event", "method"),
    [
        (Event(1.0, "poisson", "add-remove", 0.01, count=100), "rdp"),
        (Event(1.0, "poisson", "replace-one", 0.01, count=100), "pld"),
        (Event(1.0, "without-replacement", "replace-one", 0.01, count=100), "pld"),
        (Event(1.0, "without-replacement", "replace-one", 0.01, count=100), "rdp"),
        (Event(1.0, "none", "replace-one", count=100), "pld"),
        (Event(1.0, "poisson", "add-remove", 0.01, truncation=1e-13, count=100), "pld"),
    ],
)
@pytest.mark.parametrize("target", [pytest.param(0.5, marks=pytest.mark.slow), 8.0])
def test_each_sampler_and_method(event: Event, method: str, target: float) -> None:
    assert 0.99 <= share([event], Budget(target, 1e-6, method)) <= 1


@pytest.mark.parametrize("target", [1e-4, 50.0])
def test_extreme_budgets(target: float) -> None:
    event = Event(1.0, "poisson", "add-remove", 1e-3, count=100)
    assert 0.99 <= share([event], Budget(target, 1e-5)) <= 1


@pytest.mark.slow
def test_a_schedule_of_many_multipliers_keeps_its_shape() -> None:
    events = [Event(float(z), "poisson", "add-remove", 1e-3) for z in np.geomspace(2.0, 1.0, 1000)]
    assert 0.99 <= share(events, Budget(1.0, 4e-7)) <= 1


def test_gdp_clt_calibrates_to_less_noise_than_pld() -> None:
    events = [Event(1.0, "poisson", "add-remove", 1e-3, count=1000)]
    scale = calibrate(events, Budget(1.0, 4e-7, "gdp-clt"))
    truth = epsilon([scaled(events[0], scale)], 4e-7).epsilon
    assert truth == pytest.approx(4.54, abs=0.1)


@pytest.mark.slow
def test_a_budget_that_epsilon_jumps_past_is_not_exceeded() -> None:
    """(1 + e^epsilon) times the truncation passes delta at 4.6, so no noise spends just 8."""
    event = Event(1.0, "poisson", "add-remove", 0.01, truncation=1e-10, count=100)
    assert 0 < share([event], Budget(8.0, 1e-6)) < 4.7 / 8


def test_a_budget_below_the_resolution_is_not_exceeded() -> None:
    """Delta alone covers the loss: epsilon falls from 1e-9 to 0 at once."""
    events = [Event(float(z), "poisson", "add-remove", 1e-3, count=10) for z in np.geomspace(2.0, 1.0, 10)]
    assert share(events, Budget(1e-15, 1e-6)) <= 1


def test_an_infinite_budget_needs_no_noise() -> None:
    assert calibrate([Event(1.0, "none", "add-remove")], Budget(math.inf, 1e-5)) == 0.0


@pytest.mark.parametrize(
    ("events", "budget"),
    [
        ([], Budget(1.0, 1e-5)),
        ([Event(0.0, "none", "add-remove")], Budget(1.0, 1e-5)),
        ([Event(1.0, "poisson", "add-remove", 0.01, truncation=1e-5)], Budget(1.0, 1e-5)),
        ([Event(1.0, "poisson", "add-remove", 0.1), Event(0.0, "none", "add-remove")], Budget(1.0, 1e-5)),
    ],
)
def test_budgets_that_no_noise_meets_are_refused(events: list[Event], budget: Budget) -> None:
    with pytest.raises(ArgumentError):
        calibrate(events, budget)


def test_delta_does_not_replace_the_noise() -> None:
    """Almost no noise is enough where a unit is hardly ever sampled, and it is unprotected where it is."""
    budget = Budget(1.0, 1e-5)
    for rate, count in ((1.9e-5, 1), (1.9e-7, 100)):
        with pytest.raises(
            ArgumentError, match=r"delta is 1e-05; it must be below 9\.5.*would replace the noise"
        ):
            calibrate([Event(1.0, "poisson", "add-remove", rate, count=count)], budget)
    assert calibrate([Event(1.0, "poisson", "add-remove", 1e-3)], budget) > 0.1


def test_a_budget_that_no_scale_meets_is_named() -> None:
    with pytest.raises(ArgumentError, match="epsilon=1e-09 at delta=1e-05 needs a noise scale above 1e9"):
        calibrate([Event(1.0, "none", "add-remove", count=4)], Budget(1e-9, 1e-5, "zcdp"))


def test_a_nan_epsilon_counts_as_too_large() -> None:
    def excess(log_scale: float) -> float:
        return math.nan if log_scale < 0 else -5.0

    assert search(excess, Budget(1.0, 1e-5), 0.5, -1.5)[0] >= 0


def test_a_jump_is_found_by_halving() -> None:
    seen: list[float] = []

    def excess(log_scale: float) -> float:
        seen.append(log_scale)
        return 20 - log_scale if log_scale < 11.2 else -600.0

    assert 0 <= search(excess, Budget(1.0, 1e-5), 0.0, -1.5)[0] - 11.2 < 1e-6
    assert len(seen) < 50


def test_unsupported_events_are_refused() -> None:
    event = Event(1.0, "poisson", "replace-one", 0.1)
    with pytest.raises(UnsupportedEvent, match="rdp"):
        calibrate([event], Budget(1.0, 1e-5, "rdp"))
