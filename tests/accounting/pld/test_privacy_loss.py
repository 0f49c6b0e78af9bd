"""Cells of the privacy loss against direct formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.accounting.pld import privacy_loss


@pytest.mark.parametrize(("family", "rate"), [("poisson", 1.0), ("poisson", 0.03), ("replace", 0.2)])
@pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
def test_position_inverts_the_loss(family: str, rate: float, z: float) -> None:
    x = np.linspace(-3 * z, 1 + 3 * z, 41)[None]
    multipliers = np.array([[z]])
    values = privacy_loss.loss(family, rate, multipliers, x)
    back = privacy_loss.position(family, rate, multipliers, values)
    assert privacy_loss.loss(family, rate, multipliers, back) == pytest.approx(values, rel=1e-9, abs=1e-12)
    assert (np.diff(values) > 0).all()


@pytest.mark.parametrize("family", ["poisson", "replace"])
def test_masses_of_the_cells(family: str) -> None:
    q, z, h = 0.2, np.array([0.8, 1.5]), 0.05
    start = np.array([-0.2, -0.15]) if family == "poisson" else np.array([-2.0, -2.0])
    cells = privacy_loss.cut(family, q, z, start, h, 90)
    x = privacy_loss.position(family, q, z[:, None], cells.edges)
    other = 0.0 if family == "poisson" else -1.0

    def cdf(mean: float) -> np.ndarray:
        return (1 - q) * norm.cdf(x, 0, z[:, None]) + q * norm.cdf(x, mean, z[:, None])

    for masses, below, above, curve in (
        (cells.p, cells.below_p, cells.above_p, cdf(1.0)),
        (cells.q, cells.below_q, cells.above_q, cdf(other)),
    ):
        assert masses == pytest.approx(np.diff(curve), abs=1e-14)
        assert below == pytest.approx(curve[:, 0], abs=1e-15)
        assert above == pytest.approx(1 - curve[:, -1], abs=1e-14)
    inside = cells.p > 1e-12
    ratio = np.log(cells.p[inside] / cells.q[inside])
    low, high = cells.edges[:, :-1][inside], cells.edges[:, 1:][inside]
    assert ((low - 1e-6 <= ratio) & (ratio <= high + 1e-6)).all()


def test_moments_are_about_right() -> None:
    z, s = np.array([0.9]), np.array([-3.0, 1.0, 2.0])
    values = privacy_loss.log_moments("poisson", 0.1, z, s, -30.0)
    x = np.linspace(-12, 15, 200001)
    ratio = 0.9 + 0.1 * np.exp((2 * x - 1) / (2 * 0.81))
    exact = [np.log(np.trapezoid(norm.pdf(x, 0, 0.9) * ratio ** (1 + e), x)) for e in s]
    assert values[0] == pytest.approx(exact, rel=1e-2)
