"""Dominating pairs of distributions of one release, cut into cells of the privacy loss.

A pair (P, Q) on the real line has the loss L(x) = log dP/dQ (x). It increases in x for every pair here, so a
cell of losses is an interval of x, and its masses under P and Q are differences of normal tails.
In units of S, with z the noise multiplier and q the sampling rate:

- ``poisson`` (add/remove; q = 1 is the Gaussian without sampling): P = (1-q) N(0, z^2) + q N(1, z^2) and
  Q = N(0, z^2). (P, Q) is the removal of a unit, (Q, P) the addition.
- ``replace`` (Poisson sampling, replace-one): the same P and Q = (1-q) N(0, z^2) + q N(-1, z^2).

Fixed-size sampling is built from ``poisson`` cells (see ``rounding``).

>>> cells = cut("poisson", 1.0, np.array([1.0]), np.array([-9.0]), 0.5, 36)
>>> bool(abs(cells.p.sum() - 1) < 1e-12), cells.p.shape
(True, (1, 36))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy

Array: TypeAlias = "np.ndarray[Any, Any]"

# The assumed relative error of normal tail probabilities (scipy documents 3.4e-14).
TAIL_ERROR = 1e-13


@dataclass(frozen=True)
class Cells:
    """The losses of n multipliers, in K cells [start + k h, start + (k+1) h].

    Attributes:
        start: shape (n,).
        width: h.
        p, q: shape (n, K), the cells' masses under P and Q.
        error: shape (n, K), a bound on round-off in p - exp(upper edge) q.
        below_p, below_q, above_p, above_q: shape (n,), the masses outside all cells.
    """

    start: Array
    width: float
    p: Array
    q: Array
    error: Array
    below_p: Array
    below_q: Array
    above_p: Array
    above_q: Array

    @property
    def edges(self) -> Array:
        """The losses at the cells' boundaries, shape (n, K+1)."""
        return self.start[:, None] + self.width * np.arange(self.p.shape[1] + 1)

    def below(self, top: Array) -> Cells:
        """These cells restricted to losses below ``top`` (n,); the masses of all others count as above."""
        inside = self.edges[:, :-1] < top[:, None]
        above_p = self.above_p + np.where(inside, 0, self.p).sum(axis=1)
        above_q = self.above_q + np.where(inside, 0, self.q).sum(axis=1)
        p, q = np.where(inside, self.p, 0), np.where(inside, self.q, 0)
        return replace(self, p=p, q=q, above_p=above_p, above_q=above_q)


def cut(family: str, rate: float, z: Array, start: Array, width: float, count: int) -> Cells:
    """``count`` cells of the ``family``'s loss for multipliers ``z`` (n,), upward from losses ``start``
    (n,).
    """
    edges = start[:, None] + width * np.arange(count + 1)
    x = position(family, rate, z[:, None], edges)
    zero = _masses(x, z)
    p = _mixed(zero, _masses(x - 1, z), rate)
    q = zero if family == "poisson" else _mixed(zero, _masses(x + 1, z), rate)
    with np.errstate(over="ignore", invalid="ignore"):
        error = TAIL_ERROR * (p.edge + np.exp(edges[:, 1:]) * q.edge)
    return Cells(start, width, p.inside, q.inside, error, p.below, q.below, p.above, q.above)


@dataclass(frozen=True)
class _Part:
    """Masses of one distribution.

    Attributes:
        inside: shape (n, K), the masses of the cells.
        edge: shape (n, K), the sums of the tail probabilities at each cell's two edges, which scale its
            error.
        below, above: shape (n,), the masses outside all cells.
    """

    inside: Array
    edge: Array
    below: Array
    above: Array


def _masses(x: Array, z: Array) -> _Part:
    """The masses of N(0, z^2) between neighbouring columns of x (n, K+1)."""
    scores = x / z[:, None]
    right = scores >= 0
    tails = scipy.special.ndtr(-np.abs(scores))
    signed = np.where(right, -tails, tails)
    inside = np.maximum(np.diff(signed) + (right[:, 1:] & ~right[:, :-1]), 0.0)
    below, above = scipy.special.ndtr(scores[:, 0]), scipy.special.ndtr(-scores[:, -1])
    return _Part(inside, tails[:, :-1] + tails[:, 1:], below, above)


def _mixed(zero: _Part, one: _Part, rate: float) -> _Part:
    """The mixture (1 - rate) ``zero`` + rate ``one``."""
    return _Part(
        (1 - rate) * zero.inside + rate * one.inside,
        (1 - rate) * zero.edge + rate * one.edge,
        (1 - rate) * zero.below + rate * one.below,
        (1 - rate) * zero.above + rate * one.above,
    )


