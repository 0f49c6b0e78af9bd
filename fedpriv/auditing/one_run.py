"""A lower bound on epsilon from the guesses of one run, for any mechanism.

(epsilon, delta)-differential privacy bounds the number of right guesses about independent fair coins
(Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2). More right
guesses show, at a given confidence, that epsilon is larger.

>>> round(proved_epsilon(np.ones(1000, bool), delta=1e-6, confidence=0.95), 2)
5.37
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

_COUNTS, _RATIO = 5, 4  # the number of subsets of guesses that are tried, and the ratio of their sizes


def proved_epsilon(right: NDArray[np.bool_], delta: float, confidence: float) -> float:
    """A lower bound on epsilon from guesses about independent fair coins, for any mechanism.

    Args:
        right: whether each guess was right, bool (m,), sorted by descending certainty. Bounds from the m,
            m/4, m/16, ... most certain guesses are computed, at a confidence that holds for all of them
            together.
        delta: the delta of the claim.
        confidence: the confidence of the bound, in (0, 1).

    Source: Steinke, Nasr & Jagielski 2023, theorem 5.2 and appendix D.
    """
    counts = sorted({len(right) // _RATIO**k for k in range(_COUNTS)} - {0})
    each = (1 - confidence) / max(1, len(counts))
    sums = np.cumsum(right)
    return max((_bound(len(right), n, int(sums[n - 1]), delta, each) for n in counts), default=0.0)


def _bound(coins: int, guesses: int, right: int, delta: float, p_value: float) -> float:
    """The smallest epsilon at which the p-value of so many right guesses reaches ``p_value``."""

    def excess(epsilon: float) -> float:
        return one_run_p_value(coins, guesses, right, epsilon, delta) - p_value

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    low = 0.0
    for _ in range(40):  # bisection: the p-value may jump, but it increases in epsilon
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return low


def one_run_p_value(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """An upper bound of the probability of so many right guesses under (epsilon, delta)-DP.

    With W binomial over the guesses at e^epsilon / (1 + e^epsilon), v the right guesses and m the coins:
    P[W >= v] + 2 m delta max over i of P[v - i <= W < v] / i (Steinke et al. 2023, theorem 5.2).
    """
    rate = special.expit(epsilon)
    tail = float(stats.binom.sf(right - 1, guesses, rate))
    if not right:
        return 1.0
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
    steepest = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * coins * delta * steepest)
