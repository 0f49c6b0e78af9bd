"""The owner's node: it answers what the policy allows, and refuses all else in one line of its journal."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from helpers.owner_policy import write_policy

from fedpriv.accounting import epsilon
from fedpriv.accounting.head import Head
from fedpriv.accounting.ledger import read
from fedpriv.accounting.methods.relations import under_one_relation
from fedpriv.config.builders import make_source, make_task
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Silos
from fedpriv.data.client_files import write_client_file
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.flower.grid_engine import SILOS_TRAIN
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.intervals import NODE
from fedpriv.flower.owner_node import OwnerNode
from fedpriv.flower.serialization import read_reply, request_content, shared_records
from fedpriv.flower.silo_serialization import model_record, read_changes, training_content
from fedpriv.flower.supernode import Run, RunEndedError, Task
from fedpriv.flower.topology import LEDGER, head_record, read_head
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.contact import Contact, read_contact
from fedpriv.node.journal import Journal, read_journal
from fedpriv.node.ledger import ON_WORD, NodeLedger
from fedpriv.node.ledger_file import answered_file
from fedpriv.node.policy_file import Policy, read_policy
from fedpriv.node.setup import set_up
from fedpriv.node.silo import TrainRequest, round_events
from fedpriv.node.status import status_of

RUN: dict[str, Any] = {
    "nodes-own-data": True,
    "model": "logistic",
    "optimizer": "dp-sgd",
    "unit": "example",
    "clients": 5,
    "examples-per-client": 40,
    "placement": "local",
    "sampler": "everyone",
    "sampling-rate": 1.0,
    "rounds": 3,
    "epsilon": 8.0,
    "delta": 1e-3,
}
CENTRAL = {**RUN, "placement": "central", "sampler": "poisson", "sampling-rate": 0.5}


class FakeLink:
    """A SuperLink whose runs are these configurations, and whose replies are kept."""

    node = 1

    def __init__(self, runs: dict[int, dict[str, Any]]) -> None:
        self.runs, self.replies = runs, list[Message]()
        self.asked = list[int]()

    def run(self, number: int) -> Run:
        self.asked.append(number)
        return Run(number, "a" * 64, dict(Config.parse(self.runs[number]).table()))

    def reply(self, reply: Message) -> None:
        self.replies.append(reply)


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    policy = read_policy(write_policy(tmp_path))
    set_up(policy)
    source = make_source(Config.parse(RUN))
    examples = Silos(5, 40, source.first).examples(np.array([1]))[0]
    write_client_file(tmp_path / "data" / "silo.npz", source, examples)
    return policy


class Asking:
    """An owner's node, and a server that asks it."""

    def __init__(self, policy: Policy, **runs: dict[str, Any]) -> None:
        self.policy = policy
        self.link = FakeLink({int(name[1:]): run for name, run in runs.items()})
        link: Any = self.link
        self.contact = Contact(policy.contact)
        self.node = OwnerNode(policy, link, Journal(policy.journal), self.contact)

    def ask(self, run: int, content: RecordDict, kind: str = "train") -> Message:
        grid = InProcessGrid(nodes=2)
        message = grid.create_message(content, kind, 1, "0")
        message.metadata.__dict__["_run_id"] = run
        message.metadata.__dict__["_message_id"] = "1"
        self.node.answer(Task(message, lambda: message))
        return self.link.replies[-1]

    def sum(self, run: int, request: SumRequest) -> str:
        """ "answered", or the reason of the refusal."""
        reply = self.ask(run, request_content(shared_records(request), request.shards))
        if not reply.has_error():
            assert read_reply(reply.content, request).parties == 1
            return "answered"
        line = read_journal(self.policy.journal)[-1]
        assert reply.error.reason in ("RefusedError", "MessageError", "LedgerError", "ArgumentError")
        assert "\n" not in line["why"]
        return str(line["why"])


