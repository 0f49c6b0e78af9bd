"""A mod that noises what an app's clients return: as fedpriv's own apps, whatever the server asks."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from helpers.app_runs import NEEDS, SETTINGS, events, initial, vector
from helpers.noising_app import NoisingGrid, app, seeded
from helpers.ordinary_app import CLIENTS, FEDERATION, AppGrid, Tamper, changed

import fedpriv
from fedpriv import ArgumentError
from fedpriv.accounting import Budget
from fedpriv.accounting.ledger import read
from fedpriv.accounting.owner_limit import share
from fedpriv.flower import PrivateMod, PrivateStrategy, private_mod
from fedpriv.flower.noise_messages import noise_records
from fedpriv.optimizers import METHODS

FIXED = {**SETTINGS, "sampler": "fixed-size", "sampling_rate": 0.2}
PLACEMENTS = ("local", "distributed")
QUICK = ("dp-sgd", "dp-srm", "dp2-adam")


def run(
    folder: Path,
    placement: str = "local",
    grid: NoisingGrid | None = None,
    timeout: float = 5,
    **changes: Any,
) -> Result:
    settings = {**FIXED, "population": CLIENTS, "folder": folder, "start_timeout": 0.0, **changes}
    strategy = PrivateStrategy(placement=placement, **settings)
    return strategy.start(grid or NoisingGrid(client_app=seeded), initial()[0], timeout=timeout)


def simulated(folder: Path, placement: str, **changes: Any) -> Any:
    """The same run in fedpriv's own apps, with a chunk for each client, which is a node here."""
    settings = {**FIXED, **changes, "placement": placement, "chunk_size": 1}
    return fedpriv.simulate({**FEDERATION}, folder=folder, **settings)


def cases() -> list[Any]:
    names = [name for name in METHODS if name not in ("adadps", "noisy-adagrad", "pda-dpmd")]
    again = {name: () if name in QUICK else pytest.mark.exhaustive for name in names}
    return [pytest.param(p, name, marks=again[name]) for p in PLACEMENTS for name in names]


@pytest.mark.parametrize(("placement", "optimizer"), cases())
@pytest.mark.slow
def test_an_app_with_the_mod_trains_as_fedprivs_own(placement: str, optimizer: str, tmp_path: Path) -> None:
    changes = {"optimizer": optimizer, **NEEDS.get(optimizer, {})}
    result = run(tmp_path / "app", placement, **changes)
    own = simulated(tmp_path / "own", placement, **changes)
    trained = vector(result.arrays)
    assert float((trained - initial()[1]).norm()) > 1e-3
    torch.testing.assert_close(trained, own.params, rtol=1e-5, atol=1e-6)
    assert events(tmp_path / "app") == events(tmp_path / "own")


@pytest.mark.parametrize("changes", [{"adaptive_quantile": 0.5}, {"clipping": "per-layer"}])
@pytest.mark.slow
def test_adaptive_clipping_and_layers_are_those_of_a_simulation(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    result = run(tmp_path / "app", "distributed", **changes)
    own = simulated(tmp_path / "own", "distributed", **changes)
    torch.testing.assert_close(vector(result.arrays), own.params, rtol=1e-5, atol=1e-6)


def test_the_report_has_the_epsilon_against_the_server(tmp_path: Path) -> None:
    run(tmp_path / "app", "distributed", rounds=2)
    simulated(tmp_path / "own", "distributed", rounds=2)
    here, there = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("app", "own"))
    for key in ("epsilon", "observers"):
        assert here["privacy"].get(key) == there["privacy"].get(key)
    assert here["privacy"]["unit"] == "client: a Flower node with all its data"
    assert "the server" in (tmp_path / "app" / "report.md").read_text()


class Idle(NoisingGrid):
    """Clients whose app returns what it was sent, so that a reply is noise alone."""

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        return private_mod(message, context, idle)


