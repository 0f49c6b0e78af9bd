"""Sums of independent privacy losses by Fourier transforms, with a bound on every numerical error.

A :class:`Total` multiplies the transforms of tilted measures; a :class:`Curve` evaluates epsilon from the
inverse transform. Let K(s) = E[e^{sL}] be the moment of the whole sum, t the tilt and M the window length.
All errors of the tilted sum are at most eta in total, and those of delta(epsilon) at most K(t) e^{-t epsilon}
eta. eta is the sum of

- the mass outside the window, which a cyclic convolution folds into it. It is bounded by Chernoff's
  inequality at exponents below and above t, with the moments of the measures themselves;
- round-off: a transform of length M of masses that sum to 1 has an error below e = (8 log2 M + 10) u in every
  entry (Higham 2002, section 24.1). A product P of N of them, each n times or more, has an error below
  N e |P|^(1 - 1/n), because |P| is at most the n-th power of each factor. The inverse has one more. The
  errors of the masses add up to at most the root of the sum of these squares (Cauchy & Schwarz, Parseval).

Rare cohorts leave almost all mass at a loss near 0, and their delta is far below the round-off of doubles.
Then ``real`` is the longer type of x86 processors, which takes four times as long: with 2e-7 of all units in
a cohort, epsilon at delta 1e-10 is 0.03 in place of 0.8. Elsewhere the bound stays the looser one.

>>> direction = Direction(1.0, 0.5, 2.0)
>>> total = Total(Lattice(0.5, 256, -40.0, direction, direction), direction)
>>> total.add(np.array([[0.5, 0.5]]), np.zeros(1), np.array([[3]]), np.zeros(1))
>>> curve = total.curves()[0]
>>> 0.5 < curve.upper(0.1) < 1.0
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy
from fedpriv.accounting.pld.discretisation import WINDOW_MASS, Direction, Lattice
from fedpriv.accounting.pld.privacy_loss import Array

# Relative error of a measure's mass, and absolute error of a loss, per release.
_MASS_ERROR, _LOSS_ERROR = 1e-13, 1e-14
_PRECISE = 0.01  # the share of delta that round-off may be
_EXPONENT_RANGE = 300.0  # the largest range of losses whose exponentials are added in one cumulative sum


def longer() -> type | None:
    """A floating-point type of 64 bits of precision, which x86 processors have; None elsewhere.

    Other long types have the precision of doubles, or are emulated and slow, or have none that is fixed.
    """
    return np.longdouble if np.finfo(np.longdouble).nmant == 63 else None


@dataclass(frozen=True)
class Curve:
    """delta as a function of epsilon, for one sum of losses.

    Attributes:
        losses: shape (k,), ascending, from 0 or the bottom of the window.
        beyond: shape (k,), the mass at or above each loss.
        weighted: shape (k,), for each loss l the sum over the losses l' >= l of their mass times e^(l - l').
        infinite: the mass at infinity.
        log_scale, tilt, outside, round_off: errors are below (outside + round_off)
            exp(log_scale - tilt epsilon), where ``outside`` is the mass outside the window.
        releases: N.
    """

    losses: Array
    beyond: Array
    weighted: Array
    infinite: float
    log_scale: float
    tilt: float
    outside: float
    round_off: float
    releases: int
    _uppers: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def upper(self, delta: float) -> float:
        """An epsilon whose delta is certified to be at most ``delta``; infinite if there is none."""
        if delta not in self._uppers:
            self._uppers[delta] = self._upper(delta)
        return self._uppers[delta]

    def _upper(self, delta: float) -> float:
        if delta <= self.infinite:
            return math.inf
        position = int(np.argmax(self._bounds(self.losses, 1) <= delta))
        if self._bounds(self.losses[position], 1) > delta:
            chernoff = (self.log_scale - math.log(delta - self.infinite)) / self.tilt
            return chernoff + self.releases * _LOSS_ERROR
        if position == 0:
            return max(float(self.losses[0]), 0.0)
        low, high = float(self.losses[position - 1]), float(self.losses[position])
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self._bounds(middle, 1) <= delta else (middle, high)
        return max(high, 0.0) + self.releases * _LOSS_ERROR

    def lower(self, delta: float) -> float:
        """An epsilon >= 0 whose delta is certified to be at least ``delta``."""
        above = np.flatnonzero(self._bounds(self.losses, -1) >= delta)
        if not above.size or above[-1] + 1 == self.losses.size:
            return 0.0
        low, high = float(self.losses[above[-1]]), float(self.losses[above[-1] + 1])
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._bounds(middle, -1) >= delta else (low, middle)
        return max(low - self.releases * _LOSS_ERROR, 0.0)

    def precise(self, delta: float) -> bool:
        """Whether round-off is a small share of ``delta`` at its epsilon, or nothing there."""
        epsilon = self.upper(delta)
        scale = math.exp(min(self.log_scale - self.tilt * epsilon, 700.0))
        return not math.isfinite(epsilon) or self.round_off * scale <= _PRECISE * delta

    def delta(self, epsilon: float) -> float:
        """A certified upper bound of delta at ``epsilon`` >= 0."""
        return float(self._bounds(epsilon, 1))

    def _bounds(self, epsilon: Array | float, sign: int) -> Array:
        """delta at ``epsilon`` plus (sign 1) or minus (sign -1) all error bounds."""
        at = np.searchsorted(self.losses, epsilon, side="right")
        beyond = np.append(self.beyond, 0.0)[at]
        # e^epsilon times the mass above it weighted by e^-loss; either factor alone could overflow.
        weighted = np.append(self.weighted, 0.0)[at] * np.exp(epsilon - np.append(self.losses, math.inf)[at])
        finite = np.maximum(beyond - weighted, 0.0)
        scale = np.exp(np.minimum(self.log_scale - self.tilt * np.asarray(epsilon), 700.0))
        error = (self.outside + self.round_off) * scale
        return np.asarray(finite * (1 + sign * self.releases * _MASS_ERROR) + sign * error + self.infinite)


class Total:
    """The sum of losses after each of several stages of a run, in one direction."""

    def __init__(self, lattice: Lattice, direction: Direction, stages: int = 1, real: type = float) -> None:
        """Sums of no losses; transforms are of the floating-point type ``real``."""
        self._lattice, self._direction, self._real = lattice, direction, real
        shape = stages, lattice.points // 2 + 1
        self._product = np.ones(shape, dtype=np.result_type(real, np.complex64))
        self._fewest = np.full(stages, np.inf)  # n, or infinity where a stage adds nothing
        # Per stage: log K at the tilt, at the lower and at the upper tilt; offset; mass at infinity.
        self._logs = np.zeros((stages, 3))
        self._offset = np.zeros(stages)
        self._infinite = np.zeros(stages)
        self._releases = np.zeros(stages, dtype=int)

    def add(self, measures: Array, first: Array, counts: Array, infinite: Array) -> None:
        """Adds releases.

        Args:
            measures: shape (n, k), masses at the losses first + j h.
            first: shape (n,), the smallest loss of each measure.
            counts: shape (stages, n), the number of releases that each stage adds.
            infinite: shape (n,), masses at infinity.
        """
        direction, steps = self._direction, self._lattice.width * np.arange(measures.shape[1])
        tilted, logs = _tilted(measures, steps * direction.tilt)
        moments = [logs + direction.tilt * first]
        for exponent in (direction.lower_tilt, direction.upper_tilt):
            moments.append(_tilted(measures, steps * exponent)[1] + exponent * first)
        transforms = scipy.fft.rfft(tilted.astype(self._real, copy=False), self._lattice.points, axis=1)
        self._logs += counts @ np.stack(moments, axis=1)
        self._offset += counts @ first
        self._infinite += counts @ infinite
        self._releases += counts.sum(axis=1)
        self._fewest = np.minimum(self._fewest, np.where(counts > 0, counts, np.inf).min(axis=1))
        for stage, row in enumerate(counts):
            for transform, count in zip(transforms[row > 0], row[row > 0].tolist(), strict=True):
                self._product[stage] *= _power(transform, count)

    def curves(self) -> list[Curve]:
        """The curve after each stage."""
        products = np.cumprod(self._product, axis=0)
        fewest = np.minimum.accumulate(self._fewest)
        logs, offsets = np.cumsum(self._logs, axis=0), np.cumsum(self._offset)
        infinite, releases = np.cumsum(self._infinite), np.cumsum(self._releases)
        return [
            self._curve(
                products[i],
                logs[i],
                float(offsets[i]),
                float(infinite[i]),
                int(releases[i]),
                self._round_off(products[i], int(releases[i]), float(fewest[i])),
            )
            for i in range(len(products))
        ]

    def _round_off(self, product: Array, releases: int, fewest: float) -> float:
        """The bound of the round-off error of all masses together."""
        points = self._lattice.points
        each = (8 * math.log2(points) + 10) * float(np.finfo(self._real).eps) / 2
        sizes = np.minimum(np.abs(product).astype(float, copy=False) + 2 * releases * each, 1.0)
        errors = each * (releases * sizes ** (1 - 1 / fewest) + 1)
        return math.sqrt(2 * float(errors @ errors))

    def _curve(
        self, product: Array, logs: Array, offset: float, infinite: float, releases: int, round_off: float
    ) -> Curve:
        direction, width, points = self._direction, self._lattice.width, self._lattice.points
        at, below, above = logs.tolist()
        bottom = (at - below + math.log(WINDOW_MASS)) / (direction.tilt - direction.lower_tilt)
        shift = math.ceil((bottom - offset) / width)
        top = offset + (shift + points) * width
        outside = WINDOW_MASS + math.exp(min(above - at - (direction.upper_tilt - direction.tilt) * top, 0.0))
        sums = scipy.fft.irfft(product, points).astype(float, copy=False)
        masses = np.maximum(np.roll(sums, -(shift % points)), 0.0)
        losses = offset + (shift + np.arange(points)) * width
        kept = losses >= min(0.0, losses[-1]) - width
        losses, masses = losses[kept], masses[kept]
        masses = masses * np.exp(np.minimum(at - direction.tilt * losses, 700.0))
        beyond = np.cumsum(masses[::-1])[::-1]
        weighted = _weighted(losses, masses)
        return Curve(losses, beyond, weighted, infinite, at, direction.tilt, outside, round_off, releases)


def _weighted(losses: Array, masses: Array) -> Array:
    """For each loss l, the sum over all losses l' >= l of their mass times e^(l - l'); losses ascend."""
    sums, above, start = np.empty_like(masses), 0.0, len(losses)
    while start:
        end, least = start, losses[start - 1] - _EXPONENT_RANGE
        start = int(np.searchsorted(losses, least))
        factors = np.exp(losses[start:end] - losses[start])
        own = np.cumsum((masses[start:end] / factors)[::-1])[::-1] * factors
        sums[start:end] = own + (above * np.exp(losses[start:end] - losses[end]) if end < len(losses) else 0)
        above = float(sums[start])
    return sums


def _tilted(measures: Array, exponents: Array) -> tuple[Array, Array]:
    """(measures (n, k) times exp(exponents) normalised to mass 1, logs (n,) of their masses before that)."""
    shift = 0.0
    if np.abs(exponents).max() < 600:
        tilted = measures * np.exp(exponents)
    else:
        with np.errstate(divide="ignore"):
            powers = np.log(measures) + exponents
        shift = powers.max(axis=1, keepdims=True)
        tilted = np.exp(powers - shift)
    sums = tilted.sum(axis=1, keepdims=True)
    return tilted / sums, (np.log(sums) + shift)[:, 0]


def _power(values: Array, count: int) -> Array:
    """values ** count by repeated squaring."""
    result = values if count & 1 else np.ones_like(values)
    while count := count >> 1:
        values = values * values
        if count & 1:
            result = result * values
    return result
