"""zCDP and tCDP: the papers' formulas, and the amplification theorem against exact divergences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.events import fixed_size, poisson
from helpers.methods_suite import MethodSuite
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event, UnsupportedEvent, epsilon
from fedpriv.accounting.methods import rdp
from fedpriv.accounting.methods.zcdp import Tcdp, Zcdp, rho


class TestZcdp(MethodSuite):
    method, kind = "zcdp", "bound"
    little = 2e-2
    calm = 20.0


class TestTcdp(MethodSuite):
    method, kind = "tcdp", "bound"
    little = 2e-2
    calm = 20.0


class TestTcdpFixedSize(TestTcdp):
    event = staticmethod(fixed_size)


def test_zcdp_is_bun_and_steinke_and_ignores_sampling() -> None:
    """2016: rho + 2 sqrt(rho log(1/delta)), rho = T / (2 z^2)."""
    total = 40 / (2 * 3.0**2)
    expected = total + 2 * math.sqrt(total * math.log(1e5))
    for rate in (1.0, 0.3, 1e-3):
        assert epsilon([poisson(3.0, rate, 40)], 1e-5, "zcdp").epsilon == pytest.approx(expected, rel=1e-12)
    replaced = [Event(6.0, "poisson", "replace-one", 0.1, count=40)]
    assert epsilon(replaced, 1e-5, "zcdp").epsilon == pytest.approx(expected, rel=1e-12)


def test_tcdp_is_amplified_where_the_theorem_holds() -> None:
    """13 q^2 rho up to the order log(1/q) / (4 rho). The best order is first below this limit, then at it."""
    one, q = 1 / (2 * 4.0**2), 0.01
    total = 13 * q**2 * one * 1000
    expected = total + 2 * math.sqrt(total * math.log(1e5))
    assert epsilon([poisson(4.0, q, 1000)], 1e-5, "tcdp").epsilon == pytest.approx(expected, rel=1e-12)
    end = math.log(1 / q) / (4 * one)
    few = 13 * q**2 * one
    at_end = few * end + math.log(1e5) / (end - 1)
    assert 1 + math.sqrt(math.log(1e5) / few) > end
    assert epsilon([poisson(4.0, q)], 1e-5, "tcdp").epsilon == pytest.approx(at_end, rel=1e-12)


@pytest.mark.parametrize("event", [poisson(2.2, 0.05, 50), poisson(4.0, 0.11, 50), poisson(2.3, 0.4, 50)])
def test_no_amplification_outside_the_theorem(event: Event) -> None:
    assert epsilon([event], 1e-5, "tcdp").epsilon == epsilon([event], 1e-5, "zcdp").epsilon


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.5, 30), st.floats(1e-4, 0.3), st.integers(1, 500)), min_size=1, max_size=6)
)
def test_every_event_is_amplified_up_to_its_own_order(runs: list[tuple[float, float, int]]) -> None:
    counts = {poisson(z, q): n for z, q, n in runs}
    profile = Tcdp().stages([counts], 1e-5)[0]

    def divergence(order: float) -> float:
        total = 0.0
        for event, n in counts.items():
            plain, q = rho(event), event.rate
            holds = plain <= 0.1 and q <= 0.1 and math.log(1 / q) >= 3 * plain * (2 + math.log2(1 / plain))
            amplified = holds and order <= math.log(1 / q) / (4 * plain)
            total += n * order * plain * (13 * q**2 if amplified else 1)
        return total

    grid = 1 + np.geomspace(1e-3, 1e6, 4000)
    brute = min(divergence(order) + math.log(1e5) / (order - 1) for order in grid)
    assert profile.epsilon(1e-5)[0] <= brute * (1 + 1e-9)
    assert profile.epsilon(1e-5)[0] >= brute * 0.97
    assert profile.epsilon(1e-5)[0] <= Zcdp().stages([counts], 1e-5)[0].epsilon(1e-5)[0] * (1 + 1e-12)


@pytest.mark.parametrize("q", [1e-4, 1e-3, 0.01, 0.05, 0.1])
@pytest.mark.parametrize("z", [2.24, 3.0, 6.0, 20.0])
def test_amplification_is_above_the_exact_divergence(q: float, z: float) -> None:
    """Mironov et al. 2019 is exact for whole orders, so the theorem's bound must never be below it."""
    exact = rdp.Rdp().stages([{poisson(z, q): 1}], 1e-5)[0].divergences
    profile = Tcdp().stages([{poisson(z, q): 1}], 1e-5)[0]
    if z > 2.3:
        assert len(profile.omega) == 2
    for order, divergence in zip(rdp.ORDERS, exact, strict=True):
        if float(order).is_integer() and np.isfinite(divergence):
            bound = profile.rho[np.argmax(profile.omega >= order)] * order
            assert divergence <= bound


def test_refuses_poisson_under_replace_one_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match=r"tcdp does not support poisson.*use pld or zcdp"):
        epsilon([Event(3.0, "poisson", "replace-one", rate=0.05)], 1e-5, "tcdp")


def test_only_zcdp_supports_noisy_max() -> None:
    """e^2 / 2 of an (e, 0)-private release (Bun & Steinke 2016), e = 1 / z, doubled under replace-one."""
    for relation, e in (("add-remove", 0.2), ("replace-one", 0.4)):
        choice = Event(5.0, "none", relation, mechanism="noisy-max", count=3)
        total = 3 * e**2 / 2
        expected = total + 2 * math.sqrt(total * math.log(1e5))
        assert epsilon([choice], 1e-5, "zcdp").epsilon == pytest.approx(expected, rel=1e-12)
        assert Event.from_json(choice.to_json()) == choice
        for method in ("pld", "rdp", "gdp-clt", "tcdp", "advanced"):
            with pytest.raises(UnsupportedEvent, match=r"does not support noisy-max; use zcdp"):
                epsilon([choice], 1e-5, method)
    with pytest.raises(
        ArgumentError, match="sampler is 'poisson'; it must be 'none' for the mechanism noisy-max"
    ):
        Event(5.0, "poisson", "add-remove", rate=0.1, mechanism="noisy-max")
