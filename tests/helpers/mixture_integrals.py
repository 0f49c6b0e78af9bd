"""Delta of one release by adaptive integration, a reference for the PLD."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

from fedpriv.accounting.pld import privacy_loss


def exact(q: float, z: float, eps: float) -> tuple[float, float]:
    """delta(eps) of removal and of addition, by adaptive integration."""

    def base(x: float) -> mp.mpf:
        return mp.npdf(x, 0, z)

    def mixed(x: float) -> mp.mpf:
        return (1 - q) * mp.npdf(x, 0, z) + q * mp.npdf(x, 1, z)

    def part(p: Callable[[float], mp.mpf], r: Callable[[float], mp.mpf]) -> float:
        ends = [-14 * z, -3 * z, 0, 0.5, 1, 1 + 3 * z, 1 + 14 * z]
        top = float(privacy_loss.position("poisson", q, np.array([[z]]), np.array([[eps]]))[0, 0])
        low = float(privacy_loss.position("poisson", q, np.array([[z]]), np.array([[-eps]]))[0, 0])
        turn = [value for value in (top, low) if np.isfinite(value) and ends[0] < value < ends[-1]]
        with mp.workdps(25):
            return float(mp.quad(lambda x: max(p(x) - mp.exp(eps) * r(x), mp.mpf(0)), sorted(ends + turn)))

    return part(mixed, base), part(base, mixed)
