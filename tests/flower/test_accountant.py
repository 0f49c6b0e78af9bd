"""FlowerAccountant implements Flower's protocol, works with its fixed-clipping wrapper, and is compared with
Flower's RDP accountant."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Iterable
from typing import cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import METHODS, Event, epsilon
from fedpriv.accounting import accountant as accountants
from fedpriv.accounting.methods import registry as accounting_methods
from fedpriv.flower.accountant import FlowerAccountant

NODES, DELTA = 4, 1e-5
EVENT = GaussianPrivacyEvent(2.0, NODES, 100)


def config(
    sampling: SamplingMethod = SamplingMethod.NO_AMPLIFICATION, max_epsilon: float | None = None
) -> PrivacyConfig:
    replaced = sampling is SamplingMethod.WITHOUT_REPLACEMENT
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    return PrivacyConfig(DELTA, 100, relation, sampling, max_epsilon)


class Nodes:
    """The part of a grid that Flower's FedAvg uses."""

    def get_node_ids(self) -> Iterable[int]:
        return range(1, NODES + 1)


def replies(messages: Iterable[Message], norm: float) -> list[Message]:
    """Each node moves every weight by the same amount, by ``norm`` in total."""
    found = []
    for message in messages:
        [sent] = message.content.array_records.values()
        moved = {k: Array(a.numpy() + np.float32(norm / 10)) for k, a in sent.items()}
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1})})
        found.append(Message(content, reply_to=message))
    return found


def test_flowers_fixed_clipping_wrapper_runs_with_the_pld_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    accountant: PrivacyAccountant = FlowerAccountant(config(max_epsilon=4.0))
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), 2.0, 1.0, NODES, accountant=accountant
    )
    arrays, composed = ArrayRecord({"w": Array(np.zeros(100, dtype=np.float32))}), 0
    with contextlib.suppress(PrivacyBudgetExhausted):
        while composed < 20:
            messages = strategy.configure_train(composed + 1, arrays, ConfigRecord(), cast(Grid, Nodes()))
            aggregated, _ = strategy.aggregate_train(composed + 1, replies(messages, norm=50.0))
            assert aggregated is not None
            arrays, composed = aggregated, composed + 1
    spent = strategy.privacy_spent()
    assert spent is not None
    releases = [Event(2.0, "none", "add-remove", count=n) for n in (composed, composed + 1)]
    assert spent.epsilon == epsilon(releases[:1], DELTA).epsilon <= 4.0 < epsilon(releases[1:], DELTA).epsilon
    assert (spent.delta, spent.num_releases, spent.accounting_method) == (DELTA, composed, "pld")
    # Flower's own accountant does not stop later.
    theirs = RdpAccountant(config())
    theirs.compose(EVENT, composed)
    assert spent.epsilon < theirs.get_epsilon(DELTA)
    # One step of the mean: clipped to 1, noise of standard deviation 2 / NODES (here in all 100 weights).
    assert 0 < np.abs(arrays["w"].numpy()).max() < 10 * 2 / NODES * math.sqrt(composed)


def test_it_implements_the_protocol() -> None:
    members = {name: member for name, member in vars(PrivacyAccountant).items() if not name.startswith("_")}
    assert members.keys() >= {"compose", "get_epsilon", "get_delta"}
    for name, member in members.items():
        ours = getattr(FlowerAccountant, name)
        assert isinstance(ours, property) == isinstance(member, property)
        if not isinstance(member, property):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(member).parameters)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_an_epsilon(method: str) -> None:
    accountant = FlowerAccountant(config(), method)
    accountant.compose(EVENT, 3)
    accountant.compose(EVENT)
    value = epsilon([Event(2.0, "none", "add-remove", count=4)], DELTA, method).epsilon
    assert accountant.get_epsilon(DELTA) == pytest.approx(value)
    assert accountant.get_privacy_spent(1e-3).epsilon < accountant.get_privacy_spent().epsilon
    assert accountant.num_releases == 4


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        (SamplingMethod.POISSON, ("poisson", "add-remove", 0.04)),
        (SamplingMethod.WITHOUT_REPLACEMENT, ("without-replacement", "replace-one", 0.04)),
        (SamplingMethod.NO_AMPLIFICATION, ("none", "add-remove", 1.0)),
    ],
)
def test_each_sampling_model(sampling: SamplingMethod, kind: tuple[str, str, float]) -> None:
    accountant = FlowerAccountant(config(sampling))
    accountant.compose(EVENT, 50)
    assert accountant.get_epsilon(DELTA) == epsilon([Event(2.0, *kind, count=50)], DELTA).epsilon


def test_get_delta_is_an_upper_bound() -> None:
    accountant = FlowerAccountant(config())
    assert accountant.get_delta(0.0) < 1e-12
    accountant.compose(EVENT, 4)
    for target in (0.0, 1.0, 5.0):
        exact = 0.38292492254802624 if target == 0 else None
        delta = accountant.get_delta(target)
        assert accountant.get_epsilon(min(delta, 1 - 1e-9)) <= target
        assert accountant.get_epsilon(delta * 0.997) > target
        if exact is not None:
            assert exact <= delta <= exact * 1.002


def test_state_survives_json_and_others_are_refused() -> None:
    accountant = FlowerAccountant(config(max_epsilon=9.0))
    accountant.compose(EVENT, 7)
    state = json.loads(json.dumps(accountant.state_dict()))
    restored = FlowerAccountant(config(max_epsilon=9.0))
    restored.load_state_dict(state)
    assert restored.get_privacy_spent() == accountant.get_privacy_spent()
    for other, key in (
        (FlowerAccountant(config(max_epsilon=8.0)), "config"),
        (FlowerAccountant(config(max_epsilon=9.0), "rdp"), "backend"),
    ):
        with pytest.raises(ArgumentError, match=f"state {key} is"):
            other.load_state_dict(state)
        assert other.num_releases == 0
    with pytest.raises(ArgumentError, match="state events"):
        restored.load_state_dict({**state, "events": 7})


def test_would_exceed_changes_nothing_and_needs_a_limit() -> None:
    accountant = FlowerAccountant(config())
    with pytest.raises(ArgumentError, match="No max_epsilon is given"):
        accountant.would_exceed(EVENT)
    assert not accountant.would_exceed(EVENT, max_epsilon=4.0)
    assert accountant.would_exceed(EVENT, max_epsilon=4.0, count=5)
    assert accountant.num_releases == 0
    accountant.compose(EVENT, 5)
    assert accountant.would_exceed(EVENT, max_epsilon=4.0)
    with pytest.raises(ArgumentError, match="population_size is 50"):
        accountant.compose(GaussianPrivacyEvent(2.0, 4, 50))
    with pytest.raises(ArgumentError, match="accounting is 'prv'"):
        FlowerAccountant(config(), "prv")


@pytest.mark.slow
def test_checking_the_budget_every_round_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon is evaluated a few dozen times for hundreds of rounds."""
    evaluations = []
    real = accounting_methods.epsilons
    counting = lambda *a, **k: (evaluations.append(1), real(*a, **k))[1]  # noqa: E731
    monkeypatch.setattr(accountants, "epsilons", counting)
    accountant = FlowerAccountant(config(SamplingMethod.POISSON, max_epsilon=3.0))
    rounds = 0
    while not accountant.would_exceed(EVENT):
        accountant.compose(EVENT)
        rounds += 1
    assert rounds > 100
    assert 0 < len(evaluations) < rounds / 3
