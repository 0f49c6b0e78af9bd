"""Renyi accounting; dp-accounting's treatment of replace-one does not reach a user."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from helpers.events import fixed_size, poisson
from helpers.methods_suite import MethodSuite

from fedpriv.accounting import Event, UnsupportedEvent, epsilon
from fedpriv.accounting.methods import rdp


class TestRdp(MethodSuite):
    method, kind = "rdp", "bound"


def divergence(z: float, q: float, order: float) -> float:
    """The Renyi divergence of removal by numerical integration."""

    def density(x: Any) -> Any:
        ratio = 1 - q + q * mp.exp((2 * x - 1) / (2 * z**2))
        return ratio**order * mp.npdf(x, 0, z)

    points = [-12 * z, 0, 1, order, order + 12 * z]
    return float(mp.log(mp.quad(density, points)) / (order - 1))


@pytest.mark.parametrize(("z", "q"), [(0.8, 0.01), (2.0, 0.3)])
@pytest.mark.parametrize("order", [2.5, 4.0, 16.0])
def test_moments_against_integration(z: float, q: float, order: float) -> None:
    profile = rdp.Rdp().stages([{poisson(z, q): 3}], 1e-5)[0]
    found, exact = profile.divergences[rdp.ORDERS.index(order)], 3 * divergence(z, q, order)
    # dp-accounting's series for orders that are not whole takes absolute values of alternating terms.
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-6 if order.is_integer() else 1.1)


@pytest.mark.parametrize(("z", "delta"), [(0.3, 1e-5), (2.0, 1e-3), (20.0, 1e-9)])
def test_epsilon_is_proposition_12(z: float, delta: float) -> None:
    """Canonne et al. 2020, as the paper prints it, for the Gaussian, whose divergence is a / (2 z^2)."""
    least = min(
        a / (2 * z**2) + (math.log(1 / delta) + (a - 1) * math.log(1 - 1 / a) - math.log(a)) / (a - 1)
        for a in rdp.ORDERS
    )
    assert epsilon([Event(z, "none", "add-remove")], delta, "rdp").epsilon == pytest.approx(least, rel=1e-12)


def test_fixed_size_sampling_has_the_doubled_sensitivity() -> None:
    events = [Event(1.0, "without-replacement", "replace-one", rate=0.1, count=100)]
    assert epsilon(events, 1e-5, "rdp").epsilon == pytest.approx(83.9, abs=0.1)


@pytest.mark.parametrize("z", [1e6, 1e8, 1e12])
def test_fixed_size_cohorts_with_hardly_a_loss_are_answered(z: float) -> None:
    answer = epsilon([fixed_size(z, 0.01, 1000)], 1e-9, "rdp")
    assert epsilon([fixed_size(1e5, 0.01, 1000)], 1e-9, "rdp").epsilon >= answer.epsilon > 0


def test_rate_one_is_the_unsampled_gaussian_for_each_sampler() -> None:
    plain = epsilon([Event(2.0, "none", "replace-one")], 1e-5, "rdp").epsilon
    everyone = epsilon([Event(2.0, "without-replacement", "replace-one", rate=1.0)], 1e-5, "rdp").epsilon
    assert everyone == plain == pytest.approx(epsilon([poisson(1.0, 1.0)], 1e-5, "rdp").epsilon)


def test_upstream_mending_its_sensitivity_does_not_halve_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event(1.0, "without-replacement", "replace-one", rate=0.2, count=10)
    today = epsilon([event], 1e-5, "rdp").epsilon
    assert not rdp.upstream_halves()

    def mended(given: SampledWithoutReplacementDpEvent, relation: NeighboringRelation) -> Any:
        accountant = RdpAccountant(rdp.ORDERS, relation)
        inner = GaussianDpEvent(given.event.noise_multiplier / 2)
        accountant.compose(
            SampledWithoutReplacementDpEvent(given.source_dataset_size, given.sample_size, inner)
        )
        return np.array(accountant._rdp)

    for cached in (rdp._divergences, rdp.upstream_halves):
        cached.cache_clear()
    monkeypatch.setattr(rdp, "_upstream", mended)
    try:
        assert rdp.upstream_halves()
        assert epsilon([event], 1e-5, "rdp").epsilon == pytest.approx(today, rel=1e-9)
    finally:
        for cached in (rdp._divergences, rdp.upstream_halves):
            cached.cache_clear()


def test_refuses_poisson_under_replace_one_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match=r"rdp does not support poisson.*replace-one; use pld or z"):
        epsilon([Event(1.0, "poisson", "replace-one", rate=0.1)], 1e-5, "rdp")


@pytest.mark.slow
def test_rounding_many_multipliers_gives_an_upper_bound() -> None:
    z = np.linspace(1.5, 1.0, 200)
    many = epsilon([poisson(float(s), 0.01) for s in z], 1e-5, "rdp").epsilon
    least = epsilon([poisson(1.5, 0.01, 200)], 1e-5, "rdp").epsilon
    most = epsilon([poisson(1.0, 0.01, 200)], 1e-5, "rdp").epsilon
    exact = epsilon([poisson(float(s), 0.01, 5) for s in z[2::5]], 1e-5, "rdp").epsilon
    assert least < exact * 0.999 < many < exact * 1.02 < most


def test_the_root_logger_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """absl adds a handler to a root logger without handlers, and Flower's debug lines would be printed by
    it."""
    monkeypatch.setattr(logging.root, "handlers", [])
    event = PoissonSampledDpEvent(0.5, GaussianDpEvent(0.5))
    rdp._upstream(event, NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert logging.root.handlers == []
    RdpAccountant([1.5], NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
    assert logging.root.handlers  # what absl does by default


def test_convergence_warnings_of_this_thread_alone_are_suppressed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("absl")
    before = (logger.level, list(logger.filters))
    with caplog.at_level(logging.WARNING):
        event = PoissonSampledDpEvent(0.5, GaussianDpEvent(0.5))
        RdpAccountant([1.5], NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
        assert "converge" in caplog.text  # the lines that would be printed
        caplog.clear()
        rdp._upstream(event, NeighboringRelation.ADD_OR_REMOVE_ONE)
        assert caplog.text == ""
        with rdp._without_warnings():
            logger.error("an error")
            other = threading.Thread(target=logger.warning, args=("of another thread",))
            other.start()
            other.join()
        logger.warning("afterwards")
    assert [record.getMessage() for record in caplog.records] == [
        "an error",
        "of another thread",
        "afterwards",
    ]
    assert (logger.level, logger.filters) == before


@pytest.mark.slow
def test_dp_accounting_is_imported_on_first_use() -> None:
    code = (
        "import sys, fedpriv.config.builders, fedpriv.config.plan; "
        "from fedpriv.accounting import Event, epsilon; "
        "assert not any(name.startswith('dp_accounting') for name in sys.modules); "
        "epsilon([Event(1.0, 'poisson', 'add-remove', rate=0.1)], 1e-5, 'rdp'); "
        "assert 'dp_accounting' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