@functools.cache
def planned(config: Config) -> Plan:
    """The server's plan, whose calibration takes a moment."""
    return make_plan(config)


def request(
    run: dict[str, Any], release: int = 0, factor: float = 1.0, clip: float = 1.0, **changes: Any
) -> SumRequest:
    config = Config.parse({**run, **changes})
    plan = planned(config)
    point = make_task(config, make_source(config)).initial(np.random.default_rng(0))
    query = Query((point,), (SumBlock((Term(clip),)),))
    stds = plan.mechanism.placement.party_stds(query.noise_stds(plan.mechanism.scale * factor))
    return SumRequest(query, release, (Shard(1, np.arange(40, 60), 1, home=1),), stds)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file system that is always full")
def test_a_journal_on_a_full_disk_stops_no_answer(policy: Policy, caplog: pytest.LogCaptureFixture) -> None:
    asking, lines = Asking(policy, r7=RUN), list[dict[str, Any]]()
    asking.node._journal = Journal(Path("/dev/full"), lines.append)
    assert not asking.ask(7, request_content(shared_records(request(RUN)), request(RUN).shards)).has_error()
    assert asking.ask(7, RecordDict()).error.reason == "MessageError"
    assert [line["event"] for line in lines] == ["answered", "refused"]
    assert sum("takes no more lines" in text for text in caplog.messages) == 1


def test_an_allowed_run_is_answered_from_the_owners_file(policy: Policy) -> None:
    server = Asking(policy, r7=RUN)
    assert server.ask(7, RecordDict(), "query").has_content()
    assert [server.sum(7, request(RUN, number)) for number in range(3)] == ["answered"] * 3
    assert server.link.asked == [7]  # the configuration is read once
    assert len(read(policy.ledger, policy.anchor).events) == 3
    assert [line["event"] for line in read_journal(policy.journal)] == ["answered"] * 4


def shown(head: Head | None) -> RecordDict:
    """The server's question, with where the node's ledger ended before."""
    return RecordDict({} if head is None else {LEDGER: head_record(head)})


@pytest.mark.parametrize("run", [RUN, CENTRAL], ids=["local", "central"])
def test_a_node_says_where_its_ledger_ends_and_refuses_with_one_that_was_lost(
    policy: Policy, run: dict[str, Any]
) -> None:
    """Ledger and anchor are gone together, and the node was set up anew: only the server still knows."""
    server = Asking(policy, r7=run)
    before = read_head(server.ask(7, shown(None), "query").content)
    assert before == read(policy.ledger, policy.anchor).head
    assert server.sum(7, request(run)) == "answered"
    after = read_head(server.ask(7, shown(before), "query").content)
    assert after == read(policy.ledger, policy.anchor).head
    assert after.length > before.length == 0
    for file in [*policy.ledger.parent.glob(f"{policy.ledger.name}*"), policy.anchor]:
        file.unlink()
    set_up(policy)
    anew = Asking(policy, r8=run)
    assert anew.ask(8, shown(before), "query").has_content()  # nothing is lost
    assert anew.ask(8, shown(after), "query").error.reason == "LedgerError"
    assert "its end was cut" in read_journal(policy.journal)[-1]["why"]
    assert anew.sum(8, request(run)) == "answered"
    assert anew.ask(8, shown(after), "query").error.reason == "LedgerError"
    assert "is that of another ledger" in read_journal(policy.journal)[-1]["why"]


def test_a_clients_ledger_is_not_shown(policy: Policy) -> None:
    """Its length would tell in how many releases the client took part."""
    plan = planned(Config.parse({**RUN, "unit": "client", "examples-per-client": 1}))
    assert policy.ledger.exists()
    assert NodeLedger(plan, policy.ledger, 7).head(None) is None


