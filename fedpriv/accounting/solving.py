"""The number of rounds, or the sampling rate, that a budget affords at a given noise.

Results are rounded so that they never exceed the budget. ``calibration`` solves for the noise instead.

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

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.calibration import search
from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.methods.registry import epsilons

# A budget that affords more rounds than this is refused as effectively unlimited.
MAX_ROUNDS = 10**8
_MIN_RATE = 1e-9


def rounds(round_events: Sequence[Event], budget: Budget) -> int:
    """The largest number of repetitions of ``round_events`` that the budget affords; 0 if none.

    This number of rounds never exceeds the budget. One more round would, up to the accuracy of the lattice
    for the PLD method.

    Raises:
        ArgumentError: if the budget affords ``MAX_ROUNDS``.
        UnsupportedEvent: if the budget's method cannot account for the events.
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
        if high >= MAX_ROUNDS:
            raise ArgumentError(
                f"epsilon={budget.epsilon:g} does not limit the number of rounds: {MAX_ROUNDS:,} rounds "
                "spend less. Lower epsilon or the noise multiplier."
            )
        low, high = high, min(4 * high, MAX_ROUNDS)
    return _last(excess, low, high)


def _last(excess: Callable[[int], float], low: int, high: int) -> int:
    """The largest n with excess(n) <= 0, given excess(low) <= 0 < excess(high)."""
    below, above = excess(low), excess(high)
    turn = 0
    while high - low > 1:
        middle = (low + high) // 2
        if turn % 3 < 2 and math.isfinite(above) and above > below:
            # Epsilon is smooth in the number of rounds. Linear interpolation finds the root in a few steps,
            # and one step to each side of it closes the bracket.
            guess = low + (high - low) * -below / (above - below)
            middle = min(max(math.floor(guess) + turn % 3, low + 1), high - 1)
        value = excess(middle)
        low, below, high, above = (middle, value, high, above) if value <= 0 else (low, below, middle, value)
        turn += 1
    return low


def sampling_rate(events_at_rate_one: Sequence[Event], budget: Budget) -> float:
    """The rate q in (0, 1] for which the events, with rates multiplied by q, spend the budget.

    They spend 0.99 to 1 of it, and never more. They spend less if epsilon jumps past the budget or if q = 1
    does not reach it. Cohort and population sizes are dropped from the events, since m = q N need not be an
    integer.

    Raises:
        ArgumentError: if no rate above 1e-9 meets the budget, for events without sampling, and for truncated
            cohorts, whose truncation depends on the rate.
        UnsupportedEvent: if the budget's method cannot account for the events.
    """
    counts = tally(events_at_rate_one)
    for event in counts:
        if not event.sampling.samples or event.truncation:
            raise ArgumentError(
                f"No sampling rate can be found for {event}: the event must be sampled and its cohort must "
                "not be truncated."
            )

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
    if excess(-math.log(_MIN_RATE)) > 0:
        raise ArgumentError(
            f"epsilon={budget.epsilon:g} at delta={budget.delta:g} is exceeded at every sampling rate above "
            f"{_MIN_RATE:g}. Raise epsilon or the noise multiplier, or use fewer rounds."
        )
    return math.exp(-search(excess, budget, 0.0, -1.0)[0])
