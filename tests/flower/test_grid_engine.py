"""The engine assigns shards in a fixed order, adds the replies, and counts only parties that replied."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.server.superlink.linkstate.utils import (
    create_message_error_unavailable_ins_message,
    create_message_error_unavailable_res_message,
)
from helpers import summing_app as summing
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.flower import grid_engine
from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids import actor
from fedpriv.flower.grids import ray as ray_grid
from fedpriv.flower.grids.base import HostedGrid
from fedpriv.flower.grids.in_process import InProcessGrid, NodeError
from fedpriv.flower.grids.ray import RayGrid
from fedpriv.flower.serialization import MessageError, add_replies, read_reply, reply_content
from fedpriv.flower.topology import EngineError, Node, assign, not_ready
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term

APP = f"{summing.__name__}:app"
QUERY = Query((torch.zeros(3),), (SumBlock((Term(1e3),), 0.5), IndicatorBlock(Term(1.0), 1.0, 0.5)))


def make_request(shards: int = 5, home: Any = lambda index: None, release: int = 0) -> SumRequest:
    cuts = [np.arange(3 * index, 3 * index + 3) for index in range(shards)]
    return SumRequest(QUERY, release, tuple(Shard(i, cut, 3, home(i)) for i, cut in enumerate(cuts)))


def total(request: SumRequest) -> float:
    return float(sum((shard.ids + 1).sum() for shard in request.shards))


def indicated(request: SumRequest) -> float:
    return summing.INDICATED * total(request)


class Rearranged(InProcessGrid):
    """A grid like Flower's: random node ids in any order, replies in any order, some lost."""

    lost: tuple[int, ...] = ()

    def get_node_ids(self) -> Iterable[int]:
        return [2, 3, 1][: self.nodes]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))[::-1]
        return [r for r in replies if r.metadata.src_node_id not in self.lost or _is_query(r)]


def _is_query(message: Message) -> bool:
    return message.metadata.message_type == "query"


class Failing(InProcessGrid):
    """A grid that returns errors as error replies, as Flower's grids do."""

    def _answer(self, message: Message) -> Message:
        return self._app(message, self._contexts[message.metadata.dst_node_id])


@pytest.fixture(scope="module", params=["one", "three", "three actors"])
def grid(request: pytest.FixtureRequest) -> Iterator[HostedGrid]:
    if request.param == "three actors":
        yield request.getfixturevalue("three")
        return
    with InProcessGrid(nodes=1 if request.param == "one" else 3, client_app=APP) as made:
        yield made


@pytest.mark.parametrize("home", [lambda index: None, lambda index: index])
def test_the_whole_cohort_is_summed_once(grid: HostedGrid, home: Any) -> None:
    engine = GridEngine(grid)
    for release in range(2):
        request = make_request(home=home, release=release)
        reply = engine.gather(request)
        assert torch.equal(reply.sums[0], torch.full((3,), total(request)))
        assert torch.equal(reply.sums[1], torch.tensor(indicated(request)))
        assert reply.parties == 15


def test_an_empty_cohort_is_zero_and_sends_no_requests(grid: HostedGrid) -> None:
    reply = GridEngine(grid).gather(make_request(shards=0))
    assert reply.parties == 0
    assert [sums.shape for sums in reply.sums] == [torch.Size([3]), torch.Size([])]
    assert all(not bool(sums.any()) for sums in reply.sums)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 2**32))
def test_every_shard_is_assigned_once_and_the_load_is_even(shards: int, nodes: int, seed: int) -> None:
    homes = np.random.default_rng(seed).integers(-1, 7, shards)
    cohort = [Shard(i, np.arange(2), 2, None if h < 0 else int(h)) for i, h in enumerate(homes)]
    hands = assign(cohort, [Node(100 - k, k, nodes) for k in range(nodes)])
    dealt = [shard.index for hand in hands.values() for shard in hand]
    assert sorted(dealt) == list(range(shards))
    free = [sum(shard.home is None for shard in hand) for hand in hands.values()]
    assert max(free) - min(free) <= 1
    for node, hand in hands.items():
        assert all(c.home is None or c.home % nodes == node.partition for c in hand)


