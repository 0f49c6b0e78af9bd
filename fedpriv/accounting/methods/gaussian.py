"""The exact privacy curve of the Gaussian mechanism without sampling.

mu-GDP (Dong, Roth & Su 2019, corollary 1; Balle & Wang 2018, theorem 8; Du 2021, equation 1):
delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), mu = sensitivity / noise std.
A composition is again Gaussian: its mu^2 is the sum of the releases' mu^2.

>>> round(epsilon(0.5, 1e-5), 2)
1.99
"""

from __future__ import annotations

import math

from fedpriv._internal.lazy import scipy

# Above this mu, epsilon is about mu^2 / 2 > 5e11 and exceeds the precision of doubles.
_MAX_MU = 1e6


def log_delta(mu: float, epsilon: float) -> float:
    """log delta(epsilon) of mu-GDP for mu > 0. It is accurate for very small delta, too."""
    high = float(scipy.special.log_ndtr(mu / 2 - epsilon / mu))
    low = epsilon + float(scipy.special.log_ndtr(-mu / 2 - epsilon / mu))
    ratio = -math.expm1(min(low - high, 0.0))
    return high + math.log(ratio) if ratio > 0 else -math.inf


def epsilon(mu: float, delta: float) -> float:
    """The epsilon >= 0 of mu-GDP at ``delta`` in (0, 1), rounded up; infinite if delta <= 0 or mu > 1e6."""
    if mu <= 0 or delta >= 1:
        return 0.0
    if delta <= 0 or mu > _MAX_MU:
        return math.inf
    target = math.log(delta)
    if log_delta(mu, 0.0) <= target:
        return 0.0
    # delta(eps) <= Phi(mu/2 - eps/mu), so delta(top) is always below the requested delta.
    top = mu * (mu / 2 + math.sqrt(2 * -target) + 1)
    found = scipy.optimize.brentq(lambda eps: log_delta(mu, eps) - target, 0.0, top, xtol=1e-14, rtol=1e-13)
    return float(found) * (1 + 1e-9) + 1e-13