@pytest.mark.parametrize(
    "bad", [{"length": -1, "chain": "a"}, {"length": 1}, {"length": 1, "chain": "a" * 65}]
)
def test_what_is_no_end_of_a_ledger_is_refused(policy: Policy, bad: dict[str, Any]) -> None:
    answer = Asking(policy, r7=RUN).ask(7, RecordDict({LEDGER: ConfigRecord(bad)}), "query")
    assert answer.error.reason == "MessageError"


def test_a_server_that_departs_from_the_plan_is_refused(policy: Policy) -> None:
    server = Asking(policy, r7=RUN)
    assert server.sum(7, request(RUN)) == "answered"
    hostile = {
        "the request's noise differs from the noise that the plan": request(RUN, 1, factor=0.5),
        "the request's clip norm is 5, above this node's max-clip-norm of 1": request(RUN, 1, clip=5.0),
        "the request names none": replace(request(RUN, 1), party_stds=None),
        "round 0 was answered before": request(RUN, 0),
    }
    for said, asked in hostile.items():
        assert said in server.sum(7, asked)
    assert [server.sum(7, request(RUN, number)) for number in (1, 2)] == ["answered"] * 2
    assert "round 3 would exceed the run's budget" in server.sum(7, request(RUN, 3))
    assert len(read(policy.ledger, policy.anchor).events) == 3


def test_a_request_for_another_model_gets_no_answer(policy: Policy) -> None:
    server = Asking(policy, r7=RUN)
    assert server.sum(7, request(RUN, model="mlp")) != "answered"
    assert server.link.replies[-1].has_error()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "cnn"}, "the run's model is cnn"),
        ({"epsilon": 9.0}, "the run's epsilon is 9"),
        ({"placement": "none", "sampler": "poisson"}, "the run's placement is none"),
        ({"seed": 4}, "the run has a seed"),
        ({"model": "thief:net"}, "the run's model is code, thief:net"),
        ({"nodes-own-data": False}, "nodes-own-data"),
    ],
)
def test_a_run_that_the_policy_does_not_allow_is_refused_unread(
    policy: Policy, changes: dict[str, Any], said: str
) -> None:
    """Its messages are not even received, and its code is not imported."""
    server = Asking(policy, r7={**RUN, **changes})

    def unread() -> Message:
        raise AssertionError("the message was read")

    for kind in ("query", "train", "evaluate"):
        message = InProcessGrid(nodes=2).create_message(RecordDict(), kind, 1, "0")
        message.metadata.__dict__.update(_run_id=7, _message_id="1")
        server.node.answer(Task(message, unread))
        assert server.link.replies[-1].error.reason == "RefusedError"
    lines = read_journal(policy.journal)
    assert [said in line["why"] for line in lines] == [True] * 3
    assert server.link.asked == [7]
    assert read(policy.ledger, policy.anchor).events == ()
    assert "thief" not in sys.modules


def test_a_thiefs_messages_get_the_name_of_an_error_and_nothing_else(policy: Policy) -> None:
    """Content, types and actions that fedpriv's ClientApp does not have, in a run that is allowed."""
    server = Asking(policy, r7=RUN)
    thief = RecordDict({"config": ConfigRecord({"read": str(policy.path), "code": "import os"})})
    for kind in ("train", "query.data", "train.raw", "evaluate"):
        reply = server.ask(7, thief, kind)
        assert reply.has_error()
        assert reply.error.reason.isidentifier()
    assert read(policy.ledger, policy.anchor).events == ()