def idle(message: Message, context: Context) -> Message:
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_noise_on_the_sum_does_not_depend_on_who_answers(
    placement: str, share: float, tmp_path: Path
) -> None:
    """Chi-square: the sum of n = 15,700 squares of standard normals is n, with std sqrt(2 n).

    Flake rate: 6 stds, 2e-9; they are 6.8 % of the variance, and 1.5 sigma would be 125 % off.
    """

    def tamper(partition: int, reply: Message) -> Message | None:
        return reply if partition < share * 10 else None

    settings: dict[str, Any] = {
        **{"population": 10, "sampler": "everyone", "sampling_rate": 1.0, "rounds": 2, "seed": -1},
        **{"learning_rate": 1.0, "epsilon": 8.0, "clip_norm": 0.5, "optimizer": "dp-sgd", "min_replies": 4},
    }
    strategy = PrivateStrategy(placement=placement, folder=tmp_path / "run", start_timeout=0.0, **settings)
    result = strategy.start(Idle(10, tamper), initial()[0], timeout=0.3)
    moved = vector(result.arrays).double() - initial()[1].double()
    if not share:  # fewer than min_replies: no release, and the charges stand
        assert not moved.any()
        assert events(tmp_path / "run")
        return
    mechanism = strategy.plan.mechanism
    [std] = mechanism.placement.total_stds((mechanism.scale * 0.5,))
    each = std / 10 * math.sqrt(2)  # of the mean, after two rounds
    assert each > 1e-3
    n = len(moved)
    assert abs(float((moved / each).square().sum()) - n) < 6 * math.sqrt(2 * n)


def test_local_noise_without_any_reply_is_the_servers(tmp_path: Path) -> None:
    """As above with min_replies 0: the server adds all shares."""
    settings: dict[str, Any] = {
        **{"population": 10, "sampler": "everyone", "sampling_rate": 1.0, "rounds": 1, "seed": -1},
        **{"learning_rate": 1.0, "epsilon": 8.0, "clip_norm": 0.5, "optimizer": "dp-sgd"},
    }
    strategy = PrivateStrategy(placement="local", folder=tmp_path / "run", start_timeout=0.0, **settings)
    result = strategy.start(Idle(10, lambda partition, reply: None), initial()[0], timeout=0.3)
    moved = vector(result.arrays).double() - initial()[1].double()
    std = strategy.plan.mechanism.scale * 0.5 * math.sqrt(10) / 10
    n = len(moved)
    assert abs(float((moved / std).square().sum()) - n) < 6 * math.sqrt(2 * n)


# ---- A node, and what the server asks of it ----


@pytest.fixture(autouse=True)
def _task() -> None:
    AppGrid(1)  # sets the identity of this process


STRATEGY: dict[str, Any] = {
    **{"population": CLIENTS, "sampler": "everyone", "sampling_rate": 1.0, "rounds": 3, "epsilon": 8.0},
    **{"clip_norm": 0.5, "optimizer": "dp-sgd", "seed": -1},
}
MODEL = {"w": np.zeros((2, 3), np.float32), "steps": np.array(7)}

App = Callable[[Message, Context], Message]


def message(release: int = 0, ask: Callable[[Any], Any] = lambda asked: asked, **changes: Any) -> Message:
    """What an honest strategy of these settings asks of a client, changed by ``ask``."""
    strategy = PrivateStrategy(**{"placement": "local", **STRATEGY, **changes})
    plan = strategy.plan
    query = plan.mechanism.optimizer.query(plan.mechanism.optimizer.init(torch.zeros(6)))
    stds = plan.mechanism.placement.party_stds(query.noise_stds(plan.mechanism.scale * query.relative_noise))
    asked = fedpriv.federated.engine.SumRequest(query, release, (), stds)
    model = ArrayRecord({name: Array(values) for name, values in MODEL.items()})
    records = noise_records(ask(asked), plan.config, (), [model])
    content = RecordDict({"arrays": model, "config": ConfigRecord({"lr": 0.1}), **records})
    return Message(content, dst_node_id=1, message_type="train")


def context(run: int = 7, **node: Any) -> Context:
    named = {name.replace("_", "-"): value for name, value in node.items()}
    return Context(run, 1, {"partition-id": 0, "num-partitions": 2, **named}, RecordDict(), {})


