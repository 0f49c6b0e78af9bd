"""Nodes and servers ask a SuperLink that holds questions to hold theirs, and any other one as before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from flwr.app import Message
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.flower import exchange as wire
from fedpriv.flower.holding import HELD, HOLD, REPLIES, Holding
from fedpriv.flower.intervals import NODE_BUSY, NODE_RESTS, REPLIES_HELD, Rhythm, held
from fedpriv.flower.owner_node import OwnerNode
from fedpriv.flower.supernode import Link
from fedpriv.flower.whole_messages import WholeGrid
from fedpriv.node.contact import Contact


class Asked:
    """Flower's client, whose requests are noted and answered with nothing."""

    def __init__(self, holds: bool) -> None:
        self.requests, self.holds = list[httpx.Request](), holds
        self.client = FleetHttpClient("http://link")
        hooks = self.client._client.event_hooks
        self.client._client = httpx.Client(transport=httpx.MockTransport(self.answer))
        self.client._client.event_hooks = hooks

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        headers = {"content-type": "application/protobuf"} | ({HELD: "1"} if self.holds else {})
        return httpx.Response(200, headers=headers)


def test_only_questions_for_messages_may_be_held() -> None:
    asked = Asked(holds=True)
    holding = Holding.of(asked.client)
    assert holding is not None
    for seconds, replies in ((0.0, 0), (2.5, 0), (1.0, 7)):
        holding.seconds, holding.replies = seconds, replies
        asked.client.PullMessages(PullMessagesRequest())
        asked.client.PushMessages(PushMessagesRequest())
    found = [(request.headers.get(HOLD), request.headers.get(REPLIES)) for request in asked.requests]
    nothing = (None, None)
    assert found == [nothing, nothing, ("2.500", None), nothing, ("1.000", "7"), nothing]


def test_the_superlink_that_answered_last_says_whether_it_holds() -> None:
    """A SuperLink that is started again may be one of Flower's own. A reply's answer says nothing."""
    asked = Asked(holds=False)
    holding = Holding.of(asked.client)
    assert holding is not None
    for holds in (False, True, False):
        asked.holds = holds
        asked.client.PullMessages(PullMessagesRequest())
        asked.holds = not holds
        asked.client.PushMessages(PushMessagesRequest())
        assert holding.holds == holds


def test_a_client_that_is_not_flowers_is_left_alone() -> None:
    assert Holding.of(SimpleNamespace()) is None


def test_a_link_says_for_how_long_its_question_may_be_held() -> None:
    asked = Asked(holds=True)
    holding = Holding.of(asked.client)
    callbacks: list[Any] = [7, lambda: asked.client.PullMessages(PullMessagesRequest()) and None]
    link = Link((*callbacks, *[None] * 6), holding=holding)
    assert not link.holds
    assert link.next(3.0) is None
    assert link.holds
    assert asked.requests[-1].headers[HOLD] == "3.000"
    assert not Link((*callbacks, *[None] * 6)).holds


class FakeLink:
    """A link without messages."""

    def __init__(self, holds: bool) -> None:
        self.holds, self.asked = holds, list[float]()

    def next(self, seconds: float) -> None:
        self.asked.append(seconds)


@pytest.mark.parametrize(
    ("holds", "waited", "rests"),
    [(True, 1.0, []), (True, NODE_BUSY + 1, [NODE_RESTS]), (False, NODE_BUSY + 1, [0.15 * (NODE_BUSY + 1)])],
)
def test_a_node_whose_question_was_held_asks_again_at_once(
    holds: bool, waited: float, rests: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, slept = FakeLink(holds), list[float]()
    node = OwnerNode(cast(Any, None), cast(Any, link), cast(Any, None), Contact(tmp_path / "contact"))
    node._last = 100.0
    module = "fedpriv.flower.owner_node"
    monkeypatch.setattr(f"{module}.time.monotonic", lambda: 100.0 + waited)
    monkeypatch.setattr(f"{module}._rest", lambda seconds, stopped: slept.append(seconds))
    stops = iter([False, True])
    node.serve(lambda: next(stops))
    assert link.asked == [held(waited)]
    assert [seconds for seconds in slept if seconds] == pytest.approx(rests)


class FakeGrid(WholeGrid):
    """A grid whose replies come with the second look."""

    def __init__(self, holds: bool) -> None:
        super().__init__(HttpGrid(token="t"))
        self.fake, self.looks = holds, list[tuple[list[str], int, float]]()

    @property
    def holds(self) -> bool:
        return self.fake

    def pull(self, message_ids: list[str], wanted: int = 0, held: float = 0.0) -> Any:
        self.looks.append((message_ids, wanted, held))
        if len(self.looks) > 1:
            for number in message_ids:
                yield number, cast(Any, SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=number)))


def pulled(grid: FakeGrid, awaited: set[int] | None, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a server that asks nodes 1 to 3 and has an earlier exchange to go by."""
    slept, rhythm = list[float](), Rhythm(0.05, 1.0)
    rhythm.note(1.0)
    monkeypatch.setattr(wire.time, "sleep", slept.append)
    batch = [
        cast(Message, SimpleNamespace(metadata=SimpleNamespace(message_id=f"m{node}", dst_node_id=node)))
        for node in (1, 2, 3)
    ]
    assert len(list(wire._pulled(grid, batch, 60.0, rhythm, awaited))) == 3
    assert rhythm._expected < 0.5  # it has noted how long this exchange took
    return slept


def test_a_server_whose_questions_are_held_does_not_wait_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(holds=True)
    assert sum(pulled(grid, None, monkeypatch)) == 0
    assert grid.looks == [(["m1", "m2", "m3"], 3, REPLIES_HELD)] * 2


def test_a_server_has_no_question_held_for_a_node_that_it_does_not_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = FakeGrid(holds=True)
    assert sum(pulled(grid, {2, 3}, monkeypatch)) == 0
    assert grid.looks[0][:2] == (["m2", "m3", "m1"], 2)


def test_a_server_of_another_superlink_keeps_its_rhythm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(pulled(FakeGrid(holds=False), None, monkeypatch)) == 2


def test_a_question_is_held_no_longer_than_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(holds=True)
    message = cast(Message, SimpleNamespace(metadata=SimpleNamespace(message_id="m", dst_node_id=1)))
    list(wire._pulled(grid, [message], 0.2, Rhythm(0.05, 1.0)))
    assert 0 < grid.looks[0][2] <= 0.2


def test_a_grid_marks_the_first_of_its_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, marks = WholeGrid(HttpGrid(token="t")), list[tuple[float, int]]()
    asked = Asked(holds=True)

    class Runtime(FleetHttpClient):
        def PullMessages(self, request: Any) -> Any:  # noqa: N802
            assert grid._holding is not None
            marks.append((grid._holding.seconds, grid._holding.replies))
            return SimpleNamespace(messages_list=[], message_object_trees=[])

    asked.client.__class__ = Runtime
    monkeypatch.setattr(HttpGrid, "_runtime_client", asked.client)
    list(grid.pull([str(number) for number in range(40)], 40, 1.0))
    list(grid.pull(["a"]))
    assert [replies for _, replies in marks] == [32, 8, 0]
    assert marks[0][0] == pytest.approx(1.0, abs=0.5)
    assert marks[2][0] < 0.01