def test_a_run_with_the_servers_noise_is_charged_whole_on_its_word(policy: Policy) -> None:
    server = Asking(policy, r7=CENTRAL, r8=RUN)
    assert server.ask(7, RecordDict(), "query").has_content()
    assert server.sum(7, request(CENTRAL, 1)) == "answered"
    record = read(policy.ledger, policy.anchor)
    assert record.events == make_plan(Config.parse(CENTRAL)).events
    assert [labels["rests"] for labels in record.labels] == [ON_WORD] * 3
    assert server.sum(7, request(CENTRAL, 1)) == "release 1, or a later one, was answered before"
    assert server.sum(7, request(CENTRAL, 3)) == "release 3 is not in the plan of 3 releases"
    assert "above this node's max-clip-norm" in server.sum(7, request(CENTRAL, 2, clip=2.0))
    assert server.sum(8, request(RUN)) == "answered"
    status = status_of(policy)
    assert status.spent == pytest.approx(status.own + status.on_word)
    charges = under_one_relation(read(policy.ledger, policy.anchor).events)
    assert status.epsilon == pytest.approx(epsilon(charges, policy["delta-limit"]).epsilon)
    assert 0 < status.own < status.spent
    assert [(run.own, run.on_word) for run in status.runs] == [(0, 3), (1, 0)]


def test_a_silo_trains_by_itself_with_its_own_noise(policy: Policy) -> None:
    """At the client level the placement is central, and the noise is the node's own."""
    run = {**CENTRAL, "level": "client", "silo-steps": 2}
    server = Asking(policy, r7=run)
    config = Config.parse(run)
    plan = make_plan(config)
    params = make_task(config, make_source(config)).initial(np.random.default_rng(0))
    asked = TrainRequest(params, 0, round_events(plan, 0), (1,))
    content = training_content(model_record(asked), asked, (1,))
    reply = server.ask(7, content, SILOS_TRAIN)
    assert [change.silo for change in read_changes(reply.content, (1,), asked)] == [1]
    assert server.ask(7, content, SILOS_TRAIN).error.reason == "RefusedError"
    assert read_journal(policy.journal)[-1]["why"] == "round 0 was answered before"
    status = status_of(policy)
    assert (status.on_word, [vars(run) for run in status.runs]) == (0, [{"run": "7", "own": 2, "on_word": 0}])


def test_a_central_charge_that_a_crash_cut_is_completed(policy: Policy) -> None:
    server = Asking(policy, r7=CENTRAL)
    assert server.sum(7, request(CENTRAL, 0)) == "answered"
    # A crash in mid-charge leaves some lines, which no head and no anchor has sealed yet.
    whole = policy.ledger.read_bytes()
    policy.ledger.unlink()
    policy.anchor.unlink()
    policy.ledger.with_name(policy.ledger.name + ".head").unlink()
    set_up(policy)
    policy.ledger.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert Asking(policy, r7=CENTRAL).sum(7, request(CENTRAL, 1)) == "answered"
    assert read(policy.ledger, policy.anchor).events == make_plan(Config.parse(CENTRAL)).events
    other = {**CENTRAL, "rounds": 4}
    assert "charged before with another plan" in Asking(policy, r7=other).sum(7, request(other, 2))


def test_a_continued_run_is_the_same_run_to_its_nodes(policy: Policy) -> None:
    """A run goes on under another number: no charge is made twice, and nothing is answered twice."""
    own, central = ({**run, "continues": number} for run, number in ((RUN, "7"), (CENTRAL, "8")))
    first = Asking(policy, r7=RUN, r8=CENTRAL)
    assert [first.sum(7, request(RUN, 0)), first.sum(8, request(CENTRAL, 1))] == ["answered"] * 2
    again = Asking(policy, r17=own, r18=central)  # the node was started again, too
    assert "round 0 was answered before" in again.sum(17, request(RUN, 0))
    assert "release 1, or a later one, was answered before" in again.sum(18, request(CENTRAL, 1))
    assert [again.sum(17, request(RUN, 1)), again.sum(18, request(CENTRAL, 2))] == ["answered"] * 2
    assert again.sum(17, request(RUN, 2)) == "answered"
    assert "round 3 would exceed the run's budget" in again.sum(17, request(RUN, 3))
    status = status_of(policy)
    assert [vars(run) for run in status.runs] == [
        {"run": "7", "own": 3, "on_word": 0},
        {"run": "8", "own": 0, "on_word": 3},
    ]


