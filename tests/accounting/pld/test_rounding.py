"""Both roundings on one release, against the divergence integrated with high precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.mixture_integrals import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedpriv.accounting.pld import privacy_loss, rounding


def hockey_stick(masses: np.ndarray, points: np.ndarray, infinite: float, eps: float) -> float:
    return float((masses * np.maximum(-np.expm1(eps - points), 0)).sum() + infinite)


@pytest.mark.parametrize(("q", "z", "h"), [(0.01, 1.0, 0.002), (0.3, 0.7, 0.02), (0.05, 3.0, 0.002)])
def test_brackets_the_integral_of_one_release(q: float, z: float, h: float) -> None:
    multipliers = np.array([z])
    cells = privacy_loss.cut(
        "poisson", q, multipliers, rounding.start_of(q, multipliers, h), h, int(12 / h / z)
    )
    up, (removal, addition) = rounding.spread(cells), rounding.merged(cells)
    points = cells.edges[0]
    for eps in (0.0, 0.003, 0.01, 0.1, 0.4, 1.5):
        for truth, upper, infinite, lower, at in (
            (exact(q, z, eps)[0], up.removal[0], up.removal_infinite[0], removal[0], points),
            (exact(q, z, eps)[1], up.addition[0], up.addition_infinite[0], addition[0], -points),
        ):
            above = hockey_stick(upper, at, infinite, eps)
            below = hockey_stick(lower, at, 0.0, eps)
            assert below <= truth * (1 + 1e-9) + 1e-15
            assert truth <= above * (1 + 1e-9) + 1e-15
            # Of second order in h: chords over cells of width h, and tangents over twice that.
            assert above - below <= 3 * h * h + 0.2 * truth


def test_errors_of_the_masses_raise_the_upper_bound_and_lower_the_lower_one() -> None:
    """As if normal tails had relative errors of 1e-6 instead of 1e-13, in both directions."""
    z, h = np.array([1.0]), 0.05
    sound = privacy_loss.cut("poisson", 0.2, z, rounding.start_of(0.2, z, h), h, 160)
    rough, points = replace(sound, error=sound.error * 1e7), sound.edges[0]
    for eps in (0.02, 0.05, 0.1):
        above, below = [], []
        for cells in (sound, rough):
            up, low = rounding.spread(cells), rounding.merged(cells)
            ways = ((points, up.removal, low[0]), (-points, up.addition, low[1]))
            above.append([hockey_stick(masses[0], at, 0.0, eps) for at, masses, _ in ways])
            below.append([hockey_stick(masses[0], at, 0.0, eps) for at, _, masses in ways])
        for way in (0, 1):
            assert above[1][way] > above[0][way] + 1e-9
            assert below[1][way] < below[0][way] - 1e-9


@settings(max_examples=40)
@given(st.floats(0.3, 5), st.floats(1e-4, 0.9), st.floats(0.002, 0.2), st.booleans())
def test_masses_are_preserved(z: float, q: float, h: float, replaced: bool) -> None:
    family = "replace" if replaced else "poisson"
    multipliers = np.array([z, z * 1.3])
    low, high = privacy_loss.support(family, q, multipliers, -25.0)
    start = rounding.start_of(q, multipliers, h) if family == "poisson" else low
    cells = privacy_loss.cut(family, q, multipliers, start, h, int((high - start).max() / h) + 2).below(high)
    up, (removal, addition) = rounding.spread(cells), rounding.merged(cells)
    assert up.removal.sum(axis=1) + up.removal_infinite == pytest.approx(1)
    assert up.addition.sum(axis=1) + up.addition_infinite == pytest.approx(1)
    assert (removal.sum(axis=1) <= 1 + 1e-12).all()
    assert (addition.sum(axis=1) <= 1 + 1e-12).all()
    assert min(up.removal.min(), up.addition.min(), removal.min(), addition.min()) >= 0


def test_fixed_size_sampling_is_amplification_by_subsampling() -> None:
    """Balle, Barthe & Gaboardi 2018, theorem 9: delta(log(1 + q (e^eps - 1))) = q delta_plain(eps)."""
    q, z, h = 0.2, 0.5, 0.005
    points, infinite = rounding.fixed_size(q, np.array([z]), h, np.array([15.0]))
    at = h * (np.arange(points.shape[1]) - points.shape[1] // 2)
    assert points.sum() + infinite[0] == pytest.approx(1)
    for eps in (0.1, 1.0, 4.0):
        mu = 1 / z
        plain = norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
        here = np.log1p(q * np.expm1(eps))
        assert hockey_stick(points[0], at, infinite[0], here) == pytest.approx(q * plain, rel=1e-3)
        assert hockey_stick(points[0], at, infinite[0], here) >= q * plain * (1 - 1e-12)