def returning(change: Callable[[np.ndarray], np.ndarray], **more: Any) -> App:
    """An app whose model changes so."""

    def train(message: Message, context: Context) -> Message:
        assert list(message.content) == ["arrays", "config"]  # it sees nothing of fedpriv
        arrays = message.content["arrays"]
        arrays = {"w": Array(change(arrays["w"].numpy())), "steps": Array(np.array(8))}
        metrics = MetricRecord({"num-examples": 977, "train_loss": 0.25})
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics, **more}), reply_to=message
        )

    return train


STILL = returning(lambda w: w)


def sums(reply: Message) -> torch.Tensor:
    assert not reply.has_error(), reply.error
    return torch.from_numpy(reply.content["sums"]["sum-0"].numpy()).double()


def test_a_reply_has_the_noisy_sum_and_nothing_else_of_the_app(tmp_path: Path) -> None:
    reply = private_mod(message(), context(ledger_file=str(tmp_path / "l.jsonl")), STILL)
    assert sorted(reply.content) == ["fedpriv-noise", "reply", "sums"]
    assert dict(reply.content["reply"]) == {"parties": 1, "release": 0}
    assert list(reply.content["fedpriv-noise"]) == ["party-stds"]
    assert sums(reply).shape == (6,)  # integers are no part of the vector
    assert float(sums(reply).norm()) > 0.01


@pytest.mark.parametrize(
    ("change", "norm"),
    [(lambda w: w, 0.0), (lambda w: w - 100, 0.5), (lambda w: w - 0.01, 0.01 * math.sqrt(6)),
     (lambda w: w * math.nan, 0.0), (lambda w: w + np.float32(math.inf), 0.0), (lambda w: w - 1e38, 0.5)],
)  # fmt: skip
def test_a_change_is_clipped_to_its_bound(change: Callable[..., Any], norm: float) -> None:
    """Two replies with the same seeded noise differ by the clipped change, to the step of exact noise."""
    mod = PrivateMod(accept_seed=True)
    own = sums(mod(message(seed=3), context(), returning(change)))
    noise = sums(mod(message(seed=3), context(), STILL))
    assert float((own - noise).norm()) == pytest.approx(norm, abs=1e-6)
    if norm:
        assert bool((own > noise).all())  # theta - theta_K


def test_a_seed_is_not_taken_unless_the_owner_accepts_it() -> None:
    one, other = (sums(private_mod(message(seed=3), context(), STILL)) for _ in range(2))
    assert not bool((one == other).any())
    taken = context(accept_seed=True)
    assert torch.equal(
        sums(private_mod(message(seed=3), taken, STILL)),
        sums(PrivateMod(accept_seed=True)(message(seed=3), context(), STILL)),
    )


def test_the_charge_is_on_disk_before_the_app_computes(tmp_path: Path) -> None:
    ledger, seen = tmp_path / "l.jsonl", []

    def fails(message: Message, context: Context) -> Message:
        seen.append(len(read(ledger).events))
        raise RuntimeError("patient 977")

    reply = private_mod(message(), context(ledger_file=str(ledger)), fails)
    assert seen == [1]
    assert reply.error.reason == "RuntimeError"
    assert len(read(ledger).events) == 1
    again = private_mod(message(), context(ledger_file=str(ledger)), STILL)
    assert again.error.reason == "RefusedError"  # its noise might be known from the first attempt


def test_a_node_that_is_killed_stays_charged_and_does_not_answer_again(tmp_path: Path) -> None:
    """The kill comes after the computation, right before the reply would leave."""
    script = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}