def position(family: str, rate: float, z: Array, losses: Array) -> Array:
    """The x with L(x) = loss; -inf below the smallest loss, which is log(1-q) for ``poisson``."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if family == "poisson":
            inner = np.log1p(-(1 - rate) * np.exp(-losses))
            x = z**2 * (losses - np.log(rate) + inner) + 0.5
            # Within round-off of the smallest loss the logarithm's argument can be negative.
            above = (losses > np.log1p(-rate)) & ~np.isnan(inner) if rate < 1 else True
            return np.where(above, x, -np.inf)
        # (a + b y) / (a + b / y) = e^l with a = 1-q, b = q exp(-1 / (2 z^2)), y = exp(x / z^2).
        slope = np.log1p(-rate) - np.log(rate) + 0.5 / z**2
        half = np.abs(losses) / 2
        log_sinh = half + np.log(-np.expm1(-2 * half)) - np.log(2)
        big = slope + log_sinh
        asinh = np.where(big > 30, big + np.log(2), np.arcsinh(np.exp(np.minimum(big, 30))))
        return np.asarray(z**2 * np.sign(losses) * (half + asinh))


def loss(family: str, rate: float, z: Array, x: Array) -> Array:
    """L(x); shapes broadcast."""
    up = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + (2 * x - 1) / (2 * z**2))
    if family == "poisson":
        return np.asarray(up)
    down = np.logaddexp(np.log1p(-rate), np.log(rate) + (-2 * x - 1) / (2 * z**2))
    return np.asarray(up - down)


def support(family: str, rate: float, z: Array, log_tail: float) -> tuple[Array, Array]:
    """Losses (low (n,), high (n,)): under P, L is below low, or above high, with probability <=
    exp(log_tail).
    """
    reach = -z * scipy.special.ndtri_exp(log_tail)
    bottom = -reach
    return loss(family, rate, z, bottom), loss(family, rate, z, 1 + reach)


def log_moments(family: str, rate: float, z: Array, exponents: Array, log_tail: float) -> Array:
    """log E_P[e^{sL}] for multipliers z (n,) and exponents s (k,) without the tails: shape (n, k).

    This quadrature serves only to choose windows and tilts. No certified bound depends on it.
    """
    reach = -float(scipy.special.ndtri_exp(log_tail))
    points = np.linspace(-reach, reach, 241)
    x = z[:, None] * points + np.linspace(0, 1, points.size)
    log_p = np.logaddexp(
        (np.log1p(-rate) if rate < 1 else -np.inf) - x**2 / (2 * z[:, None] ** 2),
        np.log(rate) - (x - 1) ** 2 / (2 * z[:, None] ** 2),
    )
    step = np.gradient(x, axis=1) / np.sqrt(2 * np.pi) / z[:, None]
    log_weights = log_p + np.log(step)
    if family == "fixed":
        return _fixed_moments(rate, z, exponents, x, log_weights, step)
    losses = loss(family, rate, z[:, None], x)
    powers = log_weights[:, :, None] + losses[:, :, None] * exponents
    top = powers.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(powers - top).sum(axis=1)) + top[:, 0])


def _fixed_moments(
    rate: float, z: Array, exponents: Array, x: Array, log_weights: Array, step: Array
) -> Array:
    """``log_moments`` of fixed-size sampling: positive losses of P, negative ones of Q, an atom at 0.

    The pair is that of ``rounding.fixed_size``.
    """
    losses = loss("poisson", rate, z[:, None], x)[:, :, None]
    log_q = (np.log(step) - x**2 / (2 * z[:, None] ** 2))[:, :, None]
    powers = np.logaddexp(log_weights[:, :, None] + losses * exponents, log_q - losses * exponents)
    powers = np.where(losses > 0, powers, -np.inf)
    top = powers.max(axis=1, keepdims=True)
    rest = np.log(np.exp(powers - top).sum(axis=1)) + top[:, 0]
    with np.errstate(divide="ignore"):  # no atom if the rate is 1
        atom = np.log((1 - rate) * (1 - 2 * scipy.special.ndtr(-0.5 / z)))
    # The cut at loss 0 makes the mass wrong by up to a percent, which many releases would add up.
    parts = np.where(losses > 0, np.logaddexp(log_weights[:, :, None], log_q), -np.inf)
    mass = np.logaddexp(scipy.special.logsumexp(parts, axis=1), atom[:, None])
    return np.asarray(np.logaddexp(rest, atom[:, None]) - mass)
