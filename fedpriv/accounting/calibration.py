"""From a budget to the noise: the one scale at which a schedule spends it and not more.

>>> release = Event(1.0, "none", "add-remove", count=4)
>>> scale = calibrate([release], Budget(1.0, 1e-5, "gdp-clt"))
>>> round(scale, 1)
7.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedpriv._internal import validation
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.events import Event, ever_drawn, scaled, tally
from fedpriv.accounting.methods import quantisation
from fedpriv.accounting.methods.registry import epsilons

# A search ends where the log of the spent share of the budget is in [_LEAST, _MOST]; it aims between.
_LEAST, _AIM, _MOST = math.log(0.995), math.log(0.998), -1e-9
_LARGEST = math.log(1e9)
_FAR = 10.0  # a log of the spent share, and a slope of it, that tells of a jump
_COARSE = 12
# Where epsilon jumps past the budget, no scale spends just that.
_JUMP = 1e-7


def calibrate(events_at_scale_one: Sequence[Event], budget: Budget) -> float:
    """The scale s for which the events with multipliers s z spend 0.99 to 1 of the budget's epsilon.

    Less where epsilon jumps past the budget: there no noise spends just that. 0.0 for an infinite
    budget. The spent epsilon is evaluated at the returned scale, so by the budget's method it never
    passes the budget.

    Raises:
        ArgumentError: where no scale meets the budget, or any does, or delta covers most of the chance that a
            unit is sampled at all.
        UnsupportedEvent: where the budget's method cannot account for the events.
    """
    if math.isinf(budget.epsilon):
        return 0.0
    counts = tally(events_at_scale_one)
    if not any(0 < event.noise_multiplier < math.inf for event in counts):
        raise validation.fail("events", list(counts), "hold a release whose noise can be scaled")
    _refuse_paying_by_delta(counts, budget.delta)
    events = [replace(event, count=n) for event, n in counts.items()]
    start, slope = 0.0, -1.5
    if len(events) > _COARSE:
        # A cheap upper bound finds where to look, and how steep it is there.
        floors = quantisation.floors(events, _COARSE)
        start, slope = search(_excess([floors[event] for event in events], budget), budget, start, slope)
    return math.exp(search(_excess(events, budget), budget, start, slope)[0])


def _refuse_paying_by_delta(counts: Mapping[Event, int], delta: float) -> None:
    """Raises ArgumentError where delta is half of a unit's chance of being in a cohort, or more: hardly any
    noise then meets any budget, and whoever is drawn is released all but in the clear."""
    seen = ever_drawn(counts)
    if 2 * delta >= seen:
        hint = f"a unit is sampled with probability {seen:.3g}, and delta would pay for it in place of noise"
        raise validation.fail("delta", delta, f"be below {seen / 2:.3g}", hint)


def _excess(events: Sequence[Event], budget: Budget) -> Callable[[float], float]:
    """log(spent / budget) as a function of the log of the scale: falling."""

    def excess(log_scale: float) -> float:
        run = [scaled(event, math.exp(log_scale)) for event in events]
        spent = epsilons([run], budget.delta, budget.method, lower=False)[0].epsilon
        return min(math.log(max(spent, 1e-300) / budget.epsilon), 1e3)

    return excess


def search(excess: Callable[[float], float], budget: Budget, at: float, slope: float) -> tuple[float, float]:
    """(log scale with excess in [_LEAST, _MOST], slope there), by secants kept inside a bracket."""
    low, high = -math.inf, math.inf
    value = excess(at)
    for turn in range(100):
        if _LEAST <= value <= _MOST:
            return at, slope
        low, high = (low, min(high, at)) if value <= 0 else (max(low, at), high)  # NaN is too much
        # Far from the target only the direction counts.
        step = min(max((_AIM - value) / slope, -2.5), 2.5)
        guess = at + step
        if high - low < _JUMP:
            return high, slope
        halve = turn % 8 == 7 or abs(value) > _FAR
        if not low < guess < high or (halve and math.isfinite(high - low)):
            guess = (low + high) / 2
        if abs(guess) > _LARGEST:
            raise validation.fail(
                "epsilon",
                budget.epsilon,
                "be one that a noise scale between 1e-9 and 1e9 spends",
                "it is met with next to no noise" if value <= 0 else "raise epsilon or delta",
            )
        found = excess(guess)
        if guess != at and abs(found) < 1e3 and abs(value) < 1e3 and found != value:
            slope = max(min((found - value) / (guess - at), -0.05), -_FAR)
        at, value = guess, found
    raise validation.fail("epsilon", budget.epsilon, "be reachable", "the search did not settle")
