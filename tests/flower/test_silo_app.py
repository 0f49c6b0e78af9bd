"""A silo in its owner's own Flower app: the client level of fedpriv's apps, under any server strategy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv import ArgumentError
from fedpriv.accounting import epsilon
from fedpriv.accounting.ledger import read
from fedpriv.flower import Silo
from fedpriv.flower.serialization import encode

N, ROUNDS, STEPS = 80, 3, 2
PUBLIC: dict[str, Any] = {"rounds": ROUNDS, "steps": STEPS, "epsilon": 5.0, "sampling_rate": 0.2}
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(N, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 2)


@pytest.fixture(autouse=True)
def _task() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, SUPERLINK_NODE_ID


def context(run: int = 7) -> Context:
    return Context(run, 1, {}, RecordDict(), {})


def request(arrays: ArrayRecord, number: int | None) -> Message:
    records: dict[str, Any] = {"arrays": arrays}
    if number is not None:
        records["config"] = ConfigRecord({"server-round": number})
    return Message(RecordDict(records), dst_node_id=1, message_type="train")


def start() -> ArrayRecord:
    return ArrayRecord(net().state_dict())


def rounds(
    ledger: Path, numbers: list[int | None], where: Context | None = None, **changes: Any
) -> list[Message]:
    """The replies to rounds of a server with one silo, which takes each reply as its model.

    A Silo is made for each message, as in an app.
    """
    arrays, where, replies = start(), where or context(), []
    for number in numbers:
        silo = Silo(where, net(), (X, Y), ledger=ledger, **{**PUBLIC, "seed": 4, **changes})
        replies.append(silo.answer(request(arrays, number)))
        if not replies[-1].has_error():
            arrays = replies[-1].content["arrays"]
    return replies


def vector(reply: Message) -> torch.Tensor:
    return torch.cat([torch.from_numpy(a.numpy()).reshape(-1) for a in reply.content["arrays"].values()])


OPTIMIZERS = ("dp-sgd", "dp-adam", "dynamic-dp-adam", "adp-sgd", "dp2-rmsprop", "adadp", "dp-srm")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_silo_takes_the_steps_of_fedprivs_own_apps(optimizer: str, tmp_path: Path) -> None:
    """The whole client level with one silo: momentum and preconditioners last over the rounds."""
    replies = rounds(tmp_path / "ledger.jsonl", [1, 2, 3], optimizer=optimizer)
    settings = {
        "level": "client", "unit": "example", "clients": 1, "examples_per_client": N, "silo_steps": STEPS,
        "rounds": ROUNDS, "epsilon": 5.0, "sampling_rate": 0.2, "seed": 4, "optimizer": optimizer,
    }  # fmt: skip
    own = fedpriv.simulate(settings, dataset=(X, Y, X[:5], torch.tensor([0, 1, 0, 1, 1])), model=net())
    torch.testing.assert_close(vector(replies[-1]), own.params, rtol=1e-5, atol=1e-6)
    assert float((vector(replies[-1]) - own.params * 0).norm()) > 0.1
    events = read(tmp_path / "ledger.jsonl").events
    assert len(events) == ROUNDS * STEPS
    assert 4 < epsilon(events, 1 / (10 * N)).epsilon <= 5


def test_a_torch_dataset_and_counted_rounds_are_the_same(tmp_path: Path) -> None:
    named = rounds(tmp_path / "a.jsonl", [1, 2, 3])
    counted = rounds(tmp_path / "b.jsonl", [None, None, None])
    assert torch.equal(vector(named[-1]), vector(counted[-1]))
    silo = Silo(context(), net(), TensorDataset(X, Y), ledger=tmp_path / "c.jsonl", seed=4, **PUBLIC)
    assert torch.equal(vector(silo.answer(request(start(), 1))), vector(named[0]))


def test_noise_is_the_silos_own_and_never_the_same_twice(tmp_path: Path) -> None:
    one, other = (rounds(tmp_path / f"{k}.jsonl", [1], seed=-1)[0] for k in range(2))
    assert not torch.equal(vector(one), vector(other))


def test_the_noise_has_the_planned_std(tmp_path: Path) -> None:
    """Examples of zeros have gradient 0 in the weights: one step moves them by noise alone.

    Flake rate: 4,000 weights put the relative error of the std at 1.1 %; 8 % are 7 stds.
    """
    wide = nn.Linear(2000, 2)
    settings = {
        **PUBLIC,
        "rounds": 1,
        "steps": 1,
        "optimizer": "dp-sgd",
        "learning_rate": 1.0,
        "clip_norm": 0.5,
    }
    silo = Silo(context(), wide, (torch.zeros(N, 2000), Y), ledger=tmp_path / "ledger.jsonl", **settings)
    reply = silo.answer(request(ArrayRecord(wide.state_dict()), 1))
    moved = reply.content["arrays"].to_torch_state_dict()["weight"] - wide.weight.detach()
    wanted = silo.plan.mechanism.scale * 0.5 / (0.2 * N)
    assert float(moved.std()) == pytest.approx(wanted, rel=0.08)


def test_what_is_not_trained_is_returned_as_it_was_sent_and_sizes_are_public(tmp_path: Path) -> None:
    model = net()
    model.bias.requires_grad_(False)
    arrays = ArrayRecord({**start(), "counter": Array(np.array(7))})
    silo = Silo(context(), model, (X, Y), ledger=tmp_path / "ledger.jsonl", examples=50, **PUBLIC)
    reply = silo.answer(request(arrays, 1))
    for name in ("bias", "counter"):
        assert np.array_equal(reply.content["arrays"][name].numpy(), arrays[name].numpy())
    assert not np.array_equal(reply.content["arrays"]["weight"].numpy(), arrays["weight"].numpy())
    assert reply.content["metrics"]["num-examples"] == 50
    assert silo.plan.units == 50


def test_delta_is_at_most_the_owners_limit(tmp_path: Path) -> None:
    def delta(**changes: Any) -> float | None:
        budget = Silo(context(), net(), (X, Y), ledger=tmp_path / "l", **{**PUBLIC, **changes}).plan.budget
        return budget and budget.delta

    limit = {"epsilon_limit": 6.0, "delta_limit": 1e-6}
    assert delta() == pytest.approx(1 / (10 * N))
    assert delta(**limit) == 1e-6
    assert delta(**limit, delta=1e-5) == 1e-5


@pytest.mark.parametrize(
    ("numbers", "text"), [([1, 1], "round 0 was answered before"), ([4], "is not in the plan of 3 rounds")]
)
def test_rounds_are_answered_once_and_as_planned(
    numbers: list[int | None], text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        last = rounds(tmp_path / "ledger.jsonl", numbers)[-1]
    assert last.has_error()
    assert last.error.reason == "RefusedError"  # the reason is in the node's own log
    assert text in caplog.text
    charged = read(tmp_path / "ledger.jsonl").events if (tmp_path / "ledger.jsonl").exists() else ()
    assert len(charged) == STEPS * (len(numbers) - 1)


def test_a_lost_context_cannot_have_a_round_answered_twice(tmp_path: Path) -> None:
    rounds(tmp_path / "ledger.jsonl", [1])
    again = rounds(tmp_path / "ledger.jsonl", [1], where=context())[-1]
    assert again.has_error()
    assert len(read(tmp_path / "ledger.jsonl").events) == STEPS


def test_the_limit_counts_all_runs_and_the_charge_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = {"epsilon_limit": 6.0, "delta_limit": 1e-2}
    ledger = tmp_path / "ledger.jsonl"
    assert not any(reply.has_error() for reply in rounds(ledger, [1, 2, 3], context(1), **limit))
    with caplog.at_level(logging.WARNING):
        replies = rounds(ledger, [1, 2, 3], context(2), **limit)
    assert all(reply.has_error() for reply in replies)  # a run that cannot end is refused before it begins
    assert "epsilon-limit of 6" in caplog.text
    assert "of the run's 3 rounds" in caplog.text
    assert len(read(ledger).events) == 3 * STEPS

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the step fails")

    monkeypatch.setattr("fedpriv.node.silo.advance", fails)
    assert rounds(tmp_path / "other.jsonl", [1])[0].has_error()
    assert len(read(tmp_path / "other.jsonl").events) == STEPS


def test_an_error_tells_the_server_its_type_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = (X, torch.where(torch.arange(N) == 5, 977, Y))
    silo = Silo(context(), net(), secret, ledger=tmp_path / "ledger.jsonl", **PUBLIC)
    with caplog.at_level(logging.WARNING):
        reply = silo.answer(request(start(), 1))
    assert reply.error.reason == "DataError"
    wrong = Silo(context(), net(), (X, Y), ledger=tmp_path / "ledger.jsonl", **PUBLIC)
    reply = wrong.answer(request(ArrayRecord({"other": encode(torch.zeros(3))}), 1))
    assert reply.error.reason == "MessageError"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sampling_rate": 2.0}, "sampling_rate is 2.0"),
        ({"examples": 1000}, "examples is 1000; it must be at most"),
        ({"epsilon_limit": 3.0}, "delta_limit is None"),
        ({"clip_nrm": 1.0}, "there is no argument"),
        ({"level": "client"}, "there is no argument"),
        ({"placement": "local"}, "placement is 'local'; it must be central"),
        ({"optimizer": "adadp", "steps": 3}, "be even"),
    ],
)
def test_bad_settings_are_refused_before_the_data_is_read(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError) as error:
        Silo(context(), net(), (X, Y), ledger=tmp_path / "ledger.jsonl", **{**PUBLIC, **changes})
    assert text in str(error.value)