def test_nodes_are_ordered_by_partition_and_replies_by_node() -> None:
    engine = GridEngine(Rearranged(nodes=3, client_app=APP))
    assert [(node.id, node.partition) for node in engine.assemble()] == [(1, 0), (2, 1), (3, 2)]
    assert engine.gather(make_request()).sums[1] == indicated(make_request())


def gathered_without_partition_0(reply: PartialSum, request: SumRequest) -> bool:
    rest = [shard for shard in request.shards if shard.home != 0]
    expected = indicated(replace(request, shards=tuple(rest)))
    return reply.parties == 3 * len(rest) and reply.sums[1] == expected


def test_a_silent_node_contributes_nothing() -> None:
    grid = Rearranged(nodes=3, client_app=APP)
    grid.lost = (1,)
    request = make_request(shards=3, home=lambda index: index)
    assert gathered_without_partition_0(GridEngine(grid, strict=False).gather(request), request)
    with pytest.raises(EngineError, match="partition 0: no reply in time"):
        GridEngine(grid).gather(request)


def test_a_silent_node_is_asked_again_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, waits = Rearranged(nodes=3, client_app=APP), list[tuple[float, set[int]]]()
    plain = grid_engine.exchange

    def noted(*arguments: Any) -> dict[int, Message]:
        *_, kind, _, timeout, _, awaited = arguments
        waits.append((timeout, awaited))
        assert kind == "train"
        return plain(*arguments)

    engine = GridEngine(grid, strict=False, reply_timeout=90.0, round_deadline=20.0)
    engine.assemble()
    monkeypatch.setattr(grid_engine, "exchange", noted)
    parties = []
    for release, lost in enumerate(((1,), (1,), (), ())):
        grid.lost = lost
        parties.append(
            engine.gather(make_request(shards=3, home=lambda index: index, release=release)).parties
        )
    assert parties == [6, 6, 9, 9]
    assert [awaited for _, awaited in waits] == [{1, 2, 3}, {2, 3}, {1, 2, 3}, {1, 2, 3}]
    assert {timeout for timeout, _ in waits} == {20.0}


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("raise", "failed with ZeroDivisionError"),
        ("nan", "sum-0 of a reply is not finite"),
        ("boast", "does not count the parties that the request names"),
        ("modest", "does not count the parties that the request names"),
        ("long", "sum-0 of a reply is longer than its clip norms and noise allow"),
        ("stale", "to another release than the one that was asked for"),
    ],
)
def test_a_failing_node_contributes_nothing(
    how: str, error: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Failing(nodes=3, run_config={"misbehave": how}, client_app=APP)
    request = make_request(shards=3, home=lambda index: index, release=1)
    assert gathered_without_partition_0(GridEngine(grid, strict=False).gather(request), request)
    assert caplog.text == ""  # the number of replies is private
    assert capsys.readouterr() == ("", "")
    with pytest.raises(EngineError, match=error):
        GridEngine(grid).gather(request)


def test_a_missing_silo_is_printed_once_and_again_when_it_is_back() -> None:
    """All silos are queried in every release, whichever of their examples are sampled."""
    grid, reports = Rearranged(nodes=3, client_app=APP), list[str]()
    engine = GridEngine(grid, strict=False, report=reports.append, silos=True)
    for release, lost in enumerate([(), (1,), (1,), (1, 3), ()]):
        grid.lost = lost
        engine.gather(make_request(shards=3, home=lambda index: index, release=release))
    details = "(details are in the nodes' own logs)"
    assert reports == [
        f"release 2 on: without some silos: partition 0: no reply in time {details}",
        "release 4 on: without some silos: partition 0: no reply in time; partition 2: no reply in time "
        + details,
        "release 5 on: with all silos again",
    ]


class Leaving(Rearranged):
    """Flower's server replies for nodes that are gone, or no longer lists them. Node ids are large."""

    gone: tuple[int, ...] = ()
    signed_off: tuple[int, ...] = ()

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.signed_off]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        replies = {r.metadata.src_node_id: r for r in super().send_and_receive(asked, timeout=timeout)}
        for message in asked:
            node = message.metadata.dst_node_id
            if node in self.gone:
                reports = message.metadata, "node_unavail"
                replies[node] = create_message_error_unavailable_res_message(*reports)
            elif node in self.signed_off:
                replies[node] = create_message_error_unavailable_ins_message("", 0)
        return list(replies.values())


