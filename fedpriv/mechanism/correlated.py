"""Correlated noise: each release takes back a part of the noise of the releases before it.

Source: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", sections 3 and 4; the square
root's coefficients are those of Fichtenberger et al. 2023. Sums of gradients are what a model learns from, so
noise that cancels in sums costs less accuracy than independent noise.

C is the lower-triangular Toeplitz matrix with the first b coefficients c_0, ..., c_{b-1} of (1 - x)^(-1/2),
divided by their norm, so that no column's norm exceeds 1. In multiples of z S, the noise is y = C^-1 w
with w independent standard normal:

    y_t = (w_t - c_1 y_{t-1} - ... - c_{b-1} y_{t-b+1}) / c_0.

C times the released sums is C times the true sums plus independent noise of std z S. A unit that takes part
only in releases at least b apart meets each row of C at most once. Its one participation in the rows t, ...,
t+b-1 moves them by a vector of norm at most S: a Gaussian release of multiplier z.

>>> round(sum(c * c for c in coefficients(8)), 12)
1.0
>>> coefficients(1), prefix_noise(1, 100)
((1.0,), 7.106335201775948)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import cache

from torch import Tensor

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np


@cache
def coefficients(bands: int) -> tuple[float, ...]:
    """c_0, ..., c_{b-1}: positive and falling, with norm 1.

    Positive falling coefficients have all roots outside the unit circle, so the recursion is stable.

    Raises ArgumentError unless ``bands`` is an integer of at least 1.
    """
    root = [1.0]
    for k in range(1, validation.integer("noise-bands", bands, minimum=1)):
        root.append(root[-1] * (2 * k - 1) / (2 * k))
    norm = math.sqrt(math.fsum(c * c for c in root))
    return tuple(c / norm for c in root)


def inverse(bands: int, rounds: int) -> tuple[float, ...]:
    """The first column of C^-1 for ``rounds`` releases; C^-1 is Toeplitz, too."""
    c = np.array(coefficients(bands))
    found = np.zeros(rounds)
    for t in range(rounds):
        past = min(t, bands - 1)
        carried = float(c[1 : past + 1] @ found[t - past : t][::-1])
        found[t] = (float(t == 0) - carried) / c[0]
    return tuple(found.tolist())


def prefix_noise(bands: int, rounds: int) -> float:
    """The root mean square, over T releases, of the noise std of the sum of all releases so far, at z S = 1.

    It is sqrt((T + 1) / 2) for independent noise.
    """
    sums = np.cumsum(np.array(inverse(bands, rounds)))
    return float(np.sqrt(np.mean(np.cumsum(sums**2))))


class NoiseRecursion:
    """Turns independent standard normal numbers into correlated ones, release by release.

    It keeps the last b - 1 noises of a run in memory, 8 (b - 1) bytes for each parameter. They must never be
    stored: who reads them can subtract them. A run that is resumed begins a new recursion, whose noise is
    independent of the old one, so the guarantee stays.
    """

    def __init__(self, bands: int) -> None:
        """The recursion before its first release, with ``bands`` bands >= 1."""
        self._coefficients = coefficients(bands)
        self._past: deque[tuple[Tensor, ...]] = deque(maxlen=bands - 1)

    def following(self, normals: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y_t of each block (float64), from w_t: independent standard normal numbers of the same shapes."""
        first, *others = self._coefficients
        noises = [w.double() for w in normals]
        for c, past in zip(others, self._past, strict=False):  # the newest first
            noises = [noise.sub(y, alpha=c) for noise, y in zip(noises, past, strict=True)]
        found = tuple(noise / first for noise in noises)
        self._past.appendleft(found)
        return found

    def __reduce__(self) -> str | tuple[object, ...]:
        """Raises TypeError: past noise must not be stored or sent."""
        raise TypeError("past noise must not be stored or sent: who reads it can subtract it from a release")
