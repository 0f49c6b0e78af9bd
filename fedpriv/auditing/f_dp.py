"""Tests of a trade-off curve, and a lower bound on epsilon, from the guesses of one run.

Each of m independent fair coins decides about one canary. The adversary makes ``guesses`` guesses, and N of
them are right. If the run has a trade-off curve with f, then for every j

    sum_{i > j} (i/m) P[N = i]  <=  1 - f( sum_{i >= j} ((guesses - i)/m) P[N = i] ),

since flipping the coin of a right guess makes it a wrong one. From P[N >= right] = tau the smallest
probabilities that this allows are computed from ``right`` down to 0. If they add up to more than 1, then
P[N >= right] < tau. The greedy order is optimal, since i / (guesses - i) increases in i.

The test needs the curve of the claim, where the test of Steinke et al. 2023 needs epsilon and delta alone. It
is much closer to the truth.

Source: Mahloujifar, Melis & Chaudhuri 2025, "Auditing f-differential privacy in one run".

>>> curve = TradeOff.of([Event(1.0, "none", "add-remove")])  # 69.1 % right at most
>>> refuted(curve, 10_000, 300, 295, 0.01), refuted(curve, 10_000, 300, 300, 0.01)
(False, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting import Event, epsilon, scaled
from fedpriv.auditing.trade_off import TradeOff

_SHARE, _FEWEST = 32, 100  # one coin in so many is guessed, the most certain ones; the least number
_LEAST_P_VALUE, _P_VALUE_TURNS = 1e-12, 20  # of the search for a p-value, and its bisections
_MOST_FACTOR, _TURNS = 64.0, 12  # of the noise in the search, and its bisections


def refuted(curve: TradeOff, coins: int, guesses: int, right: int, p_value: float) -> bool:
    """Whether so many right guesses have a probability below ``p_value`` under every run with this curve.

    Args:
        curve: the claimed trade-off curve.
        coins: m, the number of independent fair coins.
        guesses: how many coins were guessed; the number must not depend on the coins.
        right: the number of right guesses.
        p_value: tau, in (0, 1).
    """
    if not right:
        return False
    slopes, offsets = curve.slopes.tolist(), curve.offsets.tolist()
    whole, line, last = guesses / coins, 0, len(slopes) - 1
    true, false = p_value * right / coins, p_value * (guesses - right) / coins
    for i in range(right - 1, -1, -1):
        least = slopes[line] * true + offsets[line]
        while line < last and (higher := slopes[line + 1] * true + offsets[line + 1]) >= least:
            line, least = line + 1, higher
        if least > false:
            true += i / (guesses - i) * (least - false)
            false = least
            if true + false > whole:
                return True
    return False


def most_certain(coins: int) -> int:
    """How many of the guesses about so many coins count: the most certain ones, a share that is fixed."""
    return min(coins, max(_FEWEST, coins // _SHARE))


def curve_p_value(curve: TradeOff, coins: int, guesses: int, right: int) -> float:
    """An upper bound of the probability of so many right guesses under every run with this curve.

    Arguments are those of :func:`refuted`.
    """

    def found(p_value: float) -> bool:
        return refuted(curve, coins, guesses, right, p_value)

    # What is refuted at one p-value is refuted at larger ones.
    return _smallest(found, _LEAST_P_VALUE, 1.0, _P_VALUE_TURNS) if found(1.0) else 1.0


def proved_by_curves(
    events: Sequence[Event], right: NDArray[np.bool_], delta: float, confidence: float
) -> float:
    """A lower bound on epsilon, for runs whose curve is that of ``events`` with all noise scaled by a factor.

    Args:
        events: the claimed events.
        right: whether each guess was right, bool (m,), sorted by descending certainty. The most certain ones
            are counted, which is about the best for Gaussian noise.
        delta: the delta of the claim.
        confidence: the confidence of the bound, in (0, 1).
    """
    guesses = most_certain(len(right))
    correct = int(right[:guesses].sum())

    def impossible(factor: float) -> bool:
        curve = TradeOff.of([scaled(event, factor) for event in events])
        return refuted(curve, len(right), guesses, correct, 1 - confidence)

    if not guesses or not impossible(_MOST_FACTOR):
        return 0.0
    factor = _smallest(impossible, 1 / _MOST_FACTOR, _MOST_FACTOR, _TURNS)
    return epsilon([scaled(event, factor) for event in events], delta).epsilon_lower or 0.0


def _smallest(holds: Callable[[float], bool], low: float, high: float, turns: int) -> float:
    """About the smallest number from which on ``holds``, by bisections on a logarithmic scale; it holds."""
    low, high = math.log(low), math.log(high)
    for _ in range(turns):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)
