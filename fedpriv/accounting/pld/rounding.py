"""Rounding of privacy losses to a lattice, for certified upper and lower bounds.

A measure on the points g_k = start + k h represents the losses of a release. There are two roundings:

- ``spread``, for upper bounds (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, "connect the dots"): the
  mass in the cell [g_k, g_k+1] moves to its two ends so that its masses under P and under Q are preserved.
  The hockey-stick divergence becomes the piecewise linear interpolation of the true one and can only rise.
- ``merged``, for lower bounds (derived here): point g_k+1 collects the share u_k of the cell below it and the
  share 1 - u_k+1 of the cell above it. Merging outcomes is post-processing, so divergences can only fall. If
  the mean loss of the collected mass is above g_k+1, it is rounded down to it, so they fall again. With
  balanced shares the mean equals g_k+1, and the error is of second order in h, as for ``spread``.

>>> cells = privacy_loss.cut("poisson", 1.0, np.array([1.0]), np.array([-9.0]), 0.5, 36)
>>> up, (low, _) = spread(cells), merged(cells)
>>> bool(abs(up.removal.sum() - 1) < 1e-9), bool(low.sum() <= 1 + 1e-12)
(True, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy
from fedpriv.accounting.pld import privacy_loss
from fedpriv.accounting.pld.privacy_loss import Array, Cells

_SWEEPS = 4


@dataclass(frozen=True)
class Spread:
    """Measures on the lattice points for the upper bounds.

    Attributes:
        removal: shape (n, K+1), masses of the loss of (P, Q) at the points g_k.
        addition: shape (n, K+1), masses of the loss of (Q, P) at the points -g_k.
        removal_infinite, addition_infinite: shape (n,), masses at infinity.
    """

    removal: Array
    addition: Array
    removal_infinite: Array
    addition_infinite: Array


def spread(cells: Cells) -> Spread:
    """The measures for upper bounds. Masses outside the cells move up to the next point or to infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        spare = cells.q * np.exp(cells.edges[:, 1:]) - cells.p
        low_p = (spare - cells.error) / np.expm1(cells.width)
        low_q = (spare + cells.error) / np.expm1(cells.width) * np.exp(-cells.edges[:, :-1])
    # The round-off error moves mass towards the larger loss: the upper end for (P, Q), the lower for (Q, P).
    low_p = np.clip(np.nan_to_num(low_p, nan=0.0), 0.0, cells.p)
    low_q = np.clip(np.nan_to_num(low_q, nan=np.inf), 0.0, cells.q)
    shape = (len(low_p), low_p.shape[1] + 1)
    removal, addition = np.zeros(shape), np.zeros(shape)
    removal[:, :-1], addition[:, :-1] = low_p, low_q
    removal[:, 1:] += cells.p - low_p
    addition[:, 1:] += cells.q - low_q
    removal[:, 0] += cells.below_p
    # The smallest losses of (Q, P) have almost no mass, so moving it far up costs little.
    addition[:, 0] += cells.above_q
    return Spread(removal, addition, cells.above_p, cells.below_q)