import test_noise_mod as t
from fedpriv.flower import noise_mod
t.AppGrid(1)
noise_mod.noisy_reply = lambda *_: os._exit(9)
noise_mod.private_mod(t.message(), t.context(ledger_file={str(tmp_path / "l.jsonl")!r}), t.STILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == 9
    assert len(read(tmp_path / "l.jsonl").events) == 1
    reply = private_mod(message(), context(ledger_file=str(tmp_path / "l.jsonl")), STILL)
    assert reply.error.reason == "RefusedError"


@pytest.mark.parametrize("kept", [True, False])
def test_a_release_is_answered_once(kept: bool, tmp_path: Path) -> None:
    """With a ledger file also after the Context was lost; without one the Context remembers."""
    where = context(ledger_file=str(tmp_path / "l.jsonl")) if kept else context()
    first = private_mod(message(), where, STILL)
    if kept:
        where = context(ledger_file=str(tmp_path / "l.jsonl"))
    assert private_mod(message(), where, STILL).error.reason == "RefusedError"
    following = private_mod(message(1), where, STILL)
    assert not bool((sums(first) == sums(following)).any())  # with noise of its own
    assert not private_mod(message(2), where, STILL).has_error()
    assert private_mod(message(3), where, STILL).error.reason == "RefusedError"  # the run's budget is spent


def test_the_owners_limit_holds_over_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = {"ledger_file": str(tmp_path / "l.jsonl"), "epsilon_limit": 5.0, "delta_limit": 1e-2}
    with caplog.at_level(logging.WARNING):
        answered = [
            [not private_mod(message(n), where, STILL).has_error() for n in range(3)]
            for where in (context(1, **node), context(2, **node))
        ]
    assert answered == [[True, True, True], [True, True, False]]
    assert "this node's epsilon-limit of 5" in caplog.text
    charged = read(tmp_path / "l.jsonl").events
    assert len(charged) == sum(map(sum, answered))
    assert 0.5 < share(Budget(5.0, 1e-2), charged) <= 1


def test_a_limit_in_the_code_of_the_app_is_logged_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mod = PrivateMod(ledger=tmp_path / "l.jsonl", epsilon_limit=0.5, delta_limit=1e-5)
    with caplog.at_level(logging.WARNING):
        reply = mod(message(), context(), STILL)
    assert reply.error.reason == "RefusedError"
    assert "epsilon-limit of 0.5" in caplog.text
    assert not (tmp_path / "l.jsonl").exists()


def less_noise(asked: Any) -> Any:
    return replace(asked, party_stds=tuple(std / 2 for std in asked.party_stds))


def wider_clip(asked: Any) -> Any:
    [block] = asked.query.blocks
    block = replace(block, terms=(replace(block.terms[0], clip_norm=50.0),))
    return replace(asked, query=replace(asked.query, blocks=(block,)))


def other_plan(asked: Any) -> Any:
    return replace(asked, query=replace(asked.query, relative_noise=0.5))


HOSTILE: dict[str, tuple[Message | Callable[[], Message], str]] = {
    "less noise": (lambda: message(ask=less_noise), "differs from the noise that the plan"),
    "no noise": (lambda: message(ask=lambda a: replace(a, party_stds=None)), "differs from the noise"),
    "a wider clip": (lambda: message(ask=wider_clip), "differs from the noise that the plan"),
    "an unplanned release": (lambda: message(ask=other_plan), "no release with this relative noise"),
    "central noise": (lambda: settings_of(placement="central"), "add no noise"),
    "examples as units": (lambda: settings_of(unit="example"), "unit is 'example'; it must be client"),
    "code": (lambda: settings_of(optimizer="os:getcwd"), "accept-code"),
    "a file": (lambda: settings_of(**{"clip-norm-file": "/etc/passwd"}), "names a file"),
    "another model": (lambda: settings_of(model="cnn"), "not those of a Flower app"),
    "a run without data of its nodes": (lambda: settings_of(**{"nodes-own-data": False}), "owns its data"),
    "two models": (lambda: with_record("more", ArrayRecord()), "has 2 ArrayRecords"),
    "no text": (lambda: with_record("fedpriv-run", ConfigRecord({"frozen": []})), "table in JSON"),
}


def settings_of(**changes: Any) -> Message:
    asked = message()
    table = json.loads(asked.content["fedpriv-run"]["settings"]) | changes
    asked.content["fedpriv-run"]["settings"] = json.dumps(table)
    return asked


def with_record(name: str, record: Any) -> Message:
    asked = message()
    asked.content[name] = record
    return asked


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_request_is_refused_before_anything_is_computed_or_charged(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def never(message: Message, context: Context) -> Message:
        raise AssertionError("the app was asked")

    make, text = HOSTILE[what]
    with caplog.at_level(logging.WARNING):
        reply = private_mod(make(), context(ledger_file=str(tmp_path / "l.jsonl")), never)
    assert reply.error.reason in ("RefusedError", "ArgumentError", "MessageError")
    assert text in caplog.text
    assert not (tmp_path / "l.jsonl").exists()


def test_a_run_beyond_the_owners_limit_is_refused_from_its_first_release_on(tmp_path: Path) -> None:
    """With sampler everyone, where this says nothing of who was drawn."""
    node = {"ledger_file": str(tmp_path / "l.jsonl"), "epsilon_limit": 3.0, "delta_limit": 1e-2}
    where = context(**node)
    for number in range(2):
        assert private_mod(message(number), where, STILL).error.reason == "RefusedError"
    assert not (tmp_path / "l.jsonl").exists()


def test_settings_cannot_change_within_a_run() -> None:
    where = context()
    assert not private_mod(message(), where, STILL).has_error()
    assert private_mod(message(1, epsilon=50.0), where, STILL).error.reason == "RefusedError"
    assert not private_mod(message(1), where, STILL).has_error()


def test_the_owner_can_ask_for_more_noise_than_a_run_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = PrivateStrategy(placement="local", **STRATEGY).plan
    node = {"ledger_file": str(tmp_path / "l.jsonl")}
    with caplog.at_level(logging.WARNING):
        strict = context(**node, min_noise_multiplier=1.01 * plan.mechanism.scale)
        assert private_mod(message(), strict, STILL).error.reason == "RefusedError"
    assert "below this node's min-noise-multiplier" in caplog.text
    lenient = context(**node, min_noise_multiplier=0.99 * plan.mechanism.scale)
    assert not private_mod(message(), lenient, STILL).has_error()
    code = PrivateMod(min_noise_multiplier=1.01 * plan.mechanism.scale)
    assert code(message(), context(), STILL).error.reason == "RefusedError"


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_other_messages_get_one_sentence(kind: str) -> None:
    def never(message: Message, context: Context) -> Message:
        raise AssertionError("the app was asked")

    plain = Message(RecordDict({"arrays": ArrayRecord()}), dst_node_id=1, message_type=kind)
    reason = private_mod(plain, context(), never).error.reason
    assert reason.startswith("private_mod lets nothing leave this node but answers")
    assert reason.count(".") == 1
    if kind != "train":
        asked = message()
        asked.metadata.message_type = kind
        assert private_mod(asked, context(), never).has_error()


@pytest.mark.parametrize(
    ("reply", "name"),
    [(returning(lambda w: w, more=ArrayRecord()), "MessageError"),
     (returning(lambda w: w[:1]), "MessageError"),
     (returning(lambda w: w.astype(np.int64)), "MessageError"),
     (lambda m, c: Message(fedpriv_error(), reply_to=m), "MessageError")],
)  # fmt: skip
def test_an_app_that_does_not_fit_leaves_a_type_alone(reply: App, name: str) -> None:
    assert private_mod(message(), context(), reply).error.reason == name


def fedpriv_error() -> Any:
    from flwr.app import Error

    return Error(1, "patient 977")


# ---- The strategy ----


class Mixed(NoisingGrid):
    """Clients of which one has an app without the mod."""

    def _answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != 3:
            return super()._answer(message)
        content = {name: message.content[name] for name in ("arrays", "config")}
        self.bare = True
        return AppGrid()._app(
            fedpriv.flower.noise_mod.make_message(message.metadata, RecordDict(content)),
            self._contexts[3],
        )


def claims(value: float) -> Tamper:
    def tamper(partition: int, reply: Message) -> Message:
        reply.content["fedpriv-noise"]["party-stds"] = [value]
        return reply

    return tamper


@pytest.mark.parametrize(
    ("grid", "text"),
    [(lambda: Mixed(), "no noise of its own"), (lambda: NoisingGrid(tamper=claims(0.0)), "other noise")],
)
def test_a_reply_without_its_noise_ends_the_run(
    grid: Callable[[], NoisingGrid], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=text) as error:
        run(tmp_path / "run", grid=grid(), sampler="everyone", sampling_rate=1.0, rounds=2)
    assert str(error.value).count(".") == 1
    assert json.loads((tmp_path / "run/report.json").read_text())["result"]["stopped"] == "failed"
    assert len(events(tmp_path / "run")) == 1


def test_replies_that_do_not_fit_contribute_nothing(tmp_path: Path) -> None:
    """As if these clients were not there; the server adds their shares of the noise."""

    def tamper(partition: int, reply: Message) -> Message | None:
        if partition < CLIENTS // 2:
            return reply
        return changed(reply, lambda a: a.update({"sum-0": np.full(7850, math.nan)}), "sums")

    def absent(partition: int, reply: Message) -> Message | None:
        return reply if partition < CLIENTS // 2 else None

    odd, without = (
        run(tmp_path / name, grid=NoisingGrid(tamper=how, client_app=seeded), timeout=0.5, rounds=2)
        for name, how in (("odd", tamper), ("without", absent))
    )
    assert torch.equal(vector(odd.arrays), vector(without.arrays))
    assert not torch.equal(vector(odd.arrays), vector(run(tmp_path / "all", rounds=2).arrays))


def test_clients_that_reached_their_limit_are_missing(tmp_path: Path) -> None:
    def limited(partition: int) -> dict[str, Any]:
        return {
            "ledger-file": str(tmp_path / f"{partition}.jsonl"),
            "epsilon-limit": 0.1,
            "delta-limit": 1e-3,
        }

    run(tmp_path / "run", grid=NoisingGrid(node_config=limited, client_app=app), rounds=2)
    assert len(events(tmp_path / "run")) == 2
    assert not [event for path in tmp_path.glob("*.jsonl") for event in read(path).events]


def test_buffers_stay_and_each_client_keeps_its_ledger(tmp_path: Path) -> None:
    def node(partition: int) -> dict[str, Any]:
        return {"ledger-file": str(tmp_path / f"{partition}.jsonl")}

    run(tmp_path / "run", grid=NoisingGrid(node_config=node), rounds=2)
    ledgers = [read(path).events for path in tmp_path.glob("*.jsonl")]
    assert sum(map(len, ledgers)) == 2 * round(0.2 * CLIENTS)
    scale = events(tmp_path / "run")[0].noise_multiplier
    assert {event.noise_multiplier for one in ledgers for event in one} == {scale}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"client_metrics": "non-private"},
            "client_metrics is 'non-private'; it must be drop with placement",
        ),
        ({"optimizer": fedpriv.optimizers.dp_sgd(0.1, 1.0)}, "it must be a name with placement local"),
        ({"noise_draws": "fast"}, "noise_draws is 'fast'; it must be exact"),
        ({"max_participations": 2}, "max_participations is 2; it must be 0"),
        ({"optimizer": "adadps"}, "do without public examples"),
        ({"unit": "example"}, "unit is 'example'; it must be client"),
    ],
)
def test_errors_of_the_strategy(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        PrivateStrategy(**{**FIXED, "population": CLIENTS, "placement": "local", **changes})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"epsilon_limit": 3.0, "delta_limit": 1e-5}, "ledger-file is None; it must name a file"),
        ({"epsilon-limt": 3.0}, "did you mean 'epsilon-limit'"),
        ({"epsilon_limit": "3", "delta_limit": 1e-5, "ledger_file": "x"}, "epsilon-limit is '3'"),
        ({"epsilon_limit": 3.0, "ledger_file": "x"}, "delta-limit is None"),
        ({"min_noise_multiplier": -1.0}, "min-noise-multiplier is -1.0"),
    ],
)
def test_errors_of_a_node(node: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert private_mod(message(), context(**node), STILL).error.reason == "ArgumentError"
    assert text in caplog.text


def test_errors_of_the_mod() -> None:
    with pytest.raises(ArgumentError, match="ledger-file is None; it must name a file with epsilon-limit"):
        PrivateMod(epsilon_limit=3.0, delta_limit=1e-5)
    own = context(**{"data_path": "x", "seed": 3, "limit": 4, "file": "y"})  # keys of the app's own
    assert not private_mod(message(), own, STILL).has_error()
