"""Who counts as a node: enrolled keys in their own places, and a quorum with late joiners."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message
from helpers import summing_app as summing

from fedpriv.accounting.head import Head
from fedpriv.federated.engine import SumRequest
from fedpriv.flower.enrolment import HEADS, VARIABLE, Enrolment, EnrolmentError, of_environment
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.topology import LEDGER, EngineError, head_record, read_head
from tests.flower.test_grid_engine import make_request


class Connecting(InProcessGrid):
    """Six nodes, of which some are connected; node k says that it is the partition given for it, of 3."""

    def __init__(self, places: dict[int, int], there: tuple[int, ...]) -> None:
        super().__init__(nodes=6, client_app=f"{summing.__name__}:app")
        self.there, self.asked = there, list[int]()
        for node, context in self._contexts.items():
            context.node_config = {"partition-id": places.get(node, 0), "num-partitions": 3}

    def get_node_ids(self) -> Iterable[int]:
        return self.there

    def _submit(self, messages: list[Message]) -> None:
        self.asked += [message.metadata.dst_node_id for message in messages]
        super()._submit([m for m in messages if m.metadata.dst_node_id in self.there])


def enrolment(path: Path, nodes: dict[int, int]) -> Enrolment:
    """The record of {node id: partition}."""
    table = {str(partition): {"key": "SHA256:x", "node-id": node} for node, partition in nodes.items()}
    path.write_text(json.dumps(table))
    return Enrolment(path)


def ask(release: int = 0) -> SumRequest:
    return make_request(shards=3, home=lambda index: index, release=release)


PLACES = {1: 0, 2: 1, 3: 2, 4: 1}


def test_a_node_that_is_not_enrolled_is_not_even_asked(tmp_path: Path) -> None:
    grid = Connecting(PLACES, (1, 2, 3, 4))  # without an enrolment, 2 and 4 would be one place twice
    record = enrolment(tmp_path / "e.json", {1: 0, 4: 1, 3: 2})
    assert GridEngine(grid, strict=False, enrolment=record).gather(ask()).parties == 9
    assert 2 not in grid.asked


def test_a_key_does_not_open_another_place(tmp_path: Path) -> None:
    grid = Connecting(PLACES | {3: 1}, (1, 2, 3))
    record = enrolment(tmp_path / "e.json", {1: 0, 2: 1, 3: 2})
    said = "node 3 has a key that is enrolled for partition 2, but says that it is partition 1"
    with pytest.raises(EngineError, match=said):
        GridEngine(grid, strict=False, enrolment=record).assemble()


def test_a_key_does_not_take_the_place_of_a_node_that_has_gone(tmp_path: Path) -> None:
    grid = Connecting(PLACES, (1, 2, 3))
    record = enrolment(tmp_path / "e.json", {1: 0, 2: 1, 3: 2})
    engine = GridEngine(grid, strict=False, enrolment=record)
    assert engine.gather(ask()).parties == 9
    grid.there = (1, 3, 4)  # node 2 has gone; node 4 says that it is the same partition
    assert engine.gather(ask(1)).parties == 6
    enrolment(tmp_path / "e.json", {1: 0, 5: 1, 3: 2, 4: 7})  # its key is enrolled, for another place
    assert engine.gather(ask(2)).parties == 6
    enrolment(tmp_path / "e.json", {1: 0, 4: 1, 3: 2})
    grid.there = (1, 3)
    assert engine.gather(ask(3)).parties == 6


def test_a_replaced_key_takes_its_place_in_mid_run(tmp_path: Path) -> None:
    grid = Connecting(PLACES, (1, 2, 3))
    engine = GridEngine(grid, strict=False, enrolment=enrolment(tmp_path / "e.json", {1: 0, 2: 1, 3: 2}))
    engine.gather(ask())
    grid.there = (1, 3, 4)
    enrolment(tmp_path / "e.json", {1: 0, 4: 1, 3: 2})
    assert engine.gather(ask(1)).parties == 9


def test_a_revoked_key_is_asked_nothing_more_even_if_flower_still_lists_it(tmp_path: Path) -> None:
    grid = Connecting(PLACES, (1, 2, 3))
    engine = GridEngine(grid, strict=False, enrolment=enrolment(tmp_path / "e.json", {1: 0, 2: 1, 3: 2}))
    engine.gather(ask())
    enrolment(tmp_path / "e.json", {1: 0, 3: 2})
    grid.asked.clear()
    assert engine.gather(ask(1)).parties == 6
    assert 2 not in grid.asked


def test_a_record_that_cannot_be_read_admits_nobody(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text("{")
    grid = Connecting(PLACES, (1, 2, 3))
    with pytest.raises(EnrolmentError, match="cannot be read"):
        GridEngine(grid, strict=False, enrolment=Enrolment(tmp_path / "e.json")).assemble()


def test_the_superlinks_environment_names_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert of_environment() is None
    enrolment(tmp_path / "e.json", {8: 0})
    monkeypatch.setenv(VARIABLE, str(tmp_path / "e.json"))
    found = of_environment()
    assert found is not None
    assert found.partitions() == {8: 0}


def test_a_run_begins_with_a_quorum_and_late_nodes_take_their_places() -> None:
    grid, reports = Connecting(PLACES, (1, 3)), list[str]()
    engine = GridEngine(grid, strict=False, start_timeout=0.3, min_nodes=2, silos=True, report=reports.append)
    assert engine.gather(ask()).parties == 6
    assert "beginning with 2 of 3 nodes (min-nodes is 2); partitions [1] can join later" in reports
    grid.there = (1, 2, 3)
    assert engine.gather(ask(1)).parties == 9
    assert "partition 1 has a new node" in reports
    assert all(node > 0 for node in grid.asked)


def test_too_few_nodes_do_not_begin() -> None:
    grid = Connecting(PLACES, (1, 3))
    with pytest.raises(EngineError, match=r"partitions \[1\] are missing"):
        GridEngine(grid, strict=False, start_timeout=0.3, min_nodes=3).assemble()
    grid.there = ()
    with pytest.raises(EngineError, match="no node has answered"):
        GridEngine(grid, strict=False, start_timeout=0.3, min_nodes=0, nodes=3).assemble()


class WithLedgers(Connecting):
    """Nodes whose ledgers grow by a release at each sum; ``shown`` is what the server last showed them."""

    def __init__(self, places: dict[int, int], there: tuple[int, ...]) -> None:
        super().__init__(places, there)
        self.length, self.shown = 0, dict[int, Head | None]()

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.message_type != "query":
            self.length += 1
        else:
            self.shown[message.metadata.dst_node_id] = read_head(message.content)
            reply.content[LEDGER] = head_record(Head(self.length, "a"))
        return reply


def test_the_server_keeps_where_the_nodes_ledgers_end_and_shows_it(tmp_path: Path) -> None:
    grid, record = WithLedgers(PLACES, (1, 2)), enrolment(tmp_path / "e.json", {1: 0, 2: 1, 3: 2})
    engine = GridEngine(grid, strict=False, enrolment=record, min_nodes=2, start_timeout=0.1)
    engine.assemble()
    assert grid.shown == {1: None, 2: None}
    assert record.heads() == {0: Head(0, "a"), 1: Head(0, "a")}
    engine.gather(ask())
    engine.note_ledgers()
    assert grid.shown == {1: Head(0, "a"), 2: Head(0, "a")}
    assert record.heads() == dict.fromkeys((0, 1), Head(2, "a"))
    written = (tmp_path / HEADS).read_bytes()
    again = GridEngine(grid, strict=False, enrolment=record, min_nodes=2, start_timeout=0.1)
    again.assemble()
    assert grid.shown == dict.fromkeys((1, 2), Head(2, "a"))
    assert (tmp_path / HEADS).read_bytes() == written
    (tmp_path / HEADS).write_text("{")
    with pytest.raises(EnrolmentError, match="restore it from a copy, or delete it"):
        GridEngine(grid, strict=False, enrolment=record).assemble()


def test_a_node_whose_ledger_cannot_be_read_takes_no_place(tmp_path: Path) -> None:
    class Garbled(WithLedgers):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.dst_node_id == 4:
                reply.content[LEDGER] = ConfigRecord({"length": -1})
            return reply

    grid = Garbled(PLACES, (1, 2, 3))
    engine = GridEngine(grid, strict=False, enrolment=enrolment(tmp_path / "e.json", {1: 0, 2: 1, 3: 2}))
    engine.assemble()
    enrolment(tmp_path / "e.json", {1: 0, 4: 1, 3: 2})
    grid.there = (1, 3, 4)
    assert [node.id for node in engine.assemble()] == [1, -2, 3]
