"""Questions wait for messages, and nothing else about them changes: on a small app in Flower's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest

from fedpriv.deployment import held
from fedpriv.deployment.held import NODE_ANSWERS, NODE_ASKS, SERVER_ASKS, SERVER_SENDS, HeldQuestions
from fedpriv.flower.holding import HELD, HOLD, REPLIES

LONG = 5.0  # seconds that no test waits for
SHORT = 0.05


def test_flower_is_the_version_whose_paths_are_used() -> None:
    assert version("flwr").startswith(f"{held.FLWR}."), "look at fedpriv/deployment/held.py"


class SuperLink:
    """Stores messages for nodes and replies to them, and says what it was asked."""

    def __init__(self) -> None:
        self.waiting = dict[int, list[str]]()
        self.replies = set[str]()
        self.asked, self.status = list[str](), 200
        self.before = dict[str, Callable[[], Awaitable[None]]]()
        self.app = HeldQuestions(self.flower)

    async def flower(self, scope: Any, receive: Any, send: Any) -> None:
        path, body = scope["path"], (await receive())["body"]
        self.asked.append(path)
        answer = b""
        if path == SERVER_SENDS:
            for message in PushAppMessagesRequest.FromString(body).messages_list:
                self.waiting.setdefault(message.metadata.dst_node_id, []).append(message.metadata.message_id)
        elif path == NODE_ANSWERS:
            for message in PushMessagesRequest.FromString(body).messages_list:
                self.replies.add(message.metadata.reply_to_message_id)
        elif path == NODE_ASKS:
            left = self.waiting.get(PullMessagesRequest.FromString(body).node.node_id, [])
            found = [Message(metadata=Metadata(message_id=left.pop(0)))] if left else []
            answer = PullMessagesResponse(messages_list=found).SerializeToString()
        elif path == SERVER_ASKS:
            answer = ",".join(sorted(self.replies)).encode()
        if path in self.before:
            await self.before.pop(path)()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def call(
        self, path: str, request: Any, closes: asyncio.Event | None = None, **headers: Any
    ) -> tuple[bytes, bool]:
        """(an answer's body, whether it says that questions are held)."""
        begun, events = False, list[Any]()

        async def receive() -> Any:
            nonlocal begun
            if begun:
                await (closes or asyncio.Event()).wait()
                return {"type": "http.disconnect"}
            begun = True
            return {"type": "http.request", "body": request.SerializeToString(), "more_body": False}

        async def send(event: Any) -> None:
            events.append(event)

        named = [(key.encode(), str(value).encode()) for key, value in headers.items()]
        await self.app({"type": "http", "path": path, "headers": named}, receive, send)
        marked = bool(events) and (HELD.encode(), b"1") in events[0]["headers"]
        return b"".join(event.get("body", b"") for event in events[1:]), marked

    async def send(self, *messages: tuple[int, str]) -> None:
        sent = [Message(metadata=Metadata(dst_node_id=node, message_id=name)) for node, name in messages]
        await self.call(SERVER_SENDS, PushAppMessagesRequest(messages_list=sent))

    async def answer(self, *messages: str, node: int = 7) -> None:
        for name in messages:
            reply = Message(metadata=Metadata(reply_to_message_id=name))
            await self.call(NODE_ANSWERS, PushMessagesRequest(node=Node(node_id=node), messages_list=[reply]))

    async def ask(self, node: int, seconds: Any = LONG, closes: asyncio.Event | None = None) -> list[str]:
        """The ids of the messages that a node gets."""
        request = PullMessagesRequest(node=Node(node_id=node))
        body, marked = await self.call(NODE_ASKS, request, closes, **{HOLD: seconds})
        assert marked or closes is not None
        found = PullMessagesResponse.FromString(body).messages_list
        return [message.metadata.message_id for message in found]

    async def replied(self, names: list[str], wanted: int, seconds: float = LONG) -> str:
        request = PullAppMessagesRequest(message_ids=names)
        body, _ = await self.call(SERVER_ASKS, request, **{HOLD: seconds, REPLIES: wanted})
        return body.decode()


def within(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test that must end before a held question would."""
    asyncio.run(asyncio.wait_for(test, LONG - 1))


async def not_yet(task: asyncio.Task[Any]) -> None:
    await asyncio.sleep(SHORT)
    assert not task.done()


def test_a_node_waits_for_its_message_and_flower_is_asked_once() -> None:
    async def test() -> None:
        link = SuperLink()
        assert await link.ask(7) == []  # nothing is known before Flower has said that there is none
        waits = asyncio.create_task(link.ask(7))
        await not_yet(waits)
        await link.send((8, "other"))
        await not_yet(waits)
        await link.send((7, "a"))
        assert await waits == ["a"]
        assert link.asked.count(NODE_ASKS) == 2
        again = asyncio.create_task(link.ask(7))  # it has got all that was stored
        await not_yet(again)
        await link.send((7, "b"), (7, "c"))
        assert await again == ["b"]
        assert await link.ask(7) == ["c"]
        assert link.asked.count(NODE_ASKS) == 4

    within(test())


def test_a_message_that_is_stored_during_an_answer_is_not_missed() -> None:
    async def test() -> None:
        link = SuperLink()
        link.before[NODE_ASKS] = lambda: link.send((7, "a"))
        assert await link.ask(7) == []
        assert await link.ask(7) == ["a"]

    within(test())


def test_a_message_that_has_expired_delays_no_later_one() -> None:
    async def test() -> None:
        link = SuperLink()
        assert await link.ask(7) == []
        await link.send((7, "expires"))
        link.waiting.clear()
        assert await link.ask(7) == []
        waits = asyncio.create_task(link.ask(7))
        await not_yet(waits)
        await link.send((7, "a"))
        assert await waits == ["a"]

    within(test())


def test_a_question_is_held_no_longer_than_it_says() -> None:
    async def test() -> None:
        link = SuperLink()
        assert await link.ask(7) == []
        assert await link.ask(7, SHORT) == []
        assert await link.replied(["a"], 1, SHORT) == ""

    within(test())


@pytest.mark.parametrize("seconds", ["", "x", "-1", "nan", "inf", "0"])
def test_a_question_without_a_time_is_answered_at_once(seconds: str) -> None:
    async def test() -> None:
        link = SuperLink()
        for _ in range(2):
            _, marked = await link.call(
                NODE_ASKS, PullMessagesRequest(node=Node(node_id=7)), **{HOLD: seconds}
            )
            assert not marked
        request = PullAppMessagesRequest(message_ids=["a"])
        assert await link.call(SERVER_ASKS, request, **{REPLIES: 1}) == (b"", False)

    within(test())


def test_no_question_is_held_longer_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "HELD_MOST", SHORT)

    async def test() -> None:
        link = SuperLink()
        assert [await link.ask(7, 1e9) for _ in range(2)] == [[], []]

    within(test())


def test_a_question_of_a_node_that_is_gone_takes_no_message() -> None:
    async def test() -> None:
        link, closes = SuperLink(), asyncio.Event()
        assert await link.ask(7) == []
        waits = asyncio.create_task(link.ask(7, closes=closes))
        await not_yet(waits)
        closes.set()
        assert await waits == []
        assert link.asked.count(NODE_ASKS) == 1
        await link.send((7, "a"))
        assert await link.ask(7) == ["a"]

    within(test())


def test_a_refused_question_or_reply_changes_nothing() -> None:
    """A stranger's calls get 401 from Flower. They must not hold or wake anybody."""

    async def test() -> None:
        link = SuperLink()
        link.status = 401
        assert await link.ask(7) == []
        link.status = 200
        await link.send((7, "a"))
        assert await link.ask(7) == ["a"]
        link.status = 401
        await link.answer("a")
        link.status = 200
        waits = asyncio.create_task(link.replied(["a"], 1))
        await not_yet(waits)
        await link.answer("a")
        assert await waits == "a"

    within(test())


def test_a_server_waits_for_as_many_replies_as_it_wants() -> None:
    async def test() -> None:
        link = SuperLink()
        await link.send(*((7, name) for name in ("a", "b", "c", "other")))
        waits = asyncio.create_task(link.replied(["a", "b", "c"], 2))
        await link.answer("a", "other")
        await not_yet(waits)
        await link.answer("b")
        assert await waits == "a,b,other"
        later = asyncio.create_task(link.replied(["c"], 9))
        await not_yet(later)
        await link.answer("c")
        assert await later == "a,b,c,other"
        assert link.asked.count(SERVER_ASKS) == 2

    within(test())


def test_replies_that_nobody_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_MOST_KNOWN", 2)

    async def test() -> None:
        link = SuperLink()
        await link.send((7, "a"), (7, "b"), (7, "c"))
        await link.answer("a", "b", "c")
        assert (list(link.app._asked), link.app._replied) == (["b", "c"], {"b", "c"})
        await link.replied(["b", "c"], 2)
        assert not link.app._asked
        assert not link.app._replied

    within(test())


def test_a_node_answers_for_itself_alone_and_once_a_request() -> None:
    """Flower stores the first reply of a request, and answers 200 also if it has stored none."""

    async def test() -> None:
        link = SuperLink()
        await link.send((7, "a"), (7, "b"), (8, "c"))
        waits = asyncio.create_task(link.replied(["a", "b"], 1))
        await link.answer("a", "b", "nobody sent this" * 1000, node=8)
        names = [Message(metadata=Metadata(reply_to_message_id=name)) for name in ("c", "a", "b")]
        await link.call(NODE_ANSWERS, PushMessagesRequest(node=Node(node_id=8), messages_list=names))
        await not_yet(waits)
        assert link.app._replied == {"c"}
        await link.answer("b")
        assert "b" in await waits

    within(test())


def test_a_node_holds_two_questions_and_no_long_ones() -> None:
    """Anybody may ask, and is asked for the node's key after the wait."""

    async def test() -> None:
        link = SuperLink()
        assert await link.ask(7) == []
        waits = [asyncio.create_task(link.ask(7)) for _ in range(2)]
        await not_yet(waits[1])
        question = PullMessagesRequest(node=Node(node_id=7))
        assert await link.call(NODE_ASKS, question, **{HOLD: LONG}) == (b"", False)
        await link.send((7, "a"), (7, "b"))
        assert [await one for one in waits] == [["a"], ["b"]]
        assert await link.ask(8) == []
        long = PullMessagesRequest(node=Node(node_id=8), message_ids=["x" * 5000])
        assert await link.call(NODE_ASKS, long, **{HOLD: LONG}) == (b"", False)
        assert not link.app._held

    within(test())


def test_other_requests_and_bodies_that_are_no_message_pass() -> None:
    async def test() -> None:
        link = SuperLink()
        bad = type("Bad", (), {"SerializeToString": lambda self: b"\xff\xff"})()
        answered = await link.call("/v1/control/list-runs", bad)
        assert answered == (b"", False)
        assert held._read(PullMessagesRequest, b"\xff\xff") == PullMessagesRequest()

    within(test())
