"""Noise calibration: the noise scale at which a schedule spends a budget.

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
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.events import Event, ever_drawn, of_costliest_group, scaled, tally
from fedpriv.accounting.methods import quantisation
from fedpriv.accounting.methods.registry import epsilons

# The search stops if log(spent / budget) is in [_MIN_EXCESS, _MAX_EXCESS]. It aims at _TARGET_EXCESS.
_MIN_EXCESS, _TARGET_EXCESS, _MAX_EXCESS = math.log(0.995), math.log(0.998), -1e-9
_MAX_LOG_SCALE = math.log(1e9)
_JUMP_SLOPE = 10.0  # a larger |log(spent / budget)|, or slope of it, indicates a jump of epsilon
_COARSE_MULTIPLIERS = 12
# A bracket of log scales narrower than this contains a jump of epsilon: no scale spends the budget exactly.
_MIN_BRACKET = 1e-7


def calibrate(events_at_scale_one: Sequence[Event], budget: Budget) -> float:
    """The scale s for which the events with multipliers s z spend 0.99 to 1 of the budget's epsilon.

    If epsilon jumps past the budget, no scale spends it exactly, and the result spends less. For an infinite
    budget the scale is 0.0. The spent epsilon is evaluated at the returned scale, so it never exceeds the
    budget by the budget's method.

    Raises:
        ArgumentError: if no scale meets the budget, if every scale meets it, or if delta is at least half of
            the probability that a unit is sampled at all.
        UnsupportedEvent: if the budget's method cannot account for the events.
    """
    if math.isinf(budget.epsilon):
        return 0.0
    [counts] = of_costliest_group([tally(events_at_scale_one)])
    if not any(0 < event.noise_multiplier < math.inf for event in counts):
        raise ArgumentError(
            "The noise cannot be calibrated: no event has a noise multiplier above 0 and below infinity."
        )
    _require_small_delta(counts, budget.delta)
    events = [replace(event, count=n) for event, n in counts.items()]
    start, slope = 0.0, -1.5
    if len(events) > _COARSE_MULTIPLIERS:
        # A cheap upper bound gives the start of the search and the slope there.
        floors = quantisation.floors(events, _COARSE_MULTIPLIERS)
        start, slope = search(_excess([floors[event] for event in events], budget), budget, start, slope)
    return math.exp(search(_excess(events, budget), budget, start, slope)[0])


def _require_small_delta(counts: Mapping[Event, int], delta: float) -> None:
    """Raises ArgumentError if delta is at least half of the probability that a unit is ever sampled.

    Almost no noise would then meet any epsilon, and a sampled unit would have almost no protection.
    """
    sampled = ever_drawn(counts)
    if 2 * delta >= sampled:
        hint = f"a unit is sampled with probability {sampled:.3g}, so delta would replace the noise"
        raise validation.fail("delta", delta, f"be below {sampled / 2:.3g}", hint)


def _excess(events: Sequence[Event], budget: Budget) -> Callable[[float], float]:
    """log(spent / budget) as a decreasing function of the log of the scale."""

    def excess(log_scale: float) -> float:
        run = [scaled(event, math.exp(log_scale)) for event in events]
        spent = epsilons([run], budget.delta, budget.method, lower=False)[0].epsilon
        return min(math.log(max(spent, 1e-300) / budget.epsilon), 1e3)

    return excess


def search(excess: Callable[[float], float], budget: Budget, at: float, slope: float) -> tuple[float, float]:
    """(log scale with excess in [_MIN_EXCESS, _MAX_EXCESS], slope there), by bracketed secant steps.

    Args:
        excess: a decreasing function of the log of the scale.
        budget: named in errors.
        at: the first log scale to evaluate.
        slope: a guess of the slope of ``excess`` there, negative.

    Raises ArgumentError if no log scale within +-_MAX_LOG_SCALE has such an excess.
    """
    low, high = -math.inf, math.inf
    value = excess(at)
    for turn in range(100):
        if _MIN_EXCESS <= value <= _MAX_EXCESS:
            return at, slope
        # A NaN counts as too much privacy loss.
        low, high = (low, min(high, at)) if value <= 0 else (max(low, at), high)
        # Far from the target the secant is inaccurate, so the step is limited.
        step = min(max((_TARGET_EXCESS - value) / slope, -2.5), 2.5)
        guess = at + step
        if high - low < _MIN_BRACKET:
            return high, slope
        halve = turn % 8 == 7 or abs(value) > _JUMP_SLOPE
        if not low < guess < high or (halve and math.isfinite(high - low)):
            guess = (low + high) / 2
        if abs(guess) > _MAX_LOG_SCALE:
            if value <= 0:
                reason = "is met with almost no noise: a noise scale below 1e-9. Lower epsilon."
            else:
                reason = "needs a noise scale above 1e9. Raise epsilon or delta, or use fewer rounds."
            raise ArgumentError(f"epsilon={budget.epsilon:g} at delta={budget.delta:g} {reason}")
        found = excess(guess)
        if guess != at and abs(found) < 1e3 and abs(value) < 1e3 and found != value:
            slope = max(min((found - value) / (guess - at), -0.05), -_JUMP_SLOPE)
        at, value = guess, found
    raise ArgumentError(
        f"The search for the noise that spends epsilon={budget.epsilon:g} at delta={budget.delta:g} did not "
        "converge in 100 steps. Change epsilon or delta slightly, or use accounting=rdp."
    )
