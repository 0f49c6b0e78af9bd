"""From a budget to the noise: the one scale at which a schedule spends it and not more.

>>> release = Event(1.0, "none", "add-remove", count=4)
>>> scale = calibrate([release], Budget(1.0, 1e-5, "gdp-clt"))
>>> round(scale, 1)
7.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv import _check
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.events import Event, scaled
from fedpriv.accounting.methods import epsilon

_TIGHT = 0.997
_LARGEST = 1e9


def calibrate(events_at_scale_one: Sequence[Event], budget: Budget) -> float:
    """The scale s for which the events with multipliers s z spend 0.99 to 1 of the budget's epsilon.

    0.0 for an infinite budget. The spent epsilon is evaluated at the returned scale, so it never passes
    the budget (by the budget's method).

    Raises:
        ArgumentError: where no scale meets the budget, or any does.
        UnsupportedEvent: where the budget's method cannot account for the events.
    """
    if math.isinf(budget.epsilon):
        return 0.0
    if not events_at_scale_one:
        raise _check.fail("events", [], "hold at least one release")

    def excess(log_scale: float) -> float:
        """log of spent / budget, falling in the scale."""
        events = [scaled(event, math.exp(log_scale)) for event in events_at_scale_one]
        spent = epsilon(events, budget.delta, budget.method).epsilon
        return math.log(max(spent, 1e-300) / budget.epsilon) if spent < math.inf else 700.0

    low, high = _bracket(excess, budget)
    return math.exp(_search(excess, low, high))


def _bracket(excess, budget):  # type: ignore[no-untyped-def]
    position = 0.0
    value = excess(position)
    step = math.log(2)
    while value > 0:
        last = (position, value)
        position += step
        step *= 1.5
        if position > math.log(_LARGEST):
            raise _check.fail(
                "epsilon", budget.epsilon, "be reachable", "even a noise scale of 1e9 spends more"
            )
        value = excess(position)
        if value <= 0:
            return last, (position, value)
    while value <= 0:
        last = (position, value)
        position -= step
        step *= 1.5
        if position < -math.log(_LARGEST):
            raise _check.fail(
                "epsilon", budget.epsilon, "be reachable", "any noise at all already spends less"
            )
        value = excess(position)
    return (position, value), last


def _search(excess, low, high):  # type: ignore[no-untyped-def]
    """low = (x, excess > 0), high = (x, excess <= 0): an x with excess in [log 0.99.., 0]."""
    aim = math.log(_TIGHT)
    for turn in range(60):
        if high[1] > math.log(0.994):
            return high[0]
        guess = low[0] + (low[1] - aim) * (high[0] - low[0]) / (low[1] - high[1])
        inside = low[0] + 0.02 * (high[0] - low[0]) < guess < high[0] - 0.02 * (high[0] - low[0])
        if not inside or turn % 4 == 3:
            guess = (low[0] + high[0]) / 2
        value = excess(guess)
        if value > 0:
            low = (guess, value)
        else:
            high = (guess, value)
    raise _check.fail("epsilon", math.nan, "be reachable")