@pytest.mark.parametrize("silos", [True, False])
def test_a_disconnected_node_is_reported_as_offline(silos: bool) -> None:
    """Killed, so that Flower's server misses its heartbeats; or ended, so that it has signed off."""
    grid, reports = Leaving(nodes=3, client_app=APP), list[str]()
    engine = GridEngine(grid, strict=False, report=reports.append, silos=silos)
    engine.assemble()
    grid.gone, grid.signed_off = (1,), (2,)
    grid.lost = (3,)
    engine.gather(make_request(shards=3, home=lambda index: index))
    said = "release 1 on: without some silos: partition 0: gone offline; partition 1: gone offline; "
    late = "partition 2: no reply in time (details are in the nodes' own logs)"
    assert reports == [said + late] * silos
    assert len(engine.absences.to_json()) == 3 * silos


class Restarting(InProcessGrid):
    """Six nodes that connect and disconnect: nodes 1 and 3 have partition 0, the others partition 1."""

    there: tuple[int, ...] = (1, 2)
    refusing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__(nodes=6, client_app=APP)
        self.asked: list[tuple[str, int]] = []
        for node, context in self._contexts.items():
            context.node_config = {"partition-id": int(node not in (1, 3)), "num-partitions": 2}

    def get_node_ids(self) -> Iterable[int]:
        return self.there

    def _submit(self, messages: list[Message]) -> None:
        self.asked += [(m.metadata.message_type, m.metadata.dst_node_id) for m in messages]
        there = set(self.there) - set(self.silent)
        super()._submit([m for m in messages if m.metadata.dst_node_id in there])

    def _answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id in self.refusing:
            return error_reply(message, KeyError("secret"))
        return super()._answer(message)


@pytest.mark.parametrize("silos", [True, False])
def test_a_restarted_node_takes_its_place_again(silos: bool) -> None:
    grid, reports = Restarting(), list[str]()
    engine = GridEngine(grid, strict=False, report=reports.append, silos=silos)

    def asked(release: int, there: tuple[int, ...], parties: int) -> list[tuple[str, int]]:
        grid.there = there
        del grid.asked[:]
        request = make_request(shards=4, home=lambda index: index, release=release - 1)
        assert engine.gather(request).parties == parties
        return grid.asked[:]

    assert asked(1, (1, 2), parties=12)[2:] == [("train", 1), ("train", 2)]
    assert asked(2, (1, 2, 4), 12) == [("train", 1), ("train", 2)]  # all connected: no newcomer is queried
    grid.refusing = (5,)
    new = [("query", 3), ("query", 5)]  # one of another partition, and one that is not ready
    assert asked(3, (1, 3, 5), 6) == [*new, ("train", 1), ("train", 2)]
    assert asked(4, (1, 3, 5), 6) == [("train", 1), ("train", 2)]  # no node is queried twice
    assert asked(5, (1, 3, 5, 6), 12) == [("query", 6), ("train", 1), ("train", 6)]
    assert asked(6, (1, 2, 6), 12) == [("train", 1), ("train", 6)]  # the replacement keeps the partition
    lines = [
        "of the new nodes, 1 node is not ready: node 5 failed with KeyError (each node's own "
        "terminal says why; its SuperNode ID is there, too)",
        "release 3 on: without some silos: partition 1: gone offline (details are in the nodes' own logs)",
        "partition 1 has a new node",
        "release 5 on: with all silos again",
    ]
    assert reports == lines * silos


