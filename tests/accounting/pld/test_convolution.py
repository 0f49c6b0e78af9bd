"""Sums by transforms against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.accounting.pld.convolution import Curve, Total, longer
from fedpriv.accounting.pld.discretisation import Direction, Lattice

LONG = pytest.mark.skipif(longer() is None, reason="no longer floating-point type here")
DIRECTION = Direction(1.0, -1.0, 3.0)
LATTICE = Lattice(0.25, 512, -40.0, DIRECTION, DIRECTION)


def delta_of(masses: np.ndarray, losses: np.ndarray, eps: float) -> float:
    return float((masses * np.maximum(-np.expm1(eps - losses), 0)).sum())


def summed(times: int) -> tuple[np.ndarray, np.ndarray]:
    masses, one = np.ones(1), np.array([0.2, 0.5, 0.0, 0.3])
    for _ in range(times):
        masses = np.convolve(masses, one)
    return masses, times * -0.3 + 0.25 * np.arange(len(masses))


def curves(stages: list[int], infinite: float = 0.0) -> list[Curve]:
    total = Total(LATTICE, DIRECTION, len(stages))
    counts = np.array(stages)[:, None]
    total.add(np.array([[0.2, 0.5, 0.0, 0.3]]), np.array([-0.3]), counts, np.array([infinite]))
    return total.curves()


@pytest.mark.parametrize("times", [1, 2, 7, 30])
def test_epsilon_of_the_sum(times: int) -> None:
    curve = curves([times])[0]
    masses, losses = summed(times)
    for delta in (0.2, 1e-2, 1e-4, 1e-7):
        upper, lower = curve.upper(delta), curve.lower(delta)
        assert lower <= upper <= lower + 1e-5
        assert delta_of(masses, losses, upper) <= delta
        assert lower == 0 or delta_of(masses, losses, lower) >= delta


def test_stages_are_cumulative_sums() -> None:
    for curve, times in zip(curves([2, 5, 3]), (2, 7, 10), strict=True):
        assert curve.upper(1e-3) == pytest.approx(curves([times])[0].upper(1e-3), abs=1e-6)
        assert curve.releases == times


def test_mass_at_infinity_is_a_lower_bound_of_delta() -> None:
    curve = curves([4], infinite=1e-4)[0]
    assert curve.upper(4e-4) == math.inf
    assert curve.upper(4e-4 + 1e-3) == pytest.approx(curves([4])[0].upper(1e-3), abs=1e-6)


@LONG
@pytest.mark.parametrize(("counts", "moved"), [([3000], 0.3), ([3000], 1e-7), ([7, 900, 2], 0.05)])
def test_round_off_is_below_its_bound(counts: list[int], moved: float) -> None:
    """Longer floating-point numbers tell what doubles lost; stages add up."""
    lattice = Lattice(0.01, 2**14, -40.0, DIRECTION, DIRECTION)
    measures = np.array([[1 - moved, 0.9 * moved, 0.0, 0.1 * moved]])
    found = []
    for real in (float, np.longdouble):
        total = Total(lattice, DIRECTION, len(counts), real)
        total.add(measures, np.zeros(1), np.array(counts)[:, None], np.zeros(1))
        found.append(total.curves())
    for double, long in zip(*found, strict=True):
        assert long.round_off < 1e-3 * double.round_off
        for eps in np.linspace(0.0, 0.9 * double.losses[-1], 50):
            scale = math.exp(min(double.log_scale - eps, 700.0))
            at = [curve.delta(eps) - curve.round_off * scale for curve in (double, long)]
            assert abs(at[0] - at[1]) <= double.round_off * scale + 1e-9 * at[1]


def test_round_off_is_small_where_few_frequencies_are_left() -> None:
    """A wide sum has few frequencies, and the round-off of the others vanishes with them."""
    each = 2.0**-53 * (8 * math.log2(512) + 10)
    one, many = curves([1])[0], curves([300])[0]
    assert one.round_off == pytest.approx(math.sqrt(2 * 257) * 2 * each, rel=1e-3)
    assert 300 * each < many.round_off < 0.3 * math.sqrt(2 * 257) * 300 * each


def test_too_small_a_window_widens_the_bounds() -> None:
    small = Total(Lattice(0.25, 32, -40.0, DIRECTION, DIRECTION), DIRECTION)
    small.add(np.array([[0.2, 0.5, 0.0, 0.3]]), np.array([-0.3]), np.array([[60]]), np.zeros(1))
    curve, whole = small.curves()[0], curves([60])[0]
    assert curve.upper(1e-4) >= whole.lower(1e-4)
    assert curve.lower(1e-4) <= whole.upper(1e-4)