def test_without_its_record_of_answers_a_run_that_was_charged_whole_gets_none(policy: Policy) -> None:
    record = answered_file(policy.ledger)
    assert Asking(policy, r7=CENTRAL).sum(7, request(CENTRAL, 0)) == "answered"
    kept = record.read_bytes()
    record.write_text('{"7": -1}')
    assert "is damaged" in Asking(policy, r7=CENTRAL).sum(7, request(CENTRAL, 1))
    record.unlink()
    assert "does not tell what this run was answered" in Asking(policy, r7=CENTRAL).sum(
        7, request(CENTRAL, 1)
    )
    record.write_bytes(kept)
    assert Asking(policy, r7=CENTRAL).sum(7, request(CENTRAL, 1)) == "answered"


def test_without_the_owners_word_the_server_may_not_add_the_noise(tmp_path: Path, policy: Policy) -> None:
    strict = read_policy(write_policy(tmp_path, ("accept-central = true", "")))
    server = Asking(strict, r7=CENTRAL)
    assert "it adds no noise itself in this run" in server.sum(7, request(CENTRAL))


def test_the_limit_counts_runs_with_the_servers_noise(policy: Policy) -> None:
    runs = {f"r{number}": CENTRAL for number in range(7, 12)}
    server = Asking(policy, **runs)
    said = [server.sum(number, request(CENTRAL)) for number in range(7, 12)]
    assert said[0] == "answered"
    assert "the run would exceed this node's epsilon-limit of 20" in said[-1]
    assert len(read(policy.ledger, policy.anchor).events) == 3 * said.count("answered")


def test_an_ended_run_and_an_unexpected_error_end_no_process(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Asking(policy, r7=RUN)
    tasks: Iterator[Any] = iter([RunEndedError, MemoryError])
    stops = iter([False, False, True])
    naps = list[float]()

    def ended() -> Message:
        raise next(tasks)

    def upcoming(held: float) -> Task:
        message = InProcessGrid(nodes=2).create_message(RecordDict(), "query", 1, "0")
        message.metadata.__dict__.update(_run_id=7, _message_id="1")
        return Task(message, ended)

    monkeypatch.setattr(server.link, "next", upcoming, raising=False)
    monkeypatch.setattr(server.link, "holds", False, raising=False)
    monkeypatch.setattr("fedpriv.flower.owner_node.time.sleep", naps.append)
    server.node.serve(lambda: next(stops))
    [line] = read_journal(policy.journal)
    assert (line["event"], line["why"]) == ("failed", "MemoryError")
    assert [reply.error.reason for reply in server.link.replies] == ["MemoryError"]
    assert naps == [NODE[0]] * 2


def test_a_node_notes_each_question_and_that_it_answers(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A health check must not take a long answer for a node that hangs, nor the other way round."""
    server, found = Asking(policy, r7=RUN), list[Any]()
    tasks: Iterator[Any] = iter([None, "a message", None])
    stops = iter([False, False, False, True])

    def noted() -> None:
        server.contact._written = -100.0  # so that it is written now
        server.contact.heard()
        times = read_contact(policy.contact)
        found.append(None if times is None else times.asked is not None)

    monkeypatch.setattr(server.link, "next", lambda held: next(tasks), raising=False)
    monkeypatch.setattr(server.link, "holds", False, raising=False)
    monkeypatch.setattr(server.node, "answer", lambda task: noted())
    monkeypatch.setattr("fedpriv.flower.owner_node.time.sleep", lambda seconds: noted())
    server.node.serve(lambda: next(stops))
    assert found == [True, False, False, True]


def test_nothing_private_is_in_the_journal(policy: Policy) -> None:
    server = Asking(policy, r7=RUN)
    server.sum(7, request(RUN))
    server.sum(7, request(RUN))
    allowed = {"time", "event", "run", "message", "group", "stage", "why", "number"}
    for line in policy.journal.read_text().splitlines():
        assert set(json.loads(line)) <= allowed
