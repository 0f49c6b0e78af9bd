"""Silos that train locally, over messages: what is sent, where state is kept, what is refused."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from helpers.small import write_mnist
from helpers.toy_app import TOY, pairs

from fedpriv.accounting.ledger import read
from fedpriv.config.builders import make_source, make_task
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Silos
from fedpriv.data.client_files import write_client_file
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.flower import server_app
from fedpriv.flower.client_app import app
from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grid_engine import SILOS_TRAIN, GridEngine, overlong
from fedpriv.flower.grids.base import HostedGrid
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.grids.ray import RayGrid
from fedpriv.flower.serialization import MessageError, read_reply, request_content, shared_records
from fedpriv.flower.silo_serialization import (
    changes_content,
    model_record,
    read_changes,
    read_memories,
    read_training,
    training_content,
    write_memories,
)
from fedpriv.flower.topology import EngineError, Node
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.factory import make_worker
from fedpriv.node.ledger import NodeLedger
from fedpriv.node.policy import FILES, RefusedError, as_taken
from fedpriv.node.silo import ModelDelta, SiloState, TrainRequest, make_silo_worker, round_events
from fedpriv.report.summary import enforced_guarantee
from fedpriv.runs import checkpoints
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute

SILOS: dict[str, object] = {
    **TOY,
    "level": "client",
    "unit": "example",
    "clients": 5,
    "examples-per-client": 40,
    "sampling-rate": 0.2,
    "silo-steps": 3,
    "rounds": 3,
    "epsilon": 8.0,
    "optimizer": "dp-sgd",
}
CASES: dict[str, dict[str, object]] = {
    "momentum": {"momentum": 0.5},
    "dp-srm": {"optimizer": "dp-srm", "learning-rate": 0.1},
}
ENGINES: dict[str, Callable[[Config], GridEngine]] = {
    "grid of 3": lambda config: GridEngine(InProcessGrid(3, config.table())),
    "2 actors": lambda config: GridEngine(RayGrid(2, config.table(), num_cpus=0.5)),
}


AGAIN, SLOW = [("momentum", "2 actors")], [("dp-srm", "2 actors")]


@pytest.mark.parametrize(("case", "engine"), pairs(CASES, ENGINES, slow=SLOW, again=AGAIN))
def test_every_engine_gives_the_same_parameters(ray_instance: None, engine: str, case: str) -> None:
    """Silos 0 to 4 on two or three nodes; each stays on one node, which keeps its optimizer's slots."""
    config = Config.parse({**SILOS, **CASES[case]})
    plan = make_plan(config)
    there = execute(plan, ENGINES[engine](config)).params
    assert torch.equal(there, execute(plan, make_silo_worker(config.table())).params)


def request_of(config: Config, number: int = 0, silos: tuple[int, ...] = (0, 3)) -> TrainRequest:
    params = make_task(config, make_source(config)).initial(np.random.default_rng(0))
    return TrainRequest(params, number, round_events(make_plan(config), number), silos)


def test_a_round_survives_serialization() -> None:
    config = Config.parse({**SILOS, "optimizer": "dynamic-dp-sgd"})
    request = request_of(config, 2)
    back = read_training(training_content(model_record(request), request, (3,)))
    assert (back.round, back.silos, back.events) == (2, (3,), request.events)
    assert torch.equal(back.params, request.params)
    changes = [ModelDelta(silo, torch.randn(7850, dtype=torch.float64)) for silo in (4, 1)]
    there = read_changes(changes_content(changes, 2), (1, 4), request)
    assert [change.silo for change in there] == [1, 4]
    assert torch.equal(there[0].delta, changes[1].delta)


def test_silo_states_survive_serialization() -> None:
    state = RecordDict()
    slots = {"velocity": torch.randn(5), "step_size": torch.tensor(0.1, dtype=torch.float64)}
    write_memories(state, {0: SiloState(2, slots), 3: SiloState(1)})
    back = read_memories(state, (0, 1, 3))
    assert sorted(back) == [0, 3]
    assert (back[0].round, back[3]) == (2, SiloState(1))
    assert back[0].slots is not None
    assert all(torch.equal(back[0].slots[name], tensor) for name, tensor in slots.items())
    assert back[0].slots["step_size"].shape == ()


