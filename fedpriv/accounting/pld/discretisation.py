"""The choice of lattice, window and tilt for composing privacy losses.

Losses are summed by one cyclic convolution, so the window must hold nearly all of the sum's mass. Transforms
have errors relative to the largest mass, so each measure is tilted by e^{tL}, which centres the sum where
epsilon is evaluated. A rough quadrature makes these choices. They affect only the accuracy: the certified
bounds are computed on the measures themselves (``convolution``).

>>> group = Group("poisson", 1.0, np.array([1.0]), np.array([[1]]))
>>> lattice = choose([group], 1e-5)
>>> lattice.removal.tilt > 0 and lattice.points >= 2**14
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy
from fedpriv.accounting.pld import privacy_loss
from fedpriv.accounting.pld.privacy_loss import Array

# The relative error of epsilon that the lattice may cause, the mass outside the window (of the tilted sum),
# and the neglected tail mass of all releases (as a share of delta).
LATTICE_ERROR, WINDOW_MASS, TAIL_MASS = 2e-4, 1e-12, 1e-7
_MIN_POINTS, _MAX_POINTS = 2**14, 2**20
_MOMENT_MULTIPLIERS = 8


@dataclass(frozen=True)
class Group:
    """Releases that differ only in their noise multiplier.

    Attributes:
        family: ``poisson``, ``replace`` (``privacy_loss``) or ``fixed`` (``rounding``).
        rate: q.
        z: shape (n,), multipliers in the convention of the family, ascending.
        counts: shape (stages, n), the number of releases with each multiplier that each stage adds.
        directed: whether the loss of (P, Q) differs from that of (Q, P).
    """

    family: str
    rate: float
    z: Array
    counts: Array
    directed: bool = True


@dataclass(frozen=True)
class Direction:
    """The exponents for composing the loss in one direction of the relation.

    Attributes:
        tilt: t > 0.
        lower_tilt, upper_tilt: exponents below and above t whose moments bound the mass outside the window.
    """

    tilt: float
    lower_tilt: float
    upper_tilt: float


@dataclass(frozen=True)
class Lattice:
    """One lattice of losses for all releases.

    Attributes:
        width: h, the distance between neighbouring points.
        points: the length of the window and of the transforms.
        log_tail: the log of the tail mass that may be neglected per release.
        removal, addition: the two directions.
    """

    width: float
    points: int
    log_tail: float
    removal: Direction
    addition: Direction


def choose(groups: Sequence[Group], delta: float, window_factor: int = 1) -> Lattice:
    """The lattice for composing all ``groups`` and evaluating epsilon near ``delta``.

    The window is ``window_factor`` times as long as the quadrature suggests. A factor above 1 is needed if
    the quadrature was too rough.
    """
    total = sum(int(group.counts.sum()) for group in groups)
    log_tail = max(math.log(TAIL_MASS * delta / total), -690.0)
    exponents = _exponents(groups, delta)
    removal, span, epsilon = _direction(exponents, lambda s: _moments(groups, s, log_tail), delta)
    # The loss of (Q, P) at exponent s has the moment of (P, Q) at -1 - s.
    addition, other, _ = _direction(exponents, lambda s: _moments(groups, -1 - s, log_tail), delta)
    span = window_factor * max(span, other, max(_longest(group, log_tail) for group in groups))
    # Few multipliers need few transforms, so their lattice can be finer.
    accuracy = LATTICE_ERROR / (10 if sum(len(group.z) for group in groups) <= 8 else 1)
    wanted = math.sqrt(8 * accuracy * max(epsilon, span * 1e-3) / ((removal.tilt + 1) * total))
    width = max(min(wanted, span / _MIN_POINTS), span / _MAX_POINTS)
    points = scipy.fft.next_fast_len(math.ceil(span / width) + 8, real=True)
    return Lattice(width, points, log_tail, removal, addition)


def _longest(group: Group, log_tail: float) -> float:
    family = "poisson" if group.family == "fixed" else group.family
    low, high = privacy_loss.support(family, group.rate, group.z, log_tail)
    return float(2 * high.max() if group.family == "fixed" else (high - low).max())


def _exponents(groups: Sequence[Group], delta: float) -> Array:
    """Exponents (k,) of both signs at which moments are computed.

    They lie around the best exponent for a Gaussian sum of about the same variance, and reach down to 1: rare
    cohorts have a heavy tail, which dominates the moments at larger exponents.
    """
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
    """(a few of the multipliers, the counts of all multipliers assigned to them)."""
    if len(z) <= _MOMENT_MULTIPLIERS:
        return z, counts
    parts = np.array_split(np.arange(len(z)), _MOMENT_MULTIPLIERS)
    return np.array([z[part[0]] for part in parts]), np.array([counts[part].sum() for part in parts])


def _direction(
    exponents: Array, moments: Callable[[Array], Array], delta: float
) -> tuple[Direction, float, float]:
    """(the direction, the length of its window, a rough epsilon).

    Args:
        exponents: shape (k,), at which the moments are evaluated.
        moments: the log moments of the sum as a function of exponents.
        delta: the delta at which epsilon is evaluated.
    """
    positive = exponents[exponents > 0]
    rough = positive[int(np.argmin((moments(positive) - math.log(delta)) / positive))]
    # Moments may rise steeply just above the best tilt, so the grid is finer near it.
    exponents = np.unique(np.concatenate([exponents, rough * np.linspace(0.4, 1.5, 45)]))
    values = moments(exponents)
    bounds = np.where(exponents > 0, (values - math.log(delta)) / exponents, np.inf)
    # A tilt below the best one makes errors larger (at most e^7 times for a Gaussian sum), but the tilted sum
    # much narrower if single losses have heavy tails.
    share = min(max(1 - math.sqrt(7 / -math.log(delta)), 0.5), 1.0)
    best = int(np.argmin(np.abs(exponents - share * exponents[np.argmin(bounds[:-6])])))
    tilt, value = float(exponents[best]), values[best]
    above = (values[best + 1 :] - value - math.log(WINDOW_MASS)) / (exponents[best + 1 :] - tilt)
    below = (value - values[:best] + math.log(WINDOW_MASS)) / (tilt - exponents[:best])
    high, low = best + 1 + int(np.argmin(above)), int(np.argmax(below))
    direction = Direction(tilt, float(exponents[low]), float(exponents[high]))
    return direction, float(above.min() - below.max()) * 1.01, max(float(bounds[:-6].min()), 0.0)
