"""RunAccountant: the charged events under each placement, and the epsilon shown in every round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.small import small

from fedpriv.accounting import accountant as accountants
from fedpriv.accounting import epsilon
from fedpriv.accounting import ledger as ledgers
from fedpriv.accounting.methods import registry
from fedpriv.config.plan import Plan, make_plan
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.node.factory import make_worker
from fedpriv.runs import budget as books_module
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute


def open_accountant(plan: Plan, folder: Path) -> RunAccountant:
    path = folder / "ledger.jsonl"
    return RunAccountant(plan, ledgers.Ledger.create(path, {}), path)


def test_under_a_participation_cap_the_client_who_lost_most_counts(tmp_path: Path) -> None:
    plan = make_plan(small(placement="local", max_participations=2))
    budget_gate, spent = open_accountant(plan, tmp_path), []
    for event in plan.mechanism.planned_events():
        assert budget_gate.affords([event])
        budget_gate.charge([event])
        spent.append(budget_gate.spent())
    assert spent == sorted(spent)
    assert 0.99 * 3 <= spent[-1] <= 3
    cheap, dear = plan.mechanism.event(50.0), plan.mechanism.event(0.5)
    assert budget_gate.affords([cheap])  # nobody's two costliest releases change
    assert not budget_gate.affords([dear])


@pytest.mark.parametrize("cap", [0, 2])
def test_the_upper_bound_is_held_against_the_budget(tmp_path: Path, cap: int) -> None:
    """With a cap and without, for one planned release and for several: the budget is between the bounds."""
    plan = make_plan(small(placement="local", max_participations=cap, optimizer="dp-sgd"))
    assert plan.budget is not None
    bounds = epsilon(plan.of_worst_client(plan.events), plan.budget.delta)
    assert bounds.epsilon_lower is not None
    between = (bounds.epsilon_lower + bounds.epsilon) / 2
    assert bounds.epsilon_lower < between < bounds.epsilon
    gate = open_accountant(replace(plan, budget=replace(plan.budget, epsilon=between)), tmp_path)
    assert not gate.affords(plan.events)
    if cap:  # then a release is let in with the whole plan
        assert not gate.affords(plan.events[:1])
    else:
        for event in plan.events[:-1]:
            gate.charge([event])
        assert not gate.affords(plan.events[-1:])


@pytest.mark.parametrize("cap", [0, 6])
def test_without_a_binding_cap_repeated_releases_are_charged(tmp_path: Path, cap: int) -> None:
    """A limit of participations above the number of rounds has no effect."""
    plan = make_plan(small(placement="local", max_participations=cap))
    budget_gate, planned = open_accountant(plan, tmp_path), plan.mechanism.planned_events()
    for event in planned:
        assert budget_gate.affords([event])
        budget_gate.charge([event])
    assert not budget_gate.affords(planned[:1])
    assert not budget_gate.affords([planned[0]] * 2)


def test_a_run_of_lost_replies_under_local_noise_ends_at_the_budget(tmp_path: Path) -> None:
    """The server has seen the messages of a release that it did not make."""
    config = small(placement="local", sampler="fixed-size", min_replies=40, optimizer="dp-sgd")

    class Lossy:
        def __init__(self) -> None:
            self.side = make_worker(config.table())

        def gather(self, request: SumRequest) -> PartialSum:
            reply = self.side.gather(request)
            return PartialSum(reply.sums, reply.parties - 1) if request.release % 2 else reply

        def close(self) -> None:
            pass

    result = execute(make_plan(config), Lossy(), RunFolder.create(tmp_path / "out"))
    assert result.stopped == "budget"
    assert (result.report["privacy"]["releases"], result.report["result"]["rounds"]) == (6, 3)
    server, _ = result.report["privacy"]["views"]
    assert server["epsilon"]["pld"]["epsilon"] <= 3


@pytest.mark.parametrize(
    "changes",
    [
        {"placement": "central"},
        {"placement": "local", "sampler": "fixed-size"},
        {"placement": "local", "max_participations": 30},
    ],
    ids=str,
)
@pytest.mark.slow
def test_progress_is_no_less_than_what_is_spent_and_cheap(
    tmp_path: Path, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(small(rounds=200, **changes))
    budget_gate, calls = open_accountant(plan, tmp_path), []
    answer = books_module.epsilon
    monkeypatch.setattr(books_module, "epsilon", lambda *a: calls.append(1) or answer(*a))  # type: ignore[func-returns-value]
    assert budget_gate.progress() == 0
    shown = []
    for t, event in enumerate(plan.mechanism.planned_events()):
        assert budget_gate.affords([event])
        budget_gate.charge([event])
        shown.append(budget_gate.progress())
        if t % 40 == 0:
            before = len(calls)
            assert budget_gate.spent() <= shown[-1] * (1 + 1e-4)
            del calls[before:]
    assert shown == sorted(shown)
    assert shown[-1] == pytest.approx(budget_gate.spent(), rel=1e-3)
    assert shown[-1] <= 3
    assert len(set(shown)) >= 30
    assert len(calls) <= 70


@pytest.mark.parametrize("every", [10, 1])
@pytest.mark.slow
def test_progress_has_a_point_at_the_first_release_and_at_each_evaluation(tmp_path: Path, every: int) -> None:
    plan = make_plan(small(rounds=60, evaluate_every=every))
    budget_gate = open_accountant(plan, tmp_path)
    for t, event in enumerate(plan.events, 1):
        budget_gate.charge([event])
        if t == 1 or t % every == 0:
            exact = epsilon(plan.events[:t], plan.budget.delta).epsilon
            assert exact * (1 - 1e-6) <= budget_gate.spent() <= exact * 1.02


@pytest.mark.parametrize("changes", [{}, {"placement": "local", "max_participations": 12}], ids=str)
def test_a_short_run_reports_the_exact_epsilon_after_each_release(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """No plateaus that come from rounding up to the next stop."""
    plan = make_plan(small(rounds=20, evaluate_every=20, **changes))
    budget_gate, shown = open_accountant(plan, tmp_path), []
    for t, event in enumerate(plan.mechanism.planned_events(), 1):
        budget_gate.charge([event])
        shown.append(budget_gate.progress())
        exact = epsilon(plan.of_worst_client(plan.events[:t]), plan.budget.delta).epsilon
        assert exact * (1 - 1e-6) <= shown[-1] <= exact * 1.02
    assert len(set(shown)) == 20


def test_a_run_is_composed_a_few_times_however_often_it_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.report.plots.curves", lambda *arguments: b"")
    monkeypatch.setattr("fedpriv.report.summary.views", lambda *arguments: [])
    calls: list[int] = []
    for module in (accountants, books_module, registry):
        for name in {"epsilon", "epsilons"} & set(vars(module)):
            answer = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *a, f=answer, **k: calls.append(1) or f(*a, **k))
    config = small(rounds=40, evaluate_every=1)
    plan = make_plan(config)
    calls.clear()
    result = execute(plan, make_worker(config.table()), RunFolder.create(tmp_path / "run"))
    assert len(result.metrics) == 40
    assert len(calls) <= 4  # the plan is verified, and its curve drawn
    spent = [record["epsilon"] for record in result.metrics]
    assert spent[0] > 0
    assert spent == sorted(spent)


def test_progress_off_the_plan_is_what_is_spent(tmp_path: Path) -> None:
    plan = make_plan(small(placement="local", max_participations=2))
    budget_gate = open_accountant(plan, tmp_path)
    budget_gate.charge([plan.mechanism.event(50.0)])
    assert budget_gate.progress() == budget_gate.spent()