@pytest.mark.parametrize("silos", [True, False])
def test_a_node_that_is_silent_while_it_starts_is_asked_again(silos: bool) -> None:
    grid, reports = Restarting(), list[str]()
    engine = GridEngine(grid, strict=False, report=reports.append, silos=silos)
    engine.assemble()
    grid.there, grid.silent = (1, 4), (4,)
    request = make_request(shards=4, home=lambda index: index)
    assert [engine.gather(request).parties for _ in range(2)] == [6, 6]
    del grid.asked[:]
    grid.silent = ()
    assert engine.gather(request).parties == 12
    assert grid.asked == [("query", 4), ("train", 1), ("train", 4)]
    assert ("partition 1 has a new node" in reports) == silos
    assert not any("not ready" in line for line in reports)  # a silent node has given no reason


def test_a_hanging_newcomer_delays_at_most_five_releases() -> None:
    grid = Restarting()
    engine = GridEngine(grid, strict=False, silos=True)
    engine.assemble()
    grid.there, grid.silent = (1, 4), (4,)
    del grid.asked[:]
    for _ in range(7):
        engine.gather(make_request(shards=4, home=lambda index: index))
    assert grid.asked.count(("query", 4)) == 5


def test_missing_clients_are_not_named() -> None:
    """The names of missing clients would reveal who was sampled."""
    grid, reports = Rearranged(nodes=3, client_app=APP), list[str]()
    grid.lost = (1,)
    engine = GridEngine(grid, strict=False, report=reports.append)
    engine.gather(make_request(shards=3, home=lambda index: index))
    assert (reports, engine.absences.to_json()) == ([], [])


def test_a_cohort_without_replies_neither_stops_the_run_nor_is_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopping would reveal who was sampled; the release is that of an empty cohort."""
    grid = Failing(nodes=2, run_config={"misbehave": "raise-all"}, client_app=APP)
    reply = GridEngine(grid, strict=False).gather(make_request())
    assert reply.parties == 0
    assert all(not total.any() for total in reply.sums)
    assert caplog.text == ""
    assert capsys.readouterr() == ("", "")
    with pytest.raises(EngineError, match="failed with ZeroDivisionError") as caught:
        GridEngine(grid).gather(make_request())
    assert "secret" not in str(caught.value)


def test_the_failure_of_a_cohort_of_one_does_not_end_the_run() -> None:
    """Not when it is asked whether it is there, either."""

    class Breaking(Failing):
        broken = False

        def _answer(self, message: Message) -> Message:
            if self.broken and message.metadata.dst_node_id == 1:
                return error_reply(message, ZeroDivisionError("secret"))
            return super()._answer(message)

    for nodes in (1, 2):
        grid = Breaking(nodes=nodes, client_app=APP)
        engine, alone = GridEngine(grid, strict=False), make_request(shards=1, home=lambda index: 0)
        assert engine.gather(alone).parties == 3
        grid.broken = True
        assert engine.gather(alone).parties == 0


class Sick(Failing):
    """Nodes of ``ill`` answer everything with an error; those of ``dumb`` describe themselves only."""

    ill: dict[int, type[Exception]]
    dumb: dict[int, type[Exception]]

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes, client_app=APP)
        self.ill, self.dumb = {}, {}

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        failing = self.ill if _is_query(message) else {**self.ill, **self.dumb}
        if node in failing:
            return error_reply(message, failing[node]("secret"))
        return super()._answer(message)


def of(*partitions: int, release: int = 0) -> SumRequest:
    """A cohort whose clients are all of these partitions' nodes."""
    shards = tuple(Shard(index, np.arange(3 * index, 3 * index + 3), 3, index) for index in partitions)
    return SumRequest(QUERY, release, shards)


def engine_of(grid: Sick, silos: bool = False) -> GridEngine:
    engine = GridEngine(grid, strict=False, silos=silos)
    engine.assemble()
    return engine