def broken_rounds() -> dict[str, Callable[[RecordDict], None]]:
    def fields(**changes: Any) -> Callable[[RecordDict], None]:
        def change(content: RecordDict) -> None:
            content["round"] = ConfigRecord({**content["round"], **changes})

        return change

    def model(values: np.ndarray[Any, Any]) -> Callable[[RecordDict], None]:
        def change(content: RecordDict) -> None:
            content["model"] = ArrayRecord({"params": Array(values)})

        return change

    return {
        "no model": lambda content: content.__delitem__("model"),
        "a matrix": model(np.zeros((2, 2), np.float32)),
        "whole numbers": model(np.zeros(3, np.int64)),
        "no round": lambda content: content.__delitem__("round"),
        "a negative round": fields(round=-1),
        "a round that is true": fields(round=True),
        "events of no kind": fields(events='[{"noise": 1}]'),
        "events of no number": fields(events='[{"noise_multiplier": -1, "sampling": "none"}]'),
        "no JSON": fields(events="["),
        "a silo by name": fields(silos=["a"]),
    }


@pytest.mark.parametrize("kind", broken_rounds())
def test_a_malformed_round_is_refused(kind: str) -> None:
    request = request_of(Config.parse(SILOS))
    content = training_content(model_record(request), request, (0,))
    broken_rounds()[kind](content)
    with pytest.raises(MessageError):
        read_training(content)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [ModelDelta(2, torch.zeros(3).double())],
        [ModelDelta(1, torch.zeros(3).double()), ModelDelta(2, torch.zeros(3).double())],
        [ModelDelta(1, torch.zeros(4).double())],
        [ModelDelta(1, torch.zeros(3))],
        [ModelDelta(1, torch.tensor([0.0, float("nan"), 0.0]).double())],
    ],
    ids=["none", "another silo's", "too many", "too long", "float32", "not finite"],
)
def test_a_malformed_reply_is_refused(changes: list[ModelDelta]) -> None:
    with pytest.raises(MessageError):
        read_changes(changes_content(changes, 2), (1,), TrainRequest(torch.zeros(3), 2, (), (1,)))


def test_a_change_of_another_round_is_refused() -> None:
    request = TrainRequest(torch.zeros(3), 2, (), (1,))
    changes = [ModelDelta(1, torch.ones(3).double())]
    assert len(read_changes(changes_content(changes, 2), (1,), request)) == 1
    for number in (1, 3):
        with pytest.raises(MessageError, match="to another round than the one that was asked for"):
            read_changes(changes_content(changes, number), (1,), request)


def node(config: Config, partition: int = 0, **settings: object) -> Context:
    table: Any = {"partition-id": partition, "num-partitions": config.clients, **settings}
    return Context(77, 1, table, RecordDict(), dict(config.table()))


def reply_of(context: Context, request: TrainRequest, silos: tuple[int, ...]) -> Message:
    grid: HostedGrid = InProcessGrid(nodes=1)
    content = training_content(model_record(request), request, silos)
    return app(grid.create_message(content, SILOS_TRAIN, 1, ""), context)


def sum_reply(context: Context, request: SumRequest) -> Message:
    grid: HostedGrid = InProcessGrid(nodes=1)
    return app(
        grid.create_message(request_content(shared_records(request), request.shards), "train", 1, ""), context
    )


def test_a_node_answers_a_round_once() -> None:
    config = Config.parse(SILOS)
    context, request = node(config), request_of(config)
    first = reply_of(context, request, (0, 3))
    assert len(read_changes(first.content, (0, 3), request)) == 2
    assert reply_of(context, request, (3,)).error.reason == "RefusedError"
    assert reply_of(context, request, (4,)).has_content()
    assert reply_of(context, request_of(config, 2), (0, 3)).has_content()
    assert reply_of(context, request_of(config, 1), (0,)).error.reason == "RefusedError"


def test_a_begun_round_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.parse(SILOS)
    context, request = node(config), request_of(config)

    def fails(*arguments: object) -> None:
        raise RuntimeError("lost")

    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.node.silo.advance", fails)
        assert reply_of(context, request, (0,)).error.reason == "RuntimeError"
    assert reply_of(context, request, (0,)).error.reason == "RefusedError"


def test_a_node_of_training_silos_answers_no_sum_requests() -> None:
    """A request for a bounded sum would be answered without noise."""
    config = Config.parse(SILOS)
    query = Query((request_of(config).params,), (SumBlock((Term(1.0),)),))
    for stds in (None, (1.0,)):
        request = SumRequest(query, 0, (Shard(0, np.arange(4), 1, home=0),), stds)
        assert sum_reply(node(config), request).error.reason == "MessageError"


def test_a_node_of_another_level_refuses_training_requests() -> None:
    config = Config.parse({**SILOS, "level": "aggregation", "silo-steps": 1})
    request = request_of(Config.parse(SILOS))
    assert reply_of(node(config), request, (0,)).error.reason == "ArgumentError"


def test_a_request_with_less_noise_than_planned_is_refused() -> None:
    config = Config.parse(SILOS)
    request = request_of(config)
    cheap = tuple(replace(event, noise_multiplier=0.9 * event.noise_multiplier) for event in request.events)
    for events in (cheap, request.events[:2], (*request.events, request.events[0]), ()):
        assert reply_of(node(config), replace(request, events=events), (0,)).error.reason == "RefusedError"