def merged(cells: Cells) -> tuple[Array, Array]:
    """The measures (n, K+1) for lower bounds: of the loss of (P, Q) at g_k, and of (Q, P) at -g_k.

    Losses outside the cells are dropped or rounded down into the cells.
    """
    scale = np.exp(-cells.edges[:, 1:-1])
    # The deficit of cell k for a mean loss of g_k+1, and the surplus of cell k+1 (in masses of Q).
    lack = np.maximum(cells.q[:, :-1] - cells.p[:, :-1] * scale, 0.0)
    beyond = np.maximum(cells.p[:, 1:] * scale - cells.q[:, 1:], 0.0)
    slack = scale * np.maximum(cells.error[:, :-1], cells.error[:, 1:])
    up = _balanced(lack, beyond)
    shape = (len(up), cells.p.shape[1] + 1)
    removal, addition = np.zeros(shape), np.zeros(shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fewer = np.minimum(up[:, :-1], (1 - up[:, 1:]) * np.maximum(beyond - slack, 0) / (lack + slack))
        more = np.minimum(1 - up[:, 1:], up[:, :-1] * np.maximum(lack - slack, 0) / (beyond + slack))
    fewer, more = np.nan_to_num(fewer), np.nan_to_num(more)
    none = np.zeros((len(up), 1))
    _collect(removal, cells.p, np.hstack([fewer, none]))
    _collect(addition, cells.q, 1 - np.hstack([none, more]))
    addition[:, 0] += cells.below_q
    return removal, addition


def _collect(points: Array, masses: Array, up: Array) -> None:
    points[:, 1:] = up * masses
    points[:, :-1] += masses - up * masses


def _balanced(lack: Array, beyond: Array) -> Array:
    """Shares u (n, K) with u_k lack_k close to (1 - u_k+1) beyond_k: the solution that does not oscillate.

    Where masses decrease from cell to cell, the equation is solved downwards; where they increase, upwards.
    Both iterations contract. All of the first cell moves up, since there is no point below it.
    """
    ratio = _ratio(lack, beyond)
    falling = ratio < 1
    up = np.ones((len(ratio), ratio.shape[1] + 1))
    up[:, :-1] = ratio / (1 + ratio)
    up[:, 0] = np.where(falling[:, 0], up[:, 0], 1.0)
    for _ in range(_SWEEPS):
        downwards = ratio * (1 - up[:, 1:])
        upwards = 1 - up[:, :-1] / np.maximum(ratio, 1)
        up[:, 1:] = np.where(falling, up[:, 1:], upwards)
        up[:, :-1] = np.where(falling, downwards, up[:, :-1])
    return up


def _ratio(lack: Array, beyond: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.minimum(np.nan_to_num(beyond / lack, nan=1.0, posinf=1e9), 1e9)


def fixed_size(rate: float, z: Array, width: float, top: Array) -> tuple[Array, Array]:
    """The measures for upper bounds of fixed-size sampling: (measures (n, 2 K + 1), masses (n,) at infinity).

    The measures lie on the points -K h .. K h. Losses above ``top`` (n,) count as infinite. ``z`` is the
    multiplier over the replace-one distance. Zhu, Dong & Wang 2022, theorem 11: with (P, Q) the pair of the
    release without sampling, the divergence at e^eps is that of ((1-q) Q + q P, Q) for eps >= 0 and of
    (Q, (1-q) Q + q P) for eps < 0. So positive losses are those of a removal, negative losses those of an
    addition, and the remaining mass is an atom at 0. One measure serves both neighbours.
    """
    count = math.ceil(float(top.max()) / width) + 1
    cells = privacy_loss.cut("poisson", rate, z, np.zeros_like(z), width, count).below(top)
    atom = (1 - rate) * (1 - 2 * scipy.special.ndtr(-0.5 / z))
    none = np.zeros_like(z)
    part = spread(replace(cells, below_p=none, below_q=none))
    points = np.hstack([part.addition[:, :0:-1], part.removal])
    points[:, count] += part.addition[:, 0] + atom
    return points, cells.above_p


def start_of(rate: float, z: Array, width: float) -> Array:
    """The best start of the cells of a Poisson-sampled Gaussian, shape (n,): one cell below g_1.

    With a small rate most of the mass lies just above log(1-q). Between two points, both roundings would move
    it at every release. Therefore the start is chosen so that the two solutions that ``_balanced`` joins,
    upwards from the first cell and downwards from the last, agree.
    """
    edge = np.log1p(-rate)
    low, high = np.full(z.shape, edge), np.full(z.shape, edge + width)
    for _ in range(30):
        middle = (low + high) / 2
        cells = privacy_loss.cut("poisson", rate, z, middle - width, width, 16)
        scale = np.exp(-cells.edges[:, 1:-1])
        lack = np.maximum(cells.q[:, :-1] - cells.p[:, :-1] * scale, 0.0)
        beyond = np.maximum(cells.p[:, 1:] * scale - cells.q[:, 1:], 0.0)
        too_high = _mismatch(_ratio(lack, beyond)) < 0
        low, high = np.where(too_high, low, middle), np.where(too_high, middle, high)
    return np.asarray((low + high) / 2 - width)


def _mismatch(ratio: Array) -> Array:
    """The direction in which the start has to move, shape (n,): up if positive."""
    down = np.full(ratio.shape, 0.5)
    for k in range(ratio.shape[1] - 2, -1, -1):
        down[:, k] = np.minimum(ratio[:, k], 1) * (1 - down[:, k + 1])
    up, gap, rising = np.ones(len(ratio)), np.full(len(ratio), -1.0), np.ones(len(ratio), dtype=bool)
    for k in range(ratio.shape[1] - 1):
        rising = rising & (ratio[:, k] >= 1)
        up = np.where(rising, 1 - up / np.maximum(ratio[:, k], 1), up)
        gap = np.where(rising, (-1) ** k * (up - down[:, k + 1]), gap)
    return gap
