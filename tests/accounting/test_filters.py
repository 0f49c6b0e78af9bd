"""Filters: what they allow, however the noise is chosen, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers.events import poisson
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, BudgetExceeded, Event, Ledger, UnsupportedEvent, epsilon
from fedpriv.accounting.filters import FILTERS, Filter
from fedpriv.accounting.ledger import read
from fedpriv.accounting.methods import gaussian


def budget(method: str, target: float = 2.0) -> Budget:
    return Budget(target, 1e-5, method)


@pytest.mark.parametrize("method", [pytest.param("rdp", marks=pytest.mark.slow), "zcdp"])
@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(1.0, 8), st.sampled_from([0.01, 0.3, 1.0])), min_size=1, max_size=60))
def test_every_charged_sequence_stays_within_the_budget(
    method: str, choices: list[tuple[float, float]]
) -> None:
    budget_gate = Filter(budget(method))
    charged = []
    for z, rate in choices:
        event = poisson(z, rate)
        if budget_gate.affords([event]):
            budget_gate.charge([event])
            charged.append(event)
        else:
            with pytest.raises(BudgetExceeded, match=f"by the {method} filter"):
                budget_gate.charge([event])
    assert 0 <= budget_gate.used <= 1
    assert epsilon(charged, 1e-5, "pld").epsilon <= 2.0
    assert epsilon(charged, 1e-5, method).epsilon <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("method", FILTERS)
def test_equal_releases_match_ordinary_composition(method: str) -> None:
    """Fully adaptive composition costs nothing here: the filter stops where the method itself does."""
    event = poisson(30.0, 1.0)
    budget_gate, count = Filter(budget(method), typical=event), 0
    while budget_gate.affords([event]):
        budget_gate.charge([event])
        count += 1
    assert epsilon([poisson(30.0, 1.0, count)], 1e-5, method).epsilon <= 2.0
    assert epsilon([poisson(30.0, 1.0, count + 2)], 1e-5, method).epsilon > 2.0


def test_the_typical_release_chooses_a_better_order() -> None:
    event = poisson(0.8, 0.01)
    plain, fitted = Filter(budget("rdp")), Filter(budget("rdp"), typical=event)
    assert not plain.affords([event])
    fitted.charge([event])
    count = int(1 / fitted.used)
    assert epsilon([poisson(0.8, 0.01, count)], 1e-5, "rdp").epsilon == pytest.approx(2.0, rel=0.02)


def test_noise_chosen_from_answers_does_not_exceed_the_budget() -> None:
    """An attacker who learns from Gaussian answers on two neighbours, 0 and 1, and asks for less noise when
    the answers so far look like 1. The exact privacy loss of the whole, simulated: delta(2) <= 1e-5.

    200,000 runs; the mean of the estimate is at most 1e-5, its terms lie in [0, 1], so that it passes
    1.5e-4 with probability below 1e-6 (Chernoff: exp(-200000 * KL(1.5e-4 || 1e-5)) < e^-50).
    """
    generator, runs = np.random.default_rng(3), 200_000
    target = math.log(1e5)
    limit = (math.sqrt(target + 2.0) - math.sqrt(target)) ** 2
    loss, left = np.zeros(runs), np.full(runs, limit)
    for _ in range(12):
        z = np.where(loss > 0, 4.0, 8.0)
        live = left >= 0.5 / z**2
        answer = 1 + z * generator.standard_normal(runs)
        loss = loss + np.where(live, (2 * answer - 1) / (2 * z**2), 0.0)
        left = left - np.where(live, 0.5 / z**2, 0.0)
    failed = float(np.maximum(-np.expm1(2.0 - loss), 0).mean())
    assert failed < 1.5e-4
    # The test has power: without the filter it fails.
    assert gaussian.log_delta(math.sqrt(12) / 4, 2.0) > math.log(1.5e-3)


@pytest.mark.parametrize("method", FILTERS)
def test_charges_add_up(method: str) -> None:
    budget_gate, uses = Filter(budget(method)), list[float]()
    for _ in range(3):
        budget_gate.charge([poisson(30.0, 1.0)])
        uses.append(budget_gate.used)
    assert uses == pytest.approx([uses[0], 2 * uses[0], 3 * uses[0]])
    assert uses[0] > 0


def test_charges_are_atomic_and_written_to_the_ledger(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        budget_gate = Filter(budget("zcdp"), ledger=ledger)
        budget_gate.charge([poisson(8.0, 1.0), poisson(9.0, 0.1)])
        used = budget_gate.used
        with pytest.raises(BudgetExceeded, match=r"51 more release\(s\)"):
            budget_gate.charge([poisson(8.0, 1.0), poisson(2.0, 1.0, 50)])
        assert budget_gate.used == used
    assert len(read(tmp_path / "ledger.jsonl").events) == 2


def test_extremes() -> None:
    for method in FILTERS:
        budget_gate = Filter(budget(method))
        budget_gate.charge([poisson(1.0, 0.0), poisson(math.inf, 1.0)])
        budget_gate.charge([])
        assert budget_gate.used == 0
        assert not budget_gate.affords([poisson(0.0, 0.1)])


@pytest.mark.parametrize("method", ["pld", "gdp-clt", "tcdp", "advanced"])
def test_methods_without_a_filter_are_refused_by_name(method: str) -> None:
    message = (
        f"accounting is '{method}'; it must be one of rdp, zcdp .the other methods have no privacy filter"
    )
    with pytest.raises(ArgumentError, match=message):
        Filter(budget(method))


def test_unsupported_budgets_and_events_are_refused() -> None:
    with pytest.raises(ArgumentError, match="epsilon is inf"):
        Filter(Budget(math.inf, 1e-5, "zcdp"))
    with pytest.raises(ArgumentError, match="too small for the rdp filter"):
        Filter(Budget(1e-4, 1e-5, "rdp"))
    with pytest.raises(ArgumentError, match="typical event's noise-multiplier"):
        Filter(budget("rdp"), typical=poisson(0.0, 0.1))
    budget_gate = Filter(budget("rdp"))
    budget_gate.charge([poisson(9.0, 0.01)])
    with pytest.raises(UnsupportedEvent, match="add-remove and replace-one"):
        budget_gate.affords([Event(9.0, "none", "replace-one")])
    with pytest.raises(UnsupportedEvent, match="rdp filter does not support truncated cohorts"):
        budget_gate.affords([Event(9.0, "poisson", "add-remove", 0.01, truncation=1e-12)])
    with pytest.raises(UnsupportedEvent, match="rdp filter does not support poisson"):
        Filter(budget("rdp")).affords([Event(9.0, "poisson", "replace-one", 0.01)])
