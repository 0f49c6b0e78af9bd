"""Du's extended central limit theorem."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.events import poisson
from helpers.methods_suite import MethodSuite
from scipy.stats import norm

from fedpriv.accounting import Event, UnsupportedEvent, epsilon
from fedpriv.accounting.methods.gdp_clt import GdpClt


class TestGdpClt(MethodSuite):
    method, kind = "gdp-clt", "estimate"


def test_equation_7_and_equation_1() -> None:
    z, q = np.array([0.8, 1.1, 2.0]), 0.03
    mu = q * math.sqrt(sum(50 * (math.exp(1 / s**2) - 1) for s in z))
    eps = epsilon([poisson(float(s), q, 50) for s in z], 1e-5, "gdp-clt").epsilon
    delta = norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * norm.cdf(-eps / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_known_figures() -> None:
    assert epsilon([poisson(0.5, 0.01, 200)], 1e-5, "gdp-clt").epsilon == pytest.approx(4.56, abs=5e-3)
    z = 0.5 ** (np.arange(5000) / 4999)
    events = [poisson(float(s), 1e-3) for s in z]
    assert epsilon(events, 4e-7, "gdp-clt").epsilon == pytest.approx(1.08, abs=5e-3)


def test_unsampled_releases_are_exact_and_others_refused() -> None:
    plain = Event(2.0, "none", "add-remove", count=3)
    assert GdpClt().stages([{plain: 3}], 1e-5)[0].mu == pytest.approx(math.sqrt(3) / 2)
    with pytest.raises(UnsupportedEvent, match=r"gdp-clt does not support without-.*use pld or rdp or "):
        epsilon([Event(1.0, "without-replacement", "replace-one", rate=0.1)], 1e-5, "gdp-clt")


def test_tiny_noise_does_not_overflow() -> None:
    assert epsilon([poisson(0.01, 0.5)], 1e-5, "gdp-clt").epsilon == math.inf
