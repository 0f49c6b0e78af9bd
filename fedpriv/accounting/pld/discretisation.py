"""The lattice, window and tilt with which privacy losses are composed.

Losses are summed by one cyclic convolution, so the window must hold nearly all of the sum's mass; and
transforms have errors relative to the largest mass, so each measure is tilted by e^{tL}, which centres
the sum where epsilon is read. Choices are made by a rough quadrature and only cost accuracy: what is
certified is bounded on the measures themselves (``convolution``).

>>> group = Group("poisson", 1.0, np.array([1.0]), np.array([[1]]))
>>> frame = choose([group], 1e-5)
>>> frame.removal.tilt > 0 and frame.points >= 2**14
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.fft

from fedpriv.accounting.pld import privacy_loss
from fedpriv.accounting.pld.privacy_loss import Array

# Relative error of epsilon that the lattice may cause, mass lost outside the window (of the tilted
# sum), and mass of a single release's loss left out (of delta, over all releases).
LATTICE, WINDOW, TAIL = 2e-4, 1e-12, 1e-7
_LEAST, _MOST = 2**14, 2**20
_SAMPLES = 8


@dataclass(frozen=True)
class Group:
    """Releases of one kind: multipliers that differ, all else equal.

    Attributes:
        family: ``poisson``, ``replace`` or ``fixed`` (``losses``, ``rounding``).
        rate: q.
        z: shape (n,), multipliers as the family has them, ascending.
        counts: shape (stages, n), releases of each that each stage of the run adds.
        directed: whether the loss of (P, Q) differs from that of (Q, P).
    """

    family: str
    rate: float
    z: Array
    counts: Array
    directed: bool = True


@dataclass(frozen=True)
class Side:
    """How the loss in one direction is composed.

    Attributes:
        tilt: t > 0.
        lower_tilt, upper_tilt: exponents around t whose moments bound what the window leaves out.
    """

    tilt: float
    lower_tilt: float
    upper_tilt: float


@dataclass(frozen=True)
class Frame:
    """One lattice for all releases.

    Attributes:
        width: h, the distance of two points.
        points: length of the window and of the transforms.
        log_tail: log of the mass of one release's loss that may be left out.
        removal, addition: the two directions.
    """

    width: float
    points: int
    log_tail: float
    removal: Side
    addition: Side


def choose(groups: Sequence[Group], delta: float, room: int = 1) -> Frame:
    """The frame for composing all ``groups`` and reading epsilon near ``delta``.

    A window ``room`` times as long as it seems to need is for where the quadrature was too rough.
    """
    total = sum(int(group.counts.sum()) for group in groups)
    log_tail = max(math.log(TAIL * delta / total), -690.0)
    exponents = _exponents(groups, delta)
    removal, span, epsilon = _side(exponents, lambda s: _moments(groups, s, log_tail), delta)
    # The loss of (Q, P) at exponent s has the moment of (P, Q) at -1 - s.
    addition, other, _ = _side(exponents, lambda s: _moments(groups, -1 - s, log_tail), delta)
    span = room * max(span, other, max(_longest(group, log_tail) for group in groups))
    # A few multipliers are cheap, so their lattice can be finer.
    accuracy = LATTICE / (10 if sum(len(group.z) for group in groups) <= 8 else 1)
    wanted = math.sqrt(8 * accuracy * max(epsilon, span * 1e-3) / ((removal.tilt + 1) * total))
    width = max(min(wanted, span / _LEAST), span / _MOST)
    points = scipy.fft.next_fast_len(math.ceil(span / width) + 8, real=True)
    return Frame(width, points, log_tail, removal, addition)


def _longest(group: Group, log_tail: float) -> float:
    family = "poisson" if group.family == "fixed" else group.family
    low, high = privacy_loss.support(family, group.rate, group.z, log_tail)
    return float(2 * high.max() if group.family == "fixed" else (high - low).max())


def _exponents(groups: Sequence[Group], delta: float) -> Array:
    """Exponents (k,), both signs, around what a Gaussian sum of about the same variance would want, and
    down to 1: rare cohorts have a heavy tail, which larger ones see nothing but."""
    variance = 0.0
    for group in groups:
        plain = group.z**-2.0
        sampled = group.rate**2 * np.expm1(np.minimum(plain, 50))
        variance += group.counts.sum(axis=0) @ np.minimum(plain, sampled)
    base = math.sqrt(-2 * math.log(delta) / max(variance, 1e-60))
    least = min(base * 1e-3, 1.0)
    positive = np.geomspace(least, base * 30, round(8 * math.log10(30 * base / least)))
    return np.concatenate([-positive[::-1], positive])


def _moments(groups: Sequence[Group], exponents: Array, log_tail: float) -> Array:
    """Rough log moments of the sum of all losses at ``exponents``, shape (k,)."""
    total = np.zeros(exponents.shape)
    for group in groups:
        z, counts = _thinned(group.z, group.counts.sum(axis=0))
        total += counts @ privacy_loss.log_moments(group.family, group.rate, z, exponents, log_tail)
    return total


def _thinned(z: Array, counts: Array) -> tuple[Array, Array]:
    """A few multipliers with the counts of all."""
    if len(z) <= _SAMPLES:
        return z, counts
    parts = np.array_split(np.arange(len(z)), _SAMPLES)
    return np.array([z[part[0]] for part in parts]), np.array([counts[part].sum() for part in parts])


def _side(exponents: Array, moments: Callable[[Array], Array], delta: float) -> tuple[Side, float, float]:
    """The side for log moments as a function of exponents, the span of its window, a rough epsilon."""
    positive = exponents[exponents > 0]
    rough = positive[int(np.argmin((moments(positive) - math.log(delta)) / positive))]
    # Moments may rise steeply just above the best tilt, so exponents near it are looked at closely.
    exponents = np.unique(np.concatenate([exponents, rough * np.linspace(0.4, 1.5, 45)]))
    values = moments(exponents)
    bounds = np.where(exponents > 0, (values - math.log(delta)) / exponents, np.inf)
    # A tilt below the best one leaves errors larger, by at most e^7 for a Gaussian sum, but the tilted sum
    # far narrower where single losses have heavy tails.
    share = min(max(1 - math.sqrt(7 / -math.log(delta)), 0.5), 1.0)
    best = int(np.argmin(np.abs(exponents - share * exponents[np.argmin(bounds[:-6])])))
    tilt, value = float(exponents[best]), values[best]
    above = (values[best + 1 :] - value - math.log(WINDOW)) / (exponents[best + 1 :] - tilt)
    below = (value - values[:best] + math.log(WINDOW)) / (tilt - exponents[:best])
    high, low = best + 1 + int(np.argmin(above)), int(np.argmax(below))
    side = Side(tilt, float(exponents[low]), float(exponents[high]))
    return side, float(above.min() - below.max()) * 1.01, max(float(bounds[:-6].min()), 0.0)