def test_a_lost_silo_is_skipped_and_the_loss_of_all_is_an_error() -> None:
    config = Config.parse(SILOS)
    reports = list[str]()
    engine = GridEngine(InProcessGrid(5, config.table()), strict=False, report=reports.append)
    request = request_of(config, silos=(0, 1, 2, 3, 4))
    replies_of = engine._replies

    def losing(*arguments: Any) -> dict[int, Message]:
        replies = replies_of(*arguments)
        if arguments[1] == SILOS_TRAIN:
            replies.pop(2, None)  # partition 1
        return replies

    engine._replies = losing  # type: ignore[method-assign]
    for number in (0, 1):  # reported once
        assert [change.silo for change in engine.train(replace(request, round=number))] == [0, 2, 3, 4]
    engine._replies = replies_of  # type: ignore[method-assign]
    assert len(engine.train(replace(request, round=2))) == 5
    assert reports == [
        "round 1 on: without some silos: partition 1: no reply in time (details are in the nodes' own logs)",
        "round 3 on: with all silos again",
    ]
    engine._replies = lambda *arguments: {}  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="no node answered: partition 0: no reply in time; partition 1"):
        engine.train(replace(request, round=3))


@pytest.mark.parametrize(("factor", "used"), [(1e30, 4), (1e200, 4), (100.0, 5), (0.0, 5)])
def test_a_change_that_is_far_longer_than_most_is_not_averaged(factor: float, used: int) -> None:
    config, reports = Config.parse(SILOS), list[str]()

    class Hostile(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == SILOS_TRAIN and message.metadata.dst_node_id == 2:
                [change] = read_changes(reply.content, (1,), request)
                reply.content = changes_content([replace(change, delta=change.delta * factor)], 0)
            return reply

    request = request_of(config, silos=(0, 1, 2, 3, 4))
    engine = GridEngine(Hostile(5, config.table()), strict=False, report=reports.append)
    assert len(engine.train(request)) == used
    assert [text.split(" is ")[0] for text in reports] == (
        ["round 1 on: without some silos: partition 1: its change"] if used == 4 else []
    )
    assert [absence["partition"] for absence in engine.absences.to_json()] == ([1] if used == 4 else [])


def test_of_two_changes_nobody_knows_which_is_wrong() -> None:
    def changes(*norms: float) -> dict[Node, list[ModelDelta]]:
        return {Node(k + 1, k, len(norms)): [ModelDelta(k, torch.tensor([x]))] for k, x in enumerate(norms)}

    assert not overlong(changes(1.0, 1e30))
    assert [node.partition for node in overlong(changes(1.0, 1e30, 2.0))] == [1]
    assert [node.partition for node in overlong(changes(1e-9, 1.0, 1e30, 1.0))] == [2]
    assert not overlong(changes(0.0, 0.0, 1.0))  # without a step there is nothing to compare with


@pytest.mark.parametrize("unit", ["example", "client"])
def test_the_server_names_missing_silos_but_no_clients(
    tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = {"level": "aggregation", "silo-steps": 1, "delta": 1e-4, "out": str(tmp_path / "run")}
    partition = {"example": "one-example", "client": "iid"}[unit]
    config = Config.parse({**SILOS, **sums, "unit": unit, "partition": partition})

    monkeypatch.setattr(server_app, "GridEngine", functools.partial(GridEngine, strict=False))
    server_app._run(Losing(5, config.table()), config)
    said = capsys.readouterr().out
    assert "stopped: rounds" in said
    line = "release 1 on: without some silos: partition 1: no reply in time"
    assert said.count("without some silos") == said.count(line) == (unit == "example")
    text, reports = (tmp_path / "run" / "report.md").read_text(), absences_in(tmp_path / "run")
    if unit == "client":
        assert reports == (None, [None])
        assert "absent" not in text
        return
    [absence] = reports[0]
    assert absence == ABSENT | {"from release": 1, "to release": 3, "back": False}
    assert reports[1] == [[absence]]
    assert "- partition 1, 3 of 3 releases: from release 1 on (no reply in time)\n" in text
    assert (
        "In these releases the sum contained only the other nodes' examples, but was divided as if all"
        in text
    )


class Losing(InProcessGrid):
    """Loses partition 1's replies to the given rounds or releases; then the grid fails."""

    lost: Container[int] = range(100)
    then: tuple[int, BaseException] | None = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if not replies or replies[0].metadata.message_type == "query":
            return replies
        number = int(replies[0].metadata.group_id)
        if self.then and number == self.then[0]:
            raise self.then[1]
        return [r for r in replies if r.metadata.src_node_id != 2 or number not in self.lost]


@pytest.mark.parametrize("placement", ["central", "none"])
def test_a_run_whose_silos_all_fail_ends_with_what_it_has_spent(
    tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            if message.metadata.message_type == "train" and int(message.metadata.group_id) > 0:
                return error_reply(message, OSError("secret"))
            return super()._answer(message)

    sums = {"level": "aggregation", "silo-steps": 1, "delta": 1e-4, "out": str(tmp_path / "run")}
    config = Config.parse({**SILOS, **sums, "rounds": 9, "placement": placement})
    monkeypatch.setattr(server_app, "GridEngine", functools.partial(GridEngine, strict=False))
    with pytest.raises(EngineError, match="every node failed, twice in a row, up to release 3: partition 0"):
        server_app._run(Broken(5, config.table()), config)
    last = capsys.readouterr().out.splitlines()[-1]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    if placement == "central":
        assert len(read(tmp_path / "run" / "ledger.jsonl").events) == 3  # charged, and no more than that
    spent = enforced_guarantee(report).get("epsilon")
    cost = "" if spent is None else f"; epsilon {spent:.3g} of 8 is spent and stays charged"
    assert (spent is None) == (placement == "none")
    assert last == f"stopped: failed{cost}; results are in {tmp_path / 'run'}"


ABSENT = {"partition": 1, "why": ["no reply in time"]}


def absences_in(folder: Path) -> tuple[Any, list[Any]]:
    """The report's absences, and those of each row of the metrics."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text())
    return report["privacy"]["absences"], [row.get("absences") for row in rows]


def test_the_report_lists_absences_with_their_ends(tmp_path: Path) -> None:
    config = Config.parse({**SILOS, "rounds": 5, "evaluate-every": 1})
    grid = Losing(5, config.table())
    grid.lost = (1, 2, 4)
    execute(make_plan(config), GridEngine(grid, strict=False), RunFolder.create(tmp_path / "run"))
    first, last = ABSENT | {"from release": 4, "back": True}, ABSENT | {"from release": 13, "back": False}
    report, rows = absences_in(tmp_path / "run")
    assert report == [first | {"to release": 9}, last | {"to release": 15}]
    gone, last = first | {"back": False}, last | {"to release": 15}
    assert rows == [None, [gone | {"to release": 6}], [gone | {"to release": 9}], None, [last]]
    text = (tmp_path / "run" / "report.md").read_text()
    for said in (
        "- partition 1, 9 of 15 releases: in rounds 2 to 3 (no reply in time), then back; from round 5 "
        "on (no reply in time)\n",
        "| releases charged to each silo | 15, including absent nodes |",
        "In these releases the server averaged the model changes of the other silos only. The server's "
        "ledger and the numbers below still include the charges for absent nodes: ",
    ):
        assert said in text
    assert read(tmp_path / "run" / "ledger.jsonl").by_silo()["1"] == make_plan(config).events


@pytest.mark.parametrize(
    ("level", "then", "stopped"),
    [("client", KeyboardInterrupt(), "interrupted"), ("aggregation", RuntimeError("lost"), "failed")],
)
def test_the_report_of_a_failed_run_lists_absences(
    tmp_path: Path, level: str, then: BaseException, stopped: str
) -> None:
    sums = {"level": "aggregation", "silo-steps": 1, "delta": 1e-4} if level == "aggregation" else {}
    config = Config.parse({**SILOS, **sums, "rounds": 5})
    grid = Losing(5, config.table())
    grid.lost, grid.then = (2, 3), (4, then)
    engine = GridEngine(grid, strict=False, silos=True)
    with contextlib.suppress(RuntimeError):
        execute(make_plan(config), engine, RunFolder.create(tmp_path / "run"))
    steps = config.silo_steps
    [absence], _ = absences_in(tmp_path / "run")
    assert absence == ABSENT | {"from release": 2 * steps + 1, "to release": 4 * steps, "back": False}
    assert json.loads((tmp_path / "run" / "report.json").read_text())["result"]["stopped"] == stopped


def test_the_report_of_a_run_without_answers_lists_absences(tmp_path: Path) -> None:
    config = Config.parse(SILOS)
    grid = InProcessGrid(5, config.table())
    engine = GridEngine(grid, strict=False)
    engine.assemble()
    grid.send_and_receive = lambda messages, timeout=None: []  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="no node answered"):
        execute(make_plan(config), engine, RunFolder.create(tmp_path / "run"))
    reports, _ = absences_in(tmp_path / "run")
    assert [absence["partition"] for absence in reports] == [0, 1, 2, 3, 4]


def test_a_resumed_run_keeps_its_absences(tmp_path: Path) -> None:
    sums = {"level": "aggregation", "silo-steps": 1, "delta": 1e-4, "rounds": 5, "evaluate-every": 1}
    plan = make_plan(Config.parse({**SILOS, **sums}))
    grid = Losing(5, plan.config.table())
    grid.lost, grid.then = (1, 2), (3, RuntimeError("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        execute(plan, GridEngine(grid, strict=False, silos=True), RunFolder.create(tmp_path / "run"))
    engine = GridEngine(InProcessGrid(5, plan.config.table()))
    execute(plan, engine, RunFolder(tmp_path / "run"), resumed=checkpoints.read(tmp_path / "run", plan))
    report, rows = absences_in(tmp_path / "run")
    assert report == [ABSENT | {"from release": 2, "to release": 3, "back": True}]
    assert [bool(row) for row in rows] == [False, True, True, False]  # one was charged and lost


def test_node_errors_are_printed_without_a_server_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.parse({**DEPLOYED, "out": str(tmp_path / "run")})

    class Unready(InProcessGrid):  # nodes without a data-file
        def _answer(self, message: Message) -> Message:
            return self._app(message, self._contexts[message.metadata.dst_node_id])

    context = Context(0, 0, {}, RecordDict(), dict(config.table()))
    with pytest.raises(EngineError) as caught:
        server_app.main(Unready(5, config.table()), context)
    assert [entry.name for entry in caught.traceback][1:] == ["main"]
    said = capsys.readouterr().out
    assert "fedpriv: 5 of 5 nodes are not ready: node 1 failed with ArgumentError; node 2 failed" in said


@pytest.mark.parametrize(
    ("changes", "mark", "spent"),
    [
        ({"seed": 3}, "NOTE: reproducible, not private (seed 3)", r"[\d.]+ of 8"),
        ({"placement": "none", "seed": -1}, "NOTE: not private: no noise is added", "infinite"),
        ({"seed": -1, "epsilon": 0.05}, "", r"\d\.\d\de-02 of 0.05"),
    ],
)
def test_the_server_prints_the_remark_and_the_spent_epsilon(
    tmp_path: Path, changes: dict[str, object], mark: str, spent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.parse({**SILOS, **changes, "out": str(tmp_path / "run")})
    server_app._run(InProcessGrid(5, config.table()), config)
    said = capsys.readouterr().out
    assert said.startswith(mark)
    assert ("NOTE" in said) == bool(mark)
    assert re.search(f"round 3 of 3, test accuracy [\\d.]+%, epsilon {spent}\n", said)


# A deployed node: its own file, its own ledger.


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    source = make_source(Config.parse(SILOS))
    path = tmp_path / "silo-1.npz"
    write_client_file(path, source, Silos(5, 40, source.first).examples(np.array([1]))[0])
    return path


DEPLOYED = {**SILOS, "nodes-own-data": True, "seed": -1}


def test_a_deployed_silo_keeps_its_own_ledger(own_file: Path) -> None:
    config = Config.parse(DEPLOYED)
    request = request_of(config, silos=(1,))
    context = node(config, 1, **{"data-file": str(own_file)})
    assert reply_of(context, request, (1,)).has_content()
    assert reply_of(context, request_of(config, 1), (0,)).error.reason == "RefusedError"  # not its silo
    # The process and its Context are lost; the ledger is not.
    restarted = node(config, 1, **{"data-file": str(own_file)})
    assert reply_of(restarted, request, (1,)).error.reason == "RefusedError"
    assert reply_of(restarted, request_of(config, 1), (1,)).has_content()
    record = read(f"{own_file}.ledger.jsonl")
    assert record.events == make_plan(config).events[:6]
    assert [labels["round"] for labels in record.labels] == [0] * 3 + [1] * 3
    assert {labels["run"] for labels in record.labels} == {"77"}


LOCAL = {
    **TOY,
    "clients": 5,
    "unit": "example",
    "examples-per-client": 40,
    "optimizer": "dp-sgd",
    "placement": "local",
    "sampling-rate": 0.2,
    "rounds": 3,
    "epsilon": 8.0,
    "nodes-own-data": True,
}


def local_request(config: Config, release: int = 0, factor: float = 1.0, relative: float = 1.0) -> SumRequest:
    plan = make_plan(config)
    point = make_task(config, make_source(config)).initial(np.random.default_rng(0))
    query = Query((point,), (SumBlock((Term(1.0),)),), relative_noise=relative)
    stds = plan.mechanism.placement.party_stds(query.noise_stds(plan.mechanism.scale * factor))
    return SumRequest(query, release, (Shard(1, np.arange(40, 60), 1, home=1),), stds)


@pytest.mark.parametrize("placement", ["local", "distributed"])
def test_a_deployed_party_adds_the_noise_of_its_own_plan(own_file: Path, placement: str) -> None:
    config = Config.parse({**LOCAL, "placement": placement})
    context = node(config, 1, **{"data-file": str(own_file)})
    good = sum_reply(context, local_request(config))
    assert read_reply(good.content, local_request(config)).parties == 1
    refused = [
        local_request(config),  # the same release again
        local_request(config, 1, factor=0.9),  # less noise
        local_request(config, 1, factor=1.1),
        local_request(config, 1, factor=0.5, relative=0.5),  # not a release of the plan
        replace(local_request(config, 1), party_stds=None),
    ]
    reasons = [sum_reply(context, request).error.reason for request in refused]
    assert reasons == ["RefusedError"] * 4 + ["MessageError"]
    for release in (1, 5):
        assert sum_reply(context, local_request(config, release)).has_content()
    assert sum_reply(context, local_request(config, 6)).error.reason == "RefusedError"  # past the budget


@pytest.mark.parametrize("level", ["client", "aggregation"])
def test_a_node_has_charged_before_it_reads_its_data(
    own_file: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be killed at any moment: an answer whose charge is not on disk would be given again."""
    seen, answer, own = list[int](), Worker.answer, Path(f"{own_file}.ledger.jsonl")

    def looks(self: Worker, request: SumRequest) -> PartialSum:
        seen.append(len(read(own).events) if own.exists() else 0)
        return answer(self, request)

    monkeypatch.setattr(Worker, "answer", looks)
    config = Config.parse(DEPLOYED if level == "client" else LOCAL)
    context = node(config, 1, **{"data-file": str(own_file)})
    if level == "client":
        assert reply_of(context, request_of(config, silos=(1,)), (1,)).has_content()
        assert seen == [3, 3, 3]  # all steps of the round
    else:
        assert sum_reply(context, local_request(config)).has_content()
        assert sum_reply(context, local_request(config, 1)).has_content()
        assert seen == [1, 2]


class Described:
    """A data set whose training examples raise an error."""

    def __init__(self) -> None:
        source = make_source(Config.parse(TOY))
        self.name, self.shape, self.classes, self.size = "described", source.shape, source.classes, None
        self.tokens, self.target, self.first, self.owners = source.tokens, source.target, 0, None
        self.test = source.test

    def batch(self, indices: object, device: object = "cpu") -> None:
        raise AssertionError("the training part was asked for")

    labels = batch


@pytest.mark.parametrize(
    "settings", [{"placement": "central"}, {"placement": "local"}, {"level": "client"}], ids=str
)
def test_a_deployment_takes_no_training_examples_from_the_runs_data_set(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """A deployment uses only shapes, classes and the public test part of a user's data set."""
    table = {**(DEPLOYED if "level" in settings else LOCAL), **settings, "out": str(tmp_path / "run")}
    config = Config.parse({**table, "dataset": f"{__name__}:Described"})
    source, grid = make_source(Config.parse(SILOS)), InProcessGrid(5, config.table())
    for silo, context in enumerate(grid._contexts.values()):
        path = tmp_path / f"silo-{silo}.npz"
        write_client_file(path, source, Silos(5, 40, source.first).examples(np.array([silo]))[0])
        context.node_config |= {"data-file": str(path), "accept-code": config.dataset}
    server_app._run(grid, config)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["result"]["stopped"], report["data set"]) == ("rounds", config.dataset)


def ready(config: Config, **settings: object) -> str:
    """Node 1's reply to the query before the run: "ready", or its error's name."""
    context = node(config, 1, **settings)
    grid = InProcessGrid(2, config.table())
    message = grid.create_message(RecordDict(), "query", 1, "nodes")
    message.metadata.__dict__["_message_id"] = "1"
    reply = app(message, context)
    return "ready" if reply.has_content() else str(reply.error.reason)


def test_an_owners_refusal_comes_before_any_request(own_file: Path) -> None:
    limits = {"epsilon-limit": 12.0, "delta-limit": 1e-5}
    for level in (LOCAL, DEPLOYED):
        config = Config.parse(level)
        assert ready(config, **{"data-file": str(own_file), **limits}) == "ready"
        assert ready(config, **{"data-file": str(own_file), "epsilon-limit": 12.0}) == "ArgumentError"
        less = {"epsilon-limit": 3.0, "delta-limit": 1e-5}  # below the run's 8, and below half of it
        assert ready(config, **{"data-file": str(own_file), **less}) == "RefusedError"
        assert ready(config, **{"data-file": str(own_file.with_name("none.npz"))}) == "MissingDataError"
        assert ready(config.changed(nodes_own_data=False), **{"data-file": str(own_file)}) == "RefusedError"
    central = Config.parse({**LOCAL, "placement": "central"})
    assert ready(central, **{"data-file": str(own_file)}) == "ready"
    assert ready(central, **{"data-file": str(own_file), **limits}) == "RefusedError"


@pytest.mark.parametrize(
    ("key", "meant"),
    [("epsilon_limit", "epsilon-limit"), ("ledger", "ledger-file"), ("datafile", "data-file")],
)
def test_an_unknown_node_setting_is_refused_in_the_nodes_own_log(
    own_file: Path, key: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt limit would have no effect."""
    own = {} if key == "datafile" else {"data-file": str(own_file)}
    with caplog.at_level("WARNING"):
        assert ready(Config.parse(LOCAL), **own, **{key: 0.5}) == "ArgumentError"
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"a key of this node's --node-config is '{key}'; did you mean '{meant}'?" in line


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (30, ["data-file: 30 of this file's 40 examples are used (the run's examples-per-client is 30)"]),
        (40, []),
        (1_050, ["data-file: 1,010 of 1,050 places are empty (the run's examples-per-client is 1050)"]),
    ],
)
@pytest.mark.parametrize("placement", ["central", "local", "client level"])
def test_a_wrong_file_size_is_in_the_nodes_own_log(
    own_file: Path, places: int, said: list[str], placement: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = DEPLOYED if placement == "client level" else {**LOCAL, "placement": placement}
    config = Config.parse({**settings, "examples-per-client": places})
    with caplog.at_level("INFO"):
        assert ready(config, **{"data-file": str(own_file)}) == "ready"
    assert [
        record.getMessage() for record in caplog.records if record.name == "fedpriv.flower.client_app"
    ] == said


CLIENTS = {"unit": "client", "partition": "iid", "sampler": "everyone", "sampling-rate": 1.0}


@pytest.mark.parametrize("of", [{}, CLIENTS, {"placement": "central"}, {"level": "client"}], ids=str)
@pytest.mark.parametrize("outside", [3, 40])
def test_ignored_examples_are_reported_only_in_the_nodes_own_log(
    own_file: Path, outside: int, of: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """No reply reveals them either: such an example adds nothing."""
    at_silos = "level" in of
    config = Config.parse(DEPLOYED if at_silos else {**LOCAL, **of})
    with np.load(own_file) as archive:
        x, y = archive["x"], archive["y"]
    y[:outside] = 25
    np.savez(own_file, x=x, y=y)
    own = {"data-file": str(own_file)}
    with caplog.at_level("INFO"):
        assert ready(config, **own) == "ready"
    (line,) = (record.getMessage() for record in caplog.records if record.name == "fedpriv.flower.client_app")
    assert line.startswith(
        f"data-file: {outside} of this file's 40 examples are ignored: they have a label, "
    )
    if at_silos:
        assert reply_of(node(config, 1, **own), request_of(config, silos=(1,)), (1,)).has_content()
        return
    ids = np.array([1]) if config.unit == "client" else np.arange(40, 80)
    quiet = replace(local_request(Config.parse(LOCAL)), shards=(Shard(1, ids, 1, home=1),), party_stds=None)
    context = {"partition-id": 1, **own}
    gathered = make_worker(config.table(), context).gather(quiet)
    np.savez(own_file, x=x[outside:], y=y[outside:])  # the same file without the ignored examples
    assert torch.equal(gathered.sums[0], make_worker(config.table(), context).gather(quiet).sums[0])
    assert bool(gathered.sums[0].any()) == (outside < 40)


def test_private_facts_about_the_limit_are_only_in_the_nodes_own_log(
    own_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeLedger, "look_ahead", lambda budget_gate, since=None: "the limit has no room")
    for level in (LOCAL, DEPLOYED):
        caplog.clear()
        assert ready(Config.parse(level), **{"data-file": str(own_file)}) == "ready"
        assert [record.getMessage() for record in caplog.records] == ["the limit has no room"]


@pytest.mark.parametrize("level", [LOCAL, DEPLOYED])
def test_a_node_whose_ledger_cannot_be_written_is_not_ready(
    own_file: Path, level: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """It would answer nothing, and the run would train on noise in its place."""
    own = {"data-file": str(own_file), "ledger-file": str(own_file.parent / "missing" / "ledger.jsonl")}
    assert ready(Config.parse(level), **own) == "LedgerError"
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("describe_node failed with LedgerError: this node's ledger ")
    assert "cannot be written (No such file or directory)" in line


def test_an_owners_node_reads_only_its_own_folders(own_file: Path, tmp_path: Path) -> None:
    """Not a data set in a folder that the server names."""
    write_mnist(tmp_path, seed=1)
    config = Config.parse({**LOCAL, "dataset": "mnist", "data-folder": str(tmp_path)})
    plain = replace(local_request(config), party_stds=None)
    for placement in ("none", "central"):
        for own in ("data-file", "epsilon-limit"):
            asked = config.changed(placement=placement, nodes_own_data=False)
            context = node(asked, 1, **{own: str(own_file)})
            assert sum_reply(context, plain).error.reason == "RefusedError"
            assert sum_reply(node(asked, 1), plain).has_content()  # a node without own data
    silos = Config.parse({**SILOS, "dataset": "mnist", "data-folder": str(tmp_path)})
    assert (
        reply_of(node(silos, 1, **{"data-file": "x"}), request_of(silos), (1,)).error.reason == "RefusedError"
    )
    taken = as_taken({"nodes-own-data": True, "data-folder": "/theirs"}, {"data-file": "x"})
    assert taken["data-folder"] == ""
    own = {"data-file": "x", "data-folder": "/ours"}
    assert as_taken({"nodes-own-data": True, "data-folder": "/theirs"}, own)["data-folder"] == "/ours"


@pytest.mark.parametrize("key", FILES)
def test_an_owners_node_reads_no_file_that_a_run_names(
    own_file: Path, tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The file's numbers would become noise of the replies, and its existence could be queried."""
    (tmp_path / "ones.csv").write_text("1\n" * 9)
    given = {"optimizer": "dynamic-dp-sgd", "noise-schedule": "given"}
    files = dict.fromkeys(FILES, str(tmp_path / "ones.csv"))
    for level in (LOCAL, DEPLOYED):
        rounds = 9 // int(str(level.get("silo-steps", 1)))
        config = Config.parse({**level, **given, "rounds": rounds, **files})
        make_plan(config)  # the server may
        for path in (str(own_file), "/there/is/no/such/file"):
            caplog.clear()
            asked = config.changed(**{**dict.fromkeys(FILES, ""), key: path})
            assert ready(asked, **{"data-file": str(own_file)}) == "RefusedError"
            assert f"the run's {key} names a file" in caplog.text
        with pytest.raises(RefusedError, match=key):  # with underscores it is the same key
            as_taken({"nodes-own-data": True, key.replace("-", "_"): "x"}, {"data-file": "x"})


def test_an_owners_node_decides_about_every_free_setting() -> None:
    """A new text setting may name a file or code; then ``as_taken`` must handle it."""
    registries = {key: field.json_schema_extra["words"] for key, field in Config.all_fields().items()}
    closed = {key for key, words in registries.items() if words is not None and not words.own_code}
    texts = {key for key, field in Config.all_fields().items() if field.annotation is str} - closed
    code, one_of_three = {"model", "dataset", "loss", "optimizer"}, {"device"}
    of_the_server = {"out", "initial-weights", "features-folder", "ledger-anchor", "ledger-anchor-command"}
    of_the_server |= {"continues"}  # the number of a run
    named = {"nodes-own-data": True, "features-folder": "/srv", "initial-weights": "w.safetensors"}
    taken = as_taken(named, {"data-file": "x.npz"})
    assert (taken["features-folder"], taken["initial-weights"]) == ("", "")
    patterns = {"frozen", "lora-layers", "lora-beside"}  # of names in the model
    assert texts == {*FILES, "data-folder"} | code | one_of_three | of_the_server | patterns


def test_an_owners_limit_holds_over_runs(own_file: Path) -> None:
    config = Config.parse({**LOCAL, "epsilon": 4.0, "rounds": 1, "delta": 1e-5})

    def answers(run: int, **limits: object) -> str:
        settings: dict[str, Any] = {"data-file": str(own_file), **limits}
        context = node(config, 1, **settings)
        context.run_id = run
        reply = sum_reply(context, local_request(config))
        return "answered" if reply.has_content() else str(reply.error.reason)

    limits = {"epsilon-limit": 4.0, "delta-limit": 1e-5}  # epsilon 8 for a replaced example
    assert [answers(run, **limits) for run in (1, 2)] == ["answered"] * 2  # epsilon 4, then about 6
    assert [answers(run, **limits) for run in (3, 4, 5)][-1] == "RefusedError"
    assert answers(6) == "answered"  # without a limit each run has its own budget
    assert answers(7, **{"epsilon-limit": 8.0}) == "ArgumentError"
    for unprotected in ({"placement": "central"}, {"placement": "none"}):
        config = Config.parse({**LOCAL, **unprotected})
        plain = replace(local_request(Config.parse(LOCAL)), party_stds=None)
        context = node(config, 1, **{"data-file": str(own_file), **limits})
        assert sum_reply(context, plain).error.reason == "RefusedError"
