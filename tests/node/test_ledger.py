"""NodeLedger: no release twice, none past the plan's budget or the owner's limit, under any race."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, Event, Ledger, LedgerError, epsilon
from fedpriv.accounting.head import head_path
from fedpriv.accounting.ledger import read
from fedpriv.accounting.methods import gaussian
from fedpriv.accounting.owner_limit import share
from fedpriv.config.plan import Plan, make_plan
from fedpriv.federated.engine import SumRequest
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node import ledger as node_ledger
from fedpriv.node.ledger import NodeLedger, open_node_ledger
from fedpriv.node.own_events import enforce_plan, own_events, same_events
from fedpriv.node.policy import RefusedError

LOCAL: dict[str, object] = {
    "unit": "example",
    "clients": 4,
    "examples_per_client": 50,
    "placement": "local",
    "nodes_own_data": True,
    "optimizer": "dynamic-dp-sgd",
    "rounds": 4,
    "delta": 1e-4,
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(small(**LOCAL))


def budget_gate(plan: Plan, tmp_path: Path, run: int = 1, limit: Budget | None = None) -> NodeLedger:
    return NodeLedger(plan, tmp_path / "ledger.jsonl", run, limit)


def charge_all(budget_gate: NodeLedger, events: Sequence[Event]) -> None:
    """Releases 0, 1, ... of these events."""
    for number, event in enumerate(events):
        budget_gate.charge(number, [event])


def test_planned_releases_are_charged_once(plan: Plan, tmp_path: Path) -> None:
    charge_all(budget_gate(plan, tmp_path), plan.events)
    for number, event in enumerate(plan.events):
        with pytest.raises(RefusedError, match=f"round {number} was answered before"):
            budget_gate(plan, tmp_path).charge(number, [event])
    assert read(tmp_path / "ledger.jsonl").events == plan.events
    budget_gate(plan, tmp_path, run=2).charge(0, plan.events[:1])  # another run has a budget of its own


def test_a_repeated_release_is_charged_while_the_budget_lasts(plan: Plan, tmp_path: Path) -> None:
    """Of a schedule whose steps all differ, the last (dearest) again and again."""
    last = plan.events[-1]
    with pytest.raises(RefusedError, match="would exceed the run's budget"):
        charge_all(budget_gate(plan, tmp_path), [last] * 20)
    count = len(read(tmp_path / "ledger.jsonl").events)
    spent = [epsilon([last] * n, 1e-4, "pld").epsilon for n in (count, count + 1)]
    assert 1 <= count < 4
    assert spent[0] <= 3 < spent[1]


def test_a_continued_run_makes_lost_releases_again_within_what_was_planned(tmp_path: Path) -> None:
    """Distributed noise of steps that all differ: a node alone loses more than the run's budget."""
    plan = make_plan(small(**{**LOCAL, "placement": "distributed", "clients": 4}))
    own = own_events(plan)
    assert plan.budget is not None
    assert epsilon(own, 1e-4).epsilon > plan.budget.epsilon
    assert len(set(own)) == 4
    plain = budget_gate(plan, tmp_path)
    charge_all(plain, own[:2])
    with pytest.raises(RefusedError, match="round 2 would exceed the run's budget"):
        plain.charge(2, [own[1]])
    continued = replace(plain, continued=True)
    for number in range(2, 9):
        try:
            continued.charge(number, [own[1]])
        except RefusedError:
            break
    spent = read(tmp_path / "ledger.jsonl").events
    assert len(spent) > 2
    most = epsilon(own, 1e-4).epsilon
    assert epsilon(spent, 1e-4).epsilon <= most < epsilon([*spent, own[1]], 1e-4).epsilon


def test_the_upper_bound_is_held_against_the_runs_budget(plan: Plan, tmp_path: Path) -> None:
    """Three releases that are not in the plan, and a budget between the certified bounds of their cost."""
    assert plan.budget is not None
    other = replace(plan.events[0], noise_multiplier=1.01 * plan.events[0].noise_multiplier)
    bounds = epsilon([other] * 3, plan.budget.delta)
    assert bounds.epsilon_lower is not None
    between = (bounds.epsilon_lower + bounds.epsilon) / 2
    assert bounds.epsilon_lower < between < bounds.epsilon
    own = budget_gate(replace(plan, budget=replace(plan.budget, epsilon=between)), tmp_path)
    charge_all(own, [other] * 2)
    with pytest.raises(RefusedError, match="would exceed the run's budget"):
        own.charge(2, [other])


