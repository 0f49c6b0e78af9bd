"""All methods against each other, and against the PRV accountants of Opacus and prv-accountant."""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import replace

import pytest
from helpers.events import poisson
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import METHODS, Accountant, Budget, Event, calibrate, epsilon, scaled

BOUNDS = [name for name, method in METHODS.items() if method.kind == "bound" and name != "pld"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "rdp" else ()) for name in BOUNDS]
)
@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0.5, 20), st.integers(1, 300)), min_size=1, max_size=3),
    st.sampled_from([1e-4, 0.01, 0.09, 0.4, 1.0]),
    st.sampled_from([("poisson", "add-remove"), ("without-replacement", "replace-one")]),
    st.sampled_from([1e-4, 1e-8]),
)
def test_no_upper_bound_is_below_the_lower_bound(
    name: str, runs: list[tuple[float, int]], rate: float, kind: tuple[str, str], delta: float
) -> None:
    events = [Event(z, *kind, rate=rate, count=n) for z, n in runs]
    lower = epsilon(events, delta).epsilon_lower
    assert lower is not None
    assert lower <= epsilon(events, delta, name).epsilon


@pytest.mark.parametrize("name", METHODS)
def test_the_calibrated_noise_does_not_exceed_the_budget(name: str) -> None:
    events = [poisson(20.0 * r, 0.01, 50) for r in (1.0, 0.8, 0.6)]
    scale = calibrate(events, Budget(2.0, 1e-5, name))
    spent = epsilon([scaled(event, scale) for event in events], 1e-5, name).epsilon
    # tCDP's amplification begins and ends at a noise multiplier, where epsilon jumps.
    assert (0 if name == "tcdp" else 0.99 * 2) < spent <= 2


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_charges_does_not_matter(name: str) -> None:
    events = [poisson(10.0 + (i % 7), 0.02) for i in range(60)]
    shuffled = random.Random(5).sample(events, len(events))
    budget_gate = Accountant(Budget(20.0, 1e-5, name), plan=events)
    for one, two in zip(shuffled[::2], shuffled[1::2], strict=True):
        assert budget_gate.affords([one, two])
        budget_gate.charge([one, two])
    assert budget_gate.spent().epsilon == pytest.approx(epsilon(events, 1e-5, name).epsilon, rel=1e-12)


@pytest.mark.parametrize("field", ["noise_multiplier", "rate", "truncation"])
def test_nan_is_refused(field: str) -> None:
    with pytest.raises(ArgumentError, match="nan"):
        replace(poisson(1.0, 0.1), **{field: math.nan})


RUNS = [[poisson(1.0, 0.01, 1000)], [poisson(0.8, 0.004, 2000), poisson(1.2, 0.02, 100)]]


@pytest.mark.parametrize("events", RUNS)
def test_brackets_opacus_prv(events: list[Event]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed")
        accountant = accountants.PRVAccountant()
        accountant.history = [(e.noise_multiplier, e.rate, e.count) for e in events]
        upper = accountant.get_epsilon(1e-5, eps_error=0.01)
    answer = epsilon(events, 1e-5)
    assert answer.epsilon_lower is not None
    # Their epsilon is an upper bound, at most eps_error above the true value.
    assert answer.epsilon_lower <= upper
    assert answer.epsilon >= upper - 0.021


@pytest.mark.parametrize("events", [RUNS[0], pytest.param(RUNS[1], marks=pytest.mark.slow)])
def test_within_the_bounds_of_prv_accountant(events: list[Event]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prv = pytest.importorskip("prv_accountant", reason="prv-accountant is not installed")
        counts = [event.count for event in events]
        accountant = prv.PRVAccountant(
            prvs=[prv.PoissonSubsampledGaussianMechanism(e.rate, e.noise_multiplier) for e in events],
            max_self_compositions=counts,
            eps_error=0.01,
            delta_error=1e-9,
        )
        lower, _, upper = accountant.compute_epsilon(1e-5, counts)
    answer = epsilon(events, 1e-5)
    assert answer.epsilon_lower is not None
    assert lower <= answer.epsilon
    assert answer.epsilon_lower <= upper
