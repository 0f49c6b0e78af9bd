"""From a budget and the noise to the number of rounds, or to the sampling rate, on the safe side.

``calibration`` answers the third question, for the noise.

>>> budget = Budget(2.0, 1e-5)
>>> rounds([Event(10.0, "none", "add-remove")], budget)
25
>>> round(sampling_rate([Event(1.0, "poisson", "add-remove", count=100)], budget), 2)
0.03
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedpriv._internal import validation
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.calibration import search
from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.methods.registry import epsilons

# More rounds than this count as any number.
MOST_ROUNDS = 10**8
_LEAST_RATE = 1e-9


def rounds(round_events: Sequence[Event], budget: Budget) -> int:
    """The largest number of repetitions of ``round_events`` that the budget affords; 0 if none.

    One more would pass the budget, up to the lattice's accuracy for the PLD method; the number itself never
    does.

    Raises:
        ArgumentError: where ``MOST_ROUNDS`` are affordable.
        UnsupportedEvent: where the budget's method cannot account for the events.
    """
    counts = tally(round_events)

    def excess(repeats: int) -> float:
        run = [replace(event, count=n * repeats) for event, n in counts.items()]
        spent = epsilons([run], budget.delta, budget.method, lower=False)[0].epsilon
        return spent - budget.epsilon if math.isfinite(spent) else math.inf

    if excess(1) > 0:
        return 0
    low, high = 1, 4
    while excess(high) <= 0:
        if high >= MOST_ROUNDS:
            hint = f"{MOST_ROUNDS:,} rounds spend less"
            raise validation.fail("epsilon", budget.epsilon, "be one that some number of rounds spends", hint)
        low, high = high, min(4 * high, MOST_ROUNDS)
    return _last(excess, low, high)


def _last(excess: Callable[[int], float], low: int, high: int) -> int:
    """The last number with excess <= 0, between ``low`` (which has it) and ``high`` (which has not)."""
    below, above = excess(low), excess(high)
    turn = 0
    while high - low > 1:
        middle = (low + high) // 2
        if turn % 3 < 2 and math.isfinite(above) and above > below:
            # Epsilon is smooth in the number of rounds: a straight line finds it in a few steps, and a
            # step to each side of where it crosses closes the bracket.
            guess = low + (high - low) * -below / (above - below)
            middle = min(max(math.floor(guess) + turn % 3, low + 1), high - 1)
        value = excess(middle)
        low, below, high, above = (middle, value, high, above) if value <= 0 else (low, below, middle, value)
        turn += 1
    return low


def sampling_rate(events_at_rate_one: Sequence[Event], budget: Budget) -> float:
    """The rate q in (0, 1] for which the events, with rates multiplied by q, spend the budget.

    0.99 to 1 of it, or less where epsilon jumps past it or where q = 1 spends less; never more. Sizes of
    cohort and population are left out of the events, since m = q N need not be whole.

    Raises:
        ArgumentError: where no rate above 1e-9 meets the budget, for events without sampling and for
            truncated cohorts, whose truncation depends on the rate.
        UnsupportedEvent: where the budget's method cannot account for the events.
    """
    counts = tally(events_at_rate_one)
    for event in counts:
        if event.sampling == "none" or event.truncation:
            raise validation.fail("events", event, "be sampled, from cohorts that are not truncated")

    def excess(minus_log_rate: float) -> float:
        rate = math.exp(-minus_log_rate)
        run = [
            replace(event, rate=event.rate * rate, cohort=None, population=None, count=n)
            for event, n in counts.items()
        ]
        spent = epsilons([run], budget.delta, budget.method, lower=False)[0].epsilon
        return min(math.log(max(spent, 1e-300) / budget.epsilon), 1e3)

    if math.isinf(budget.epsilon) or excess(0.0) <= 0:
        return 1.0
    if excess(-math.log(_LEAST_RATE)) > 0:
        raise validation.fail(
            "epsilon", budget.epsilon, f"be one that a rate above {_LEAST_RATE:g} meets", "raise the noise"
        )
    return math.exp(-search(excess, budget, 0.0, -1.0)[0])