def test_of_concurrent_requests_one_is_answered(plan: Plan, tmp_path: Path) -> None:
    def charge(number: int) -> bool:
        try:
            budget_gate(plan, tmp_path).charge(number, plan.events[:1])
        except RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(charge, [0] * 8)) == 1
    assert len(read(tmp_path / "ledger.jsonl").events) == 1


def test_an_edited_ledger_is_refused_and_an_incomplete_line_is_dropped(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    budget_gate(plan, tmp_path).charge(0, plan.events[:1])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event":')
    budget_gate(plan, tmp_path).charge(1, plan.events[1:2])
    assert read(path).events == plan.events[:2]
    path.write_text(path.read_text().replace('"round":0', '"round":9'))
    with pytest.raises(LedgerError, match="line 2 was edited"):
        budget_gate(plan, tmp_path).charge(0, plan.events[:1])


def test_the_owners_limit_covers_all_runs_of_one_unit(plan: Plan, tmp_path: Path) -> None:
    limit = Budget(2.0, 1e-4)
    charge_all(budget_gate(plan, tmp_path, 1, limit), plan.events)
    with pytest.raises(RefusedError, match="would exceed this node's epsilon-limit"):
        charge_all(budget_gate(plan, tmp_path, 2, limit), plan.events)
    charged = read(tmp_path / "ledger.jsonl").events
    assert 4 < len(charged) < 8
    added = [replace(event, relation="add-remove") for event in charged]  # a replaced example is two of these
    assert epsilon(added, 1e-4, "pld").epsilon <= 2 < epsilon(charged, 1e-4, "pld").epsilon <= 4
    other = replace(plan, config=plan.config.changed(unit="client"))
    with pytest.raises(RefusedError, match="privacy unit differs from the run's"):
        budget_gate(other, tmp_path, 3, limit).charge(0, plan.events[:1])


def test_charges_without_a_run_count_as_earlier_ones(plan: Plan, tmp_path: Path) -> None:
    """As in a ledger that was begun by something else, or in format 1."""
    limit = Budget(1.7, 1e-4)
    with Ledger.create(tmp_path / "ledger.jsonl", {"unit": "example"}) as ledger:
        ledger.record(plan.events[:2])
    with pytest.raises(RefusedError, match=f"suffices for .* {share(limit, plan.events[:2]):.2%} of it is"):
        budget_gate(plan, tmp_path, 1, limit).look_ahead()
    with pytest.raises(RefusedError, match="would exceed this node's epsilon-limit"):
        charge_all(budget_gate(plan, tmp_path, 1, limit), plan.events)
    charged = read(tmp_path / "ledger.jsonl")
    assert share(limit, charged.events) <= 1
    assert [labels.get("round") for labels in charged.labels][:3] == [None, None, 0]


def test_a_ledger_has_one_privacy_unit(plan: Plan, tmp_path: Path) -> None:
    """Else a run without a limit could leave events of examples among those of clients, for a later limit."""
    budget_gate(plan, tmp_path).charge(0, plan.events[:1])
    other = replace(plan, config=plan.config.changed(unit="client"))
    with pytest.raises(RefusedError, match="privacy unit differs from the run's"):
        budget_gate(other, tmp_path, 2).charge(0, plan.events[:1])
    assert len(read(tmp_path / "ledger.jsonl").events) == 1


def test_a_run_beyond_the_limit_is_refused_before_it_begins(plan: Plan, tmp_path: Path) -> None:
    """The message has the number of releases that would be answered, and their shares of the limit."""
    limit = Budget(2.0, 1e-4)
    assert budget_gate(plan, tmp_path, 1, limit).look_ahead() == ""
    charge_all(budget_gate(plan, tmp_path, 1, limit), plan.events)
    assert budget_gate(plan, tmp_path, 1, limit).look_ahead() == ""  # it is over, and was let in
    assert budget_gate(plan, tmp_path, 2).look_ahead() == ""
    with pytest.raises(RefusedError) as ahead:
        budget_gate(plan, tmp_path, 2, limit).look_ahead()
    with pytest.raises(RefusedError) as refused:
        charge_all(budget_gate(plan, tmp_path, 2, limit), plan.events)
    fit = len(read(tmp_path / "ledger.jsonl").events) - 4
    spent, sum_spent = (share(limit, [*plan.events, *plan.events[:more]]) for more in (0, fit))
    cost = share(limit, plan.events[fit : fit + 1])
    assert sum_spent + cost > 1 > sum_spent
    said = "this node's epsilon-limit of 2 (delta-limit 0.0001)"
    assert str(ahead.value) == (
        f"{said} suffices for {fit} of the run's 4 releases: {spent:.2%} of it is spent, and the first "
        f"release that exceeds it costs {cost:.2%} of it; start a run with a smaller epsilon or fewer "
        "rounds, or raise the limit"
    )
    assert str(refused.value) == (
        f"round {fit} would exceed {said}: {sum_spent:.2%} of it is spent, and the round costs {cost:.2%} "
        "of it"
    )
    with pytest.raises(RefusedError, match=r"0 of the run's 4 releases: more than all of it is spent"):
        budget_gate(plan, tmp_path, 3, Budget(1.0, 1e-4)).look_ahead()


def test_training_silos_look_ahead_by_rounds(tmp_path: Path) -> None:
    plan = make_plan(small(**{**LOCAL, "placement": "central", "level": "client", "silo_steps": 3}))
    limit, events = Budget(3.0, 1e-4), plan.events
    with pytest.raises(RefusedError) as ahead:
        budget_gate(plan, tmp_path, 1, limit).look_ahead()
    for number in range(4):
        try:
            budget_gate(plan, tmp_path, 1, limit).charge(number, events[3 * number : 3 * number + 3])
        except RefusedError:
            break
    assert 0 < number < 4
    assert f"suffices for {number} of the run's 4 rounds: 0.00% of it is spent" in str(ahead.value)


def test_a_clients_spent_share_is_logged_only_for_its_owner(tmp_path: Path) -> None:
    """A refusal before the run would tell the server of cohorts of earlier runs."""
    changes = {"unit": "client", "clients": 2000, "examples_per_client": 1, "placement": "local"}
    common = {**LOCAL, **changes, "optimizer": "dp-sgd", "delta": 1e-5}
    everyone = make_plan(small(**{**common, "sampler": "everyone", "sampling_rate": 1.0}))
    limit = Budget(2.2, 1e-5)
    assert budget_gate(everyone, tmp_path, 1, limit).look_ahead() == ""
    charge_all(budget_gate(everyone, tmp_path, 1, limit), everyone.events)
    assert "suffices for" in budget_gate(everyone, tmp_path, 2, limit).look_ahead()
    with pytest.raises(RefusedError, match=r"0\.00% of it is spent"):  # by the run alone
        budget_gate(everyone, tmp_path, 2, Budget(1.5, 1e-5)).look_ahead()
    drawn = make_plan(small(**{**common, "sampler": "poisson"}))
    assert budget_gate(drawn, tmp_path, 3, Budget(0.5, 1e-5)).look_ahead() == ""


def test_an_unusable_ledger_is_refused_before_the_run(plan: Plan, tmp_path: Path) -> None:
    budget_gate(plan, tmp_path).charge(0, plan.events[:1])
    other = replace(plan, config=plan.config.changed(unit="client"))
    with pytest.raises(RefusedError, match="privacy unit differs from the run's"):
        budget_gate(other, tmp_path, 2).look_ahead()
    path = tmp_path / "ledger.jsonl"
    path.write_text(path.read_text().replace('"round":0', '"round":9'))
    with pytest.raises(LedgerError, match="line 2 was edited"):
        budget_gate(plan, tmp_path, 2).look_ahead()


def test_the_limits_relation_does_not_depend_on_the_runs(plan: Plan, tmp_path: Path) -> None:
    """A cheap release of other neighbours would else make all that was spent before it cost a quarter."""
    limit = Budget(2.0, 1e-4)
    charge_all(budget_gate(plan, tmp_path, 1, limit), plan.events)
    spent = share(limit, plan.events)
    changes = {"placement": "central", "level": "client", "epsilon": 0.01, "rounds": 1}
    cheap = make_plan(small(**{**LOCAL, **changes}))
    budget_gate(cheap, tmp_path, 2, limit).charge(0, cheap.events)
    assert cheap.events[0].relation != plan.events[0].relation
    assert spent < share(limit, read(tmp_path / "ledger.jsonl").events) < spent + 0.1


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_answers_of_a_sampled_client_get_no_credit_for_sampling(sampler: str, tmp_path: Path) -> None:
    """The node answers few of the releases that sampling amplifies; its ledger has only those."""
    changes = {"unit": "client", "clients": 2000, "examples_per_client": 1, "placement": "distributed"}
    more = {"optimizer": "dp-sgd", "sampler": sampler, "delta": 1e-5, "rounds": 20}
    plan = make_plan(small(**{**LOCAL, **changes, **more}))
    query = Query((torch.zeros(3),), (SumBlock((Term(2.0),)),))
    stds = plan.mechanism.placement.party_stds(query.noise_stds(plan.mechanism.scale))
    _, event = enforce_plan(plan, SumRequest(query, 0, (), stds))
    # Nor for the noise of others: its message holds a share.
    assert event.noise_multiplier == pytest.approx(stds[0] / query.blocks[0].sensitivity)
    plain = Event(event.noise_multiplier, "none", event.relation, population=2000)
    for answers in (1, 3):
        spent, wanted = (epsilon([e] * answers, 1e-5).epsilon for e in (event, plain))
        assert spent == wanted
        assert spent > 2 * epsilon(plan.events[:answers], 1e-5).epsilon
    charge_all(
        budget_gate(plan, tmp_path), [event] * 20
    )  # as many as the run has, should it be drawn for all
    with pytest.raises(RefusedError, match="would exceed the run's budget"):
        budget_gate(plan, tmp_path).charge(20, [event])
    with pytest.raises(RefusedError, match="epsilon-limit"):
        budget_gate(plan, tmp_path, 2, Budget(20.0, 1e-5)).charge(0, [event])


@pytest.mark.parametrize(
    "server",
    [
        {"sampling_rate": 0.01, "epsilon": 0.2},  # it may ask for one example each time
        {"clients": 1000, "sampler": "everyone", "sampling_rate": 1.0, "epsilon": 0.3, "delta": 1e-7},
    ],
    ids=["draws", "names many parties"],
)
def test_noise_claimed_for_other_parties_gets_no_credit(server: dict[str, object], tmp_path: Path) -> None:
    """The privacy loss of a node's own messages stays within its limit, for all of its replies."""
    changes = {"placement": "distributed", "optimizer": "dp-sgd", "rounds": 100, "colluding_parties": 0}
    plan = make_plan(small(**{**LOCAL, "clients": 2, **changes, **server}))
    limit, std = Budget(8.0, 1e-5), math.nan
    query = Query((torch.zeros(3),), (SumBlock((Term(2.0),)),))
    stds = plan.mechanism.placement.party_stds(query.noise_stds(plan.mechanism.scale))
    with pytest.raises(RefusedError, match="suffices for"):
        budget_gate(plan, tmp_path, 1, limit).look_ahead()
    for answers in range(100):
        own, event = enforce_plan(plan, SumRequest(query, answers, (), stds))
        try:
            budget_gate(plan, tmp_path, 1, limit).charge(answers, [event])
        except RefusedError:
            break
        std = own.party_stds[0]
    assert 0 < answers < 99
    told = gaussian.epsilon(math.sqrt(answers) * query.blocks[0].sensitivity / std, limit.delta)
    assert 0.3 * limit.epsilon < told <= limit.epsilon


def test_events_equal_the_planned_ones_up_to_the_tolerance(plan: Plan) -> None:
    def noisier(factor: float) -> list[Event]:
        return [replace(event, noise_multiplier=event.noise_multiplier * factor) for event in plan.events]

    assert same_events(plan.events, plan.events)
    assert same_events(noisier(1 + 1e-8), plan.events)
    assert not same_events(noisier(1 - 1e-5), plan.events)
    assert not same_events(noisier(1 + 1e-5), plan.events)
    assert not same_events(plan.events[1:], plan.events)
    assert not same_events([replace(e, population=None) for e in plan.events], plan.events)


def request(plan: Plan, step: int, factor: float = 1.0, clip_norm: float = 2.0) -> SumRequest:
    relative = plan.mechanism.optimizer.planned(4)[step].relative_noise
    query = Query((torch.zeros(3),), (SumBlock((Term(clip_norm),)),), relative_noise=relative)
    stds = plan.mechanism.placement.party_stds(query.noise_stds(factor * plan.mechanism.scale * relative))
    return SumRequest(query, 0, (), stds)


@pytest.mark.parametrize("placement", ["local", "distributed"])
def test_a_request_must_have_the_planned_noise(placement: str) -> None:
    plan = make_plan(small(**{**LOCAL, "placement": placement}))
    for step in range(4):
        for clip_norm in (0.1, 2.0):
            asked = request(plan, step, clip_norm=clip_norm)
            own, event = enforce_plan(plan, request(plan, step, factor=1 + 1e-9, clip_norm=clip_norm))
            assert own.party_stds == asked.party_stds
            assert event.sampling == "none"
            assert event.noise_multiplier == pytest.approx(own.party_stds[0] / clip_norm, rel=1e-12)
    for factor in (0.99, 1.01):
        with pytest.raises(RefusedError, match="differs from the noise that the plan"):
            enforce_plan(plan, request(plan, 1, factor))
    with pytest.raises(RefusedError, match="differs from the noise that the plan"):
        enforce_plan(plan, replace(request(plan, 1), party_stds=None))
    for changes in ({"relative_noise": 0.9}, {"rate_factor": 2.0}):
        other = replace(request(plan, 0), query=replace(request(plan, 0).query, **changes))
        with pytest.raises(RefusedError, match="no release with this relative noise and cohort"):
            enforce_plan(plan, other)


@pytest.mark.parametrize("changes", [{"placement": "central"}, {"placement": "central", "level": "client"}])
def test_requests_are_refused_if_parties_add_no_noise(changes: dict[str, object]) -> None:
    plan = make_plan(small(**{**LOCAL, **changes}))
    query = Query((torch.zeros(3),), (SumBlock((Term(1.0),)),))
    with pytest.raises(RefusedError, match="the parties add no noise"):
        enforce_plan(plan, SumRequest(query, 0, (), (1.0,)))


def test_a_node_has_a_ledger_if_it_adds_its_own_noise(plan: Plan, tmp_path: Path) -> None:
    node = {"data-file": str(tmp_path / "a.npz")}
    own = open_node_ledger(plan, node, 3)
    assert own is not None
    assert (own.path, own.limit) == (tmp_path / "a.npz.ledger.jsonl", None)
    elsewhere = open_node_ledger(plan, {**node, "ledger-file": str(tmp_path / "b.jsonl")}, 3)
    assert elsewhere is not None
    assert elsewhere.path == tmp_path / "b.jsonl"
    silos = make_plan(small(**{**LOCAL, "placement": "central", "level": "client", "silo_steps": 2}))
    assert open_node_ledger(silos, node, 3) is not None
    central = make_plan(small(**{**LOCAL, "placement": "central"}))
    assert open_node_ledger(central, node, 3) is None
    assert open_node_ledger(make_plan(small(**{**LOCAL, "nodes_own_data": False})), {}, 3) is None
    limit = {"epsilon-limit": 3, "delta-limit": 1e-5}
    limited = open_node_ledger(plan, {**node, **limit}, 3)
    assert limited is not None
    assert limited.limit == Budget(3.0, 1e-5)
    with pytest.raises(RefusedError, match="adds no noise itself"):
        open_node_ledger(central, {**node, **limit}, 3)
    for half in ({"epsilon-limit": 3}, {"delta-limit": 1e-5}, {**limit, "delta-limit": "small"}):
        with pytest.raises(ArgumentError, match="give epsilon-limit and delta-limit together"):
            open_node_ledger(plan, {**node, **half}, 3)


def test_the_owner_can_require_noise(plan: Plan, tmp_path: Path) -> None:
    node = {"data-file": str(tmp_path / "a.npz")}
    multipliers = [event.noise_multiplier for event in plan.events]
    middle = sorted(multipliers)[1]
    strict = open_node_ledger(plan, {**node, "min-noise-multiplier": middle}, 3)
    assert strict is not None
    for number, event in enumerate(plan.events):
        if event.noise_multiplier < middle:
            with pytest.raises(RefusedError, match="below this node's min-noise-multiplier of"):
                strict.charge(number, [event])
        else:
            strict.charge(number, [event])
    assert len(read(strict.path).events) == 3
    central = make_plan(small(**{**LOCAL, "placement": "central"}))
    with pytest.raises(RefusedError, match="a min-noise-multiplier, but it adds no noise itself"):
        open_node_ledger(central, {**node, "min-noise-multiplier": 1}, 3)
    for value in (-1.0, "one", True):
        with pytest.raises(ArgumentError, match="min-noise-multiplier is"):
            open_node_ledger(plan, {**node, "min-noise-multiplier": value}, 3)


def test_unsupported_events_are_refused_if_there_is_a_limit(plan: Plan, tmp_path: Path) -> None:
    own = budget_gate(plan, tmp_path, limit=Budget(2.0, 1e-5))
    chosen = Event(16.0, "none", "add-remove", mechanism="noisy-max")
    with Ledger.create(own.path, {"unit": "example"}) as ledger:
        ledger.record([chosen, Event(8.0, "poisson", "add-remove", rate=0.1)], run="0", round=0)
    said = "this node's epsilon-limit cannot be enforced: the rdp filter does not support noisy-max"
    with pytest.raises(RefusedError, match=said):
        own.charge(0, plan.events[:1])
    with pytest.raises(RefusedError, match=said):
        own.look_ahead()
    budget_gate(plan, tmp_path).charge(0, plan.events[:1])


def test_a_deleted_cut_or_rolled_back_ledger_is_refused_and_not_forgotten(plan: Plan, tmp_path: Path) -> None:
    """Its head is kept beside it. Else a node would answer again what it has answered."""
    own, path = budget_gate(plan, tmp_path), tmp_path / "ledger.jsonl"
    own.charge(0, plan.events[:1])
    earlier = path.read_bytes()
    own.charge(1, plan.events[1:2])
    path.write_bytes(earlier)
    uses = (lambda: own.charge(1, plan.events[1:2]), own.look_ahead)
    for use in uses:
        with pytest.raises(LedgerError, match=r"ends after event 1, and its head, .*, says 2"):
            use()
    assert path.read_bytes() == earlier
    path.unlink()
    for use in uses:
        with pytest.raises(LedgerError, match=r"was deleted: its head, .*, seals 2 events"):
            use()
    assert not path.exists()


def no_folder(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.parent.rmdir()


def a_folder_of_this_name(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.mkdir()


def a_head_that_is_a_folder(path: Path, patch: pytest.MonkeyPatch) -> None:
    head_path(path).unlink(missing_ok=True)
    head_path(path).mkdir()


def a_full_disk(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "fsync", fails_with(errno.ENOSPC))


def a_disk_without_new_files(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tempfile, "TemporaryFile", fails_with(errno.EROFS))


def a_folder_that_does_not_sync(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_ledger, "sync_folder", fails_with(errno.EIO))


def fails_with(code: int) -> Callable[..., None]:
    def fail(*arguments: object, **names: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


OBSTACLES = {
    no_folder: "No such file or directory",
    a_folder_of_this_name: "Is a directory",
    a_head_that_is_a_folder: "Is a directory",
    a_full_disk: "No space left on device",
    a_disk_without_new_files: "Read-only file system",
    a_folder_that_does_not_sync: "Input/output error",
}


@pytest.mark.parametrize("spoil", OBSTACLES)
def test_a_ledger_that_cannot_be_written_is_noticed_before_the_run(
    plan: Plan,
    tmp_path: Path,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own").mkdir()
    own = NodeLedger(plan, tmp_path / "own" / "ledger.jsonl", 1)
    said = (
        rf"^this node's ledger .*/own/ledger.jsonl cannot be written \({OBSTACLES[spoil]}\); .* it may write$"
    )
    spoil(own.path, monkeypatch)
    with pytest.raises(LedgerError, match=said):
        own.look_ahead()


def test_looking_ahead_charges_nothing_and_leaves_nothing(plan: Plan, tmp_path: Path) -> None:
    own = budget_gate(plan, tmp_path)
    assert own.look_ahead() == ""
    assert list(tmp_path.iterdir()) == []
    own.charge(0, plan.events[:1])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert budget_gate(plan, tmp_path, run=2).look_ahead() == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_charge_that_the_disk_refuses_is_an_error_of_the_ledger(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = budget_gate(plan, tmp_path)
    own.charge(0, plan.events[:1])
    with monkeypatch.context() as patch:
        a_full_disk(own.path, patch)
        with pytest.raises(LedgerError, match=r"cannot be written \(No space left on device\)"):
            own.charge(1, plan.events[1:2])
