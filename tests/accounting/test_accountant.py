"""The accountant: plans, refusals, progress, and how often it evaluates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Accountant, Budget, BudgetExceeded, Event, Ledger, accountant, epsilon
from fedpriv.accounting.ledger import read

BUDGET = Budget(2.0, 1e-5)


def release(z: float, count: int = 1) -> Event:
    return Event(float(z), "poisson", "add-remove", rate=0.02, count=count)


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = accountant.epsilons

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return real(*arguments, **named)

    monkeypatch.setattr(accountant, "epsilons", counted)
    return calls


@pytest.mark.parametrize("planned", [True, False])
def test_the_upper_bound_is_held_against_the_budget(planned: bool) -> None:
    """The budget lies between the certified bounds: true epsilon may be above it."""
    events = [release(2.0, 20)]
    bounds = epsilon(events, 1e-5)
    assert bounds.epsilon_lower is not None
    assert bounds.epsilon_lower < bounds.epsilon
    between = Budget((bounds.epsilon_lower + bounds.epsilon) / 2, 1e-5)
    gate = Accountant(between, plan=events if planned else ())
    assert not gate.affords(events)
    with pytest.raises(BudgetExceeded):
        gate.charge(events)
    assert Accountant(Budget(bounds.epsilon, 1e-5)).affords(events)
    assert gate.spent().epsilon == 0


def test_a_plan_is_verified_once(evaluations: list[int]) -> None:
    plan = [release(z) for z in np.linspace(1.4, 1.0, 200)]
    budget_gate = Accountant(BUDGET, plan=plan)
    for event in plan:
        assert budget_gate.affords([event])
        budget_gate.charge([event])
    assert len(evaluations) == 1
    assert budget_gate.releases == 200
    assert budget_gate.spent() == epsilon(plan, BUDGET.delta)


def test_charging_time_does_not_grow_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADP-SGD's releases are all distinct; a pass over all of them in every round would take quadratic
    time."""
    plan = [release(z) for z in np.linspace(3.0, 2.5, 2000)]
    budget_gate = Accountant(BUDGET, plan=plan)
    looked_up, real = [0], Event.__hash__

    def counted(event: Event) -> int:
        looked_up[0] += 1
        return real(event)

    costs = []
    monkeypatch.setattr(Event, "__hash__", counted)
    for event in plan:
        assert budget_gate.affords([event])
        budget_gate.charge([event])
        costs.append(looked_up[0])
    assert costs[-1] - costs[-100] <= 2 * costs[99]


def test_the_plan_may_be_charged_in_any_order(evaluations: list[int]) -> None:
    plan = [release(z) for z in np.linspace(1.4, 1.0, 20)]
    budget_gate = Accountant(BUDGET, plan=plan)
    budget_gate.charge(plan[10:])
    budget_gate.charge(plan[:10])
    assert len(evaluations) == 1


def test_events_outside_the_plan_are_evaluated_and_refused_completely() -> None:
    plan = [release(1.0)] * 50
    budget_gate = Accountant(BUDGET, plan=plan)
    budget_gate.charge(plan[:40])
    before = budget_gate.spent()
    with pytest.raises(BudgetExceeded):
        budget_gate.charge([release(1.0), release(0.2, 40)])
    assert (budget_gate.releases, budget_gate.spent()) == (40, before)
    budget_gate.charge([release(0.9)])
    assert budget_gate.releases == 41


def test_a_constant_schedule_without_a_plan_takes_few_evaluations(evaluations: list[int]) -> None:
    budget_gate = Accountant(Budget(3.0, 1e-5))
    charged = 0
    while budget_gate.affords([release(1.0)]):
        budget_gate.charge([release(1.0)])
        charged += 1
    assert epsilon([release(1.0, charged)], 1e-5).epsilon <= 3.0
    assert epsilon([release(1.0, charged + 1)], 1e-5).epsilon > 3.0
    assert charged > 200
    assert len(evaluations) < np.log2(charged) ** 2


def test_a_plan_that_exceeds_the_budget_stops_in_time() -> None:
    budget_gate = Accountant(Budget(3.0, 1e-5), plan=[release(1.0)] * 5000)
    while budget_gate.affords([release(1.0, 50)]):
        budget_gate.charge([release(1.0, 50)])
    with pytest.raises(BudgetExceeded):
        budget_gate.charge([release(1.0, 50)])
    assert 2.5 < budget_gate.spent().epsilon <= 3.0


def test_nothing_is_charged_when_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {})
    ledger.close()
    budget_gate = Accountant(BUDGET, ledger=ledger)
    with pytest.raises(ValueError, match="closed file"):
        budget_gate.charge([release(1.0)])
    assert budget_gate.releases == 0


def test_a_refused_charge_is_not_in_the_ledger(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        budget_gate = Accountant(BUDGET, ledger=ledger)
        budget_gate.charge([release(1.0), release(2.0)])
        with pytest.raises(BudgetExceeded):
            budget_gate.charge([release(0.1, 100)])
    assert read(tmp_path / "ledger.jsonl").events == (release(1.0), release(2.0))


def test_earlier_charges_count() -> None:
    plan = [release(1.0)] * 100
    budget_gate = Accountant(BUDGET, plan=plan, charged=plan[:60])
    assert budget_gate.releases == 60
    assert budget_gate.spent() == epsilon(plan[:60], BUDGET.delta)
    assert budget_gate.progress() == pytest.approx(budget_gate.spent().epsilon, rel=0.02)
    spent = Accountant(Budget(1e-3, 1e-5), charged=plan)
    assert not spent.affords([release(50.0)])


@pytest.mark.slow
def test_progress_is_never_below_what_is_spent(evaluations: list[int]) -> None:
    plan = [release(z) for z in np.linspace(1.6, 1.0, 120)]
    budget_gate = Accountant(BUDGET, plan=plan)
    assert budget_gate.progress() == 0
    shown = []
    for i, event in enumerate(plan):
        budget_gate.charge([event])
        shown.append(budget_gate.progress())
        if i % 30 == 0 or i == 119:
            lower = budget_gate.spent().epsilon_lower
            assert lower is not None
            assert lower <= shown[-1]
    assert shown == sorted(shown)
    assert shown[-1] == pytest.approx(budget_gate.spent().epsilon, rel=0.02)
    assert len(evaluations) == 2
    budget_gate.charge([release(40.0)])
    assert budget_gate.progress() == budget_gate.spent().epsilon


def test_reading_changes_nothing() -> None:
    budget_gate = Accountant(BUDGET)
    budget_gate.charge([release(1.0)])
    first = budget_gate.spent()
    budget_gate.affords([release(0.1, 1000)])
    budget_gate.progress()
    assert budget_gate.spent() == first
    assert budget_gate.releases == 1


def test_an_infinite_budget_affords_everything() -> None:
    budget_gate = Accountant(Budget(float("inf"), 1e-5), plan=[release(0.0)])
    budget_gate.charge([release(0.0), release(0.0)])
    assert budget_gate.spent().epsilon == float("inf")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((0.0, 1e-5), "epsilon is"), ((1.0, 0.0), "delta is"), ((1.0, 1e-5, "moments"), "accounting is")],
)
def test_budgets_are_checked(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        Budget(*arguments)


@pytest.mark.slow
def test_charging_a_plan_evaluates_epsilon_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [release(z) for z in np.linspace(4.0, 3.0, 5000)]
    budget_gate = Accountant(Budget(5.0, 1e-5), plan=plan)
    monkeypatch.setattr(accountant, "epsilons", None)  # any evaluation from here on fails
    for event in plan:
        budget_gate.charge([event])
    assert budget_gate.releases == 5000
