"""An owner's limit: it holds whatever earlier answers chose, and counts what is cut off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.accounting import Budget, Event, UnsupportedEvent, epsilon
from fedpriv.accounting.limits import share

# A run whose events are chosen once the last run's models are known: its true delta, from below.

LIMIT, FIRST = Budget(2.0, 1e-5), Event(4.0, "poisson", "add-remove", rate=1.0)
RATES = (1.0, 0.1, 0.001, 3e-5)


def within(events: Sequence[Event]) -> bool:
    return share(LIMIT, events) <= 1


def losses(rate: float, multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    """The privacy loss of (1 - q) N(0) + q N(1) over N(0), ascending, and how likely each is."""
    x = np.linspace(-12 * multiplier, 1 + 12 * multiplier, 200_001)
    ratio = math.log(rate) + (2 * x - 1) / (2 * multiplier**2)
    loss = np.logaddexp(math.log1p(-rate), ratio) if rate < 1 else ratio
    density = (1 - rate) * norm.pdf(x, 0, multiplier) + rate * norm.pdf(x, 1, multiplier)
    return loss, density * (x[1] - x[0])


def delta_at(epsilons: np.ndarray, rate: float, multiplier: float) -> np.ndarray:
    """The hockey-stick divergence of one release at each of ``epsilons``."""
    loss, likely = losses(rate, multiplier)
    above = np.append(np.cumsum(likely[::-1])[::-1], 0.0)
    below = np.append(np.cumsum((likely * np.exp(-loss))[::-1])[::-1], 0.0)
    at = np.searchsorted(loss, epsilons, side="right")
    return np.maximum(above[at] - np.exp(np.minimum(epsilons, 50.0)) * below[at], 0.0)


def delta_of_the_best_choice(fits: Callable[[Sequence[Event]], bool]) -> float:
    """Delta at the limit's epsilon, where the second run is chosen by what the first released."""
    first, likely = losses(FIRST.rate, FIRST.noise_multiplier)
    seconds = []
    for rate in RATES:
        low, high = 0.05, 400.0
        for _ in range(16):  # the least noise, to 0.02 %, with which the second run is let in
            middle = math.sqrt(low * high)
            if fits([FIRST, Event(middle, "poisson", "add-remove", rate=rate)]):
                high = middle
            else:
                low = middle
        seconds.append(delta_at(LIMIT.epsilon - first, rate, high))
    return float(likely @ np.max(seconds, axis=0))


def test_the_owners_limit_holds_for_runs_that_are_chosen_by_earlier_answers() -> None:
    """It does not for who adds events up, by PLD: one choice of four then takes delta beyond its limit."""

    def added(events: Sequence[Event]) -> bool:
        return epsilon(events, LIMIT.delta, "pld").epsilon <= LIMIT.epsilon

    assert delta_of_the_best_choice(added) > 1.3 * LIMIT.delta
    assert 0.01 * LIMIT.delta < delta_of_the_best_choice(within) < LIMIT.delta


def test_the_owners_limit_counts_what_is_cut_off_cohorts_and_gives_no_credit_without_a_theorem() -> None:
    whole = Event(8.0, "poisson", "add-remove", rate=0.1)
    cut = replace(whole, truncation=1e-7)
    assert within([whole] * 5)
    assert within([cut] * 5)
    assert not within([cut] * 6)  # 6e-7 (1 + e^2) is more than half of delta
    replaced = [Event(16.0, "poisson", "replace-one", rate=rate) for rate in (0.1, 1.0)]
    least = [next(n for n in range(1, 999) if not within([event] * n)) for event in replaced]
    assert least[0] == least[1] > 1
    fixed = Event(16.0, "without-replacement", "replace-one", rate=0.1, population=50, cohort=5)
    with pytest.raises(UnsupportedEvent, match="events under add-remove and replace-one"):
        within([whole, fixed])


def test_runs_of_everyone_count_beside_sampled_ones_of_the_other_relation() -> None:
    """A release over everyone has one noise std, whoever the neighbours are: local noise, and a silo's."""
    sampled = Event(8.0, "poisson", "add-remove", rate=0.1)
    local, same = (Event(16.0, "none", relation) for relation in ("replace-one", "add-remove"))
    for count in (40, 60, 80, 100, 120):
        assert within([sampled] + [local] * count) == within([sampled] + [same] * count)
    assert within([sampled, local])
    assert not within([sampled] + [local] * 120)