@pytest.mark.parametrize("ill", [True, False])
@pytest.mark.parametrize("silos", [True, False])
def test_a_run_stops_when_all_nodes_fail_twice_in_a_row(silos: bool, ill: bool) -> None:
    grid = Sick(2)
    engine = engine_of(grid, silos)
    assert engine.gather(of(0, 1)).parties == 6
    (grid.ill if ill else grid.dumb).update({1: OSError, 2: ZeroDivisionError})
    assert engine.gather(of(0, 1, release=1)).parties == 0
    said = (
        "^every node failed, twice in a row, up to release 3: partition 0: failed with OSError; "
        "partition 1: failed with ZeroDivisionError [(]details"
    )
    with pytest.raises(EngineError, match=said) as caught:
        engine.gather(of(0, 1, release=2))
    assert "secret" not in str(caught.value)


def test_a_good_answer_between_two_failures_keeps_the_run_going() -> None:
    grid = Sick(2)
    engine = engine_of(grid, silos=True)
    for release in range(6):
        grid.dumb = {1: OSError, 2: OSError} if release % 2 else {1: OSError}
        assert engine.gather(of(0, 1, release=release)).parties == 3 * (release % 2 == 0)


def test_a_well_node_that_was_not_sampled_keeps_the_run_going(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the end of the run would tell that it was not sampled. Nor is anything printed."""
    grid = Sick(3)
    engine = engine_of(grid)
    grid.ill, grid.dumb = {1: OSError}, {2: OSError}
    for release in range(12):
        assert engine.gather(of(0, 1, release=release)).parties == 0
    assert (caplog.text, capsys.readouterr().out) == ("", "")
    assert engine.gather(of(0, 1, 2, release=12)).parties == 3


def test_a_node_that_describes_itself_is_unwell_once_it_fails_to_answer() -> None:
    """Every node fails in training, and only one is sampled at a time."""
    grid = Sick(3)
    engine = engine_of(grid)
    grid.dumb = {1: OSError, 2: OSError, 3: OSError}
    for release, partition in enumerate((0, 1, 1, 0, 2)):
        assert engine.gather(of(partition, release=release)).parties == 0
    with pytest.raises(
        EngineError, match="twice in a row, up to release 6: partition 0: failed with OSError"
    ):
        engine.gather(of(0, release=5))


def test_empty_cohorts_and_silence_do_not_count_as_failures() -> None:
    grid = Sick(2)
    engine = engine_of(grid)
    for release in range(5):
        assert engine.gather(make_request(shards=0, release=release)).parties == 0
    grid.ill = {1: OSError, 2: OSError}
    assert engine.gather(of(0, release=5)).parties == 0
    assert engine.gather(make_request(shards=0, release=6)).parties == 0
    with pytest.raises(EngineError, match="up to release 8"):
        engine.gather(of(1, release=7))
    silent = Rearranged(nodes=3, client_app=APP)
    silent.lost = (1, 2, 3)  # they describe themselves, and answer nothing else in time
    engine = GridEngine(silent, strict=False, silos=True)
    for release in range(5):
        assert engine.gather(make_request(3, home=lambda index: index, release=release)).parties == 0


def test_a_restarted_node_is_given_another_chance() -> None:
    class Replaced(Restarting):
        def _answer(self, message: Message) -> Message:
            if not _is_query(message):
                return error_reply(message, OSError("secret"))
            return super()._answer(message)

    grid = Replaced()
    engine = GridEngine(grid, strict=False)
    assert engine.gather(of(0, 1)).parties == 0
    grid.there = (1, 4)  # partition 1 has a new node, which is not asked and describes itself
    for release in (1, 2, 3):
        assert engine.gather(of(0, release=release)).parties == 0


def test_at_most_20_failed_nodes_are_named() -> None:
    grid = Sick(25)
    engine = engine_of(grid, silos=True)
    grid.ill = dict.fromkeys(range(1, 26), OSError)
    engine.gather(of(*range(25)))
    with pytest.raises(EngineError) as caught:
        engine.gather(of(*range(25), release=1))
    assert str(caught.value).count("OSError") == 20
    assert "; and 5 more (details" in str(caught.value)


def test_a_federation_that_is_gone_is_an_error() -> None:
    grid = Rearranged(nodes=3, client_app=APP)
    engine = GridEngine(grid, strict=False)
    request = make_request(shards=3, home=lambda index: index)
    engine.gather(request)
    grid.lost = (1, 2, 3)
    assert engine.gather(request).parties == 0  # all are there, and say so
    grid.send_and_receive = lambda messages, timeout=None: []  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="no node answers any more, sampled or not"):
        engine.gather(request)
    assert engine.gather(make_request(shards=0)).parties == 0  # no node was queried


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ((2,), "^1 of 3 nodes is not ready: node 2 failed with KeyError; it is of partition 1 "),
        (
            (3, 1),
            "^2 of 3 nodes are not ready: node 1 failed with KeyError; node 3 failed with KeyError; "
            "they are of partitions 0 and 2 ",
        ),
        ((1, 2, 3), "^3 nodes are not ready: node 1 failed with KeyError; .*; node 3 failed with KeyError "),
    ],
)
def test_nodes_that_are_not_ready_are_named_before_any_request(failing: tuple[int, ...], said: str) -> None:
    class NotReady(Rearranged):
        def _answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id in failing:
                return error_reply(message, KeyError("secret"))
            return super()._answer(message)

    for strict in (False, True):
        with pytest.raises(EngineError, match=said + "[(]each node's own terminal says why; ") as caught:
            GridEngine(NotReady(nodes=3, client_app=APP), strict=strict).gather(make_request())
        assert "secret" not in str(caught.value)


def test_at_most_20_nodes_that_are_not_ready_are_named() -> None:
    said = not_ready(dict.fromkeys(range(100, 130), "failed with KeyError"), [], 31)
    assert said.startswith("30 of 31 nodes are not ready: node 100 failed with KeyError; node 101 ")
    assert "node 119 failed with KeyError; and 10 more (each" in said
    assert "node 120" not in said


def test_debugging_in_process_names_the_node() -> None:
    grid = InProcessGrid(nodes=2, run_config={"misbehave": "raise"}, client_app=APP)
    with pytest.raises(NodeError, match="node 1 failed at 'train': ZeroDivisionError"):
        GridEngine(grid).gather(make_request())


def test_nodes_without_a_partition_are_refused() -> None:
    grid = InProcessGrid(nodes=2, run_config={"misbehave": "placeless"}, client_app=APP)
    said = r"node 1 has no partition [(]--node-config 'partition-id=.*; node 2 has no partition"
    with pytest.raises(EngineError, match=said):
        GridEngine(grid).gather(make_request())


def test_nodes_with_the_same_partition_are_refused() -> None:
    grid = InProcessGrid(nodes=2, run_config={"misbehave": "twins"}, client_app=APP)
    with pytest.raises(EngineError, match=r"partition ids are \[0, 0\] of \[2\]"):
        GridEngine(grid).gather(make_request())


class Late(InProcessGrid):
    """Its second node connects at the third query, or never."""

    looks = 0
    comes = True

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        return [1, 2] if self.looks > 3 and self.comes else [1]


def test_the_engine_waits_for_all_nodes() -> None:
    grid = Late(nodes=2, client_app=APP)
    reports: list[str] = []
    assert len(GridEngine(grid, report=reports.append).assemble()) == 2
    assert reports == ["waiting for 2 nodes: 1 connected (up to 300 s)"]


def test_the_engine_does_not_wait_for_ever() -> None:
    grid = Late(nodes=2, client_app=APP)
    grid.comes = False
    with pytest.raises(EngineError, match=r"after 0\.3 s partitions \[1\] are missing"):
        GridEngine(grid, start_timeout=0.3).assemble()


class Counting(RayGrid):
    """A grid that counts the replies that the driver receives one by one."""

    received = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.received += sum(not _is_query(reply) for reply in replies)
        return replies


@pytest.fixture(scope="module")
def three(ray_instance: None) -> Iterator[Counting]:
    """Three actors; ``adding`` chooses who adds their replies. More actors take long to start."""
    with Counting(nodes=3, client_app=APP, num_cpus=0.1) as grid:
        yield grid


@pytest.fixture(scope="module", params=["driver", "actors"])
def adding(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who adds the three actors' replies: the driver if they are small, else the actors in a tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_engine, "_MIN_TREE_NODES", 3)
        if request.param == "actors":
            patch.setattr(ray_grid, "_DRIVER_ADDS", 0)
        yield request.param


def test_replies_are_added_before_they_are_read(three: Counting, adding: str) -> None:
    engine, lines = GridEngine(three), three._channels
    assert lines is not None
    for shards, one_by_one in ((11, 0), (3, 0), (2, 2)):  # the engine itself adds two replies
        request = make_request(shards=shards, home=lambda index: index)
        before, reply = three.received, engine.gather(request)
        assert torch.equal(reply.sums[0], torch.full((3,), total(request)))
        assert torch.equal(reply.sums[1], torch.tensor(indicated(request)))
        assert reply.parties == 3 * shards
        assert three.received - before == one_by_one
    assert all((node in lines) == (adding == "driver") for node in three.get_node_ids())


def test_a_failure_among_added_replies_is_returned(three: Counting, adding: str) -> None:
    with pytest.raises(EngineError, match="failed with ZeroDivisionError") as caught:
        GridEngine(three).gather(make_request(shards=8, release=summing.FAILING))
    assert "secret" not in str(caught.value)


def test_neighbours_are_added_in_pairs() -> None:
    """The order depends on the number of replies only, not on who adds them."""
    assert [actor.in_pairs(list("abcdefg"[:n]), "({}{})".format) for n in (1, 2, 5, 7)] == [
        "a",
        "(ab)",
        "(((ab)(cd))e)",
        "(((ab)(cd))((ef)g))",
    ]


def test_added_replies_keep_the_larger_value_of_other_fields() -> None:
    grid = InProcessGrid(nodes=1, client_app=APP)
    message = grid.create_message(RecordDict(), "train", 1, "")
    replies = [Message(reply_content(PartialSum(TWO_SHAPES[0], 2), 0), reply_to=message) for _ in range(2)]
    for reply, times in zip(replies, ({"node": 3.0, "data": 1.0}, {"node": 2.0, "answer": 1.5}), strict=True):
        reply.content["times"] = ConfigRecord(times)
    added = actor.added(*replies).content
    assert dict(added["times"]) == {"node": 3.0, "data": 1.0, "answer": 1.5}
    assert read_reply(added, PLAIN).parties == 4


def test_replies_to_different_queries_cannot_be_added() -> None:
    grid = InProcessGrid(nodes=1, client_app=APP)
    message = grid.create_message(RecordDict(), "train", 1, "")
    one, other = (Message(reply_content(PartialSum(sums, 2), 0), reply_to=message) for sums in TWO_SHAPES)
    assert read_reply(add_replies(one, one).content, PLAIN).sums[0].tolist() == [2.0, 2.0, 2.0]
    assert read_reply(add_replies(one, one).content, PLAIN).parties == 4
    with pytest.raises(MessageError, match="different shapes"):
        add_replies(one, other)
    other = Message(reply_content(PartialSum(TWO_SHAPES[0], 2), 1), reply_to=message)
    with pytest.raises(MessageError, match="to another release"):
        add_replies(one, other)


PLAIN = SumRequest(Query((torch.zeros(3),), (SumBlock((Term(1.0),)),)), 0, (Shard(0, np.arange(4), 4),))
TWO_SHAPES = ((torch.ones(3, dtype=torch.float64),), (torch.ones(2, dtype=torch.float64),))
