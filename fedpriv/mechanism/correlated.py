"""Correlated noise: each release takes back a part of the noise of the releases before it.

Source: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", sections 3 and 4; the square
root's coefficients are those of Fichtenberger et al. 2023. Sums of gradients are what a model learns from, so
noise that cancels in sums costs less accuracy than independent noise.

C is the lower-triangular Toeplitz matrix with the first b coefficients q_0 = 1, q_1, ... of (1 - x)^(-1/2),
in steps of 2^-16, divided by their norm: c_k = q_k / norm(q). So no column's norm exceeds 1. In multiples of
z S, the noise is y = C^-1 w with w independent standard normal:

    y_t = (w_t - c_1 y_{t-1} - ... - c_{b-1} y_{t-b+1}) / c_0.

C times the released sums is C times the true sums plus independent noise of std z S. A unit that takes part
only in releases at least b apart meets each row of C at most once. Its one participation in the rows t, ...,
t+b-1 moves them by a vector of norm at most S: a Gaussian release of multiplier z.

Exact noise (:mod:`fedpriv.mechanism.rounded_gaussian`) is the integers

    n_t = round(norm(q) s w_t - q_1 n_{t-1} - ... - q_{b-1} n_{t-b+1}),

for a std of s steps. With a sum of x_t steps, r_t = x_t + n_t is released. Let g_t be the Gaussian release
x_t + q_1 x_{t-1} + ... + norm(q) s w_t of the first kind. Then r_t = round(g_t - q_1 r_{t-1} - ...), because
n_{t-k} = r_{t-k} - x_{t-k} and x_t is an integer. So what is released follows from g_1, ..., g_t alone, which
is post-processing. The sums q_1 n_{t-1} + ... are computed in integers, without rounding; norm(q) s is off by
2^-51 of itself, which the spare part of :data:`fedpriv.mechanism.release.MARGIN` covers.

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

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.mechanism.gaussian import Label
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.rng import Key

_UNIT = 2**16  # of the coefficients q
# With |w| < 9.5 (but for 2^-64), the coefficients' sum below 2 sqrt(b) and that of the inverse's below 4, the
# integer sums stay below _UNIT * 2 sqrt(b) * 4 * 9.5 * norm(q) s, which is then below 2^63.
_MOST = 2.0**40  # the largest norm(q) s sqrt(b)


@cache
def multiples(bands: int) -> tuple[int, ...]:
    """q_0, ..., q_{b-1} in units of 2^-16: positive, and each at most the one before.

    Such coefficients, of which the first ones fall, have all roots outside the unit circle, so the recursion
    is stable.

    Raises ArgumentError unless ``bands`` is an integer of at least 1.
    """
    root = [1.0]
    for k in range(1, validation.integer("noise-bands", bands, minimum=1)):
        root.append(root[-1] * (2 * k - 1) / (2 * k))
    return tuple(round(_UNIT * q) for q in root)


@cache
def norm(bands: int) -> float:
    """The norm of q, which is at least 1."""
    return math.sqrt(sum(q * q for q in multiples(bands))) / _UNIT


@cache
def coefficients(bands: int) -> tuple[float, ...]:
    """c_0, ..., c_{b-1}, with norm 1."""
    return tuple(q / _UNIT / norm(bands) for q in multiples(bands))


def has_room(bands: int, most_steps: float) -> bool:
    """Whether exact noise of up to ``most_steps`` steps fits into integers of 64 bits."""
    return most_steps * norm(bands) * math.sqrt(bands) <= _MOST


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
    """Turns independent normal numbers into correlated ones, release by release: floats or integers.

    It keeps the last b - 1 noises of a run in memory, 8 (b - 1) bytes for each parameter. They must never be
    stored: who reads them can subtract them. A run that is resumed begins a new recursion, whose noise is
    independent of the old one, so the guarantee stays.
    """

    def __init__(self, bands: int) -> None:
        """The recursion before its first release, with ``bands`` bands >= 1."""
        self._bands = bands
        self._past: deque[tuple[Tensor, ...]] = deque(maxlen=bands - 1)
        self._scales: tuple[float, ...] | None = None

    def following(self, normals: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y_t of each block (float64), from w_t: independent standard normal numbers of the same shapes."""
        first, *others = coefficients(self._bands)
        noises = [w.double() for w in normals]
        for c, past in zip(others, self._past, strict=False):  # the newest first
            noises = [noise.sub(y, alpha=c) for noise, y in zip(noises, past, strict=True)]
        found = tuple(noise / first for noise in noises)
        self._past.appendleft(found)
        return found

    def rounded(self, key: Key, label: Label, like: Sequence[Tensor], scales: Sequence[float]) -> Rounded:
        """Start to draw n_t of each block, to be taken before the next release's is started.

        Args:
            key, label, like: see :class:`~fedpriv.mechanism.rounded_gaussian.Rounded`.
            scales: each block's s, the same in all releases.

        Raises:
            ArgumentError: the scales changed.
            ValueError: the integers have no room in 64 bits.
        """
        scales = tuple(scales)
        if not has_room(self._bands, max(scales)):
            raise ValueError(f"noise of {max(scales)} steps has no room with {self._bands} bands")
        if self._scales not in (None, scales):
            hint = "the sums' largest change from one unit differs from that of earlier releases"
            raise validation.fail("noise-draws", "exact", "be fast, or noise-bands be 1", hint)
        self._scales = scales
        taken = [torch.zeros(tensor.shape, dtype=torch.int64, device=tensor.device) for tensor in like]
        for q, past in zip(multiples(self._bands)[1:], self._past, strict=False):  # the newest first
            for total, n in zip(taken, past, strict=True):
                total.add_(n, alpha=q)
        return _CorrelatedRounded(self._past, norm(self._bands), taken, key, label, like, scales)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Raises TypeError: past noise must not be stored or sent."""
        raise TypeError("past noise must not be stored or sent: who reads it can subtract it from a release")


class _CorrelatedRounded(Rounded):
    """n_t of each block: round(norm(q) s w_t - f) - m for ``taken``, m + f in units of 2^-16."""

    def __init__(
        self,
        past: deque[tuple[Tensor, ...]],
        growth: float,
        taken: Sequence[Tensor],
        key: Key,
        label: Label,
        like: Sequence[Tensor],
        scales: tuple[float, ...],
    ) -> None:
        self._past, self._newest = past, past[0] if past else None
        # Shifts and masks divide by the unit, rounding down: an integer division takes ten times as long.
        raised = [total + _UNIT // 2 for total in taken]
        fractions = [(_UNIT // 2 - (total & (_UNIT - 1))).double().div_(_UNIT) for total in raised]
        self._wholes = [total.bitwise_right_shift_(_UNIT.bit_length() - 1) for total in raised]
        super().__init__(key, label, like, [growth * scale for scale in scales], fractions)
        self.scales = scales

    def take(self) -> tuple[Tensor, ...]:
        """Wait for the integers; returns one float64 tensor per block, which is past noise from now on.

        Raises ValueError where another release's noise was taken since these were started.
        """
        if self._newest is not (self._past[0] if self._past else None):
            raise ValueError("correlated noise of two releases was drawn at a time")
        found = tuple(drawn - whole for drawn, whole in zip(super().take(), self._wholes, strict=True))
        self._past.appendleft(tuple(n.long() for n in found))
        return found
