"""Questions for messages wait in the SuperLink until a message is there, for as long as they may.

Flower 1.41 has no such thing: nodes and servers ask again and again. :class:`HeldQuestions` is the outermost
layer of a SuperLink. It sees which node a message was stored for, and which message a reply answers. With
that it holds a question that it knows to be in vain, and lets it pass to Flower's own code when a message has
come or the time is up. It answers nothing itself: what a question gets, and whether its node may ask, is
decided by Flower's code after the wait. A question whose connection has closed meanwhile is dropped, so that
no message is handed to a node that is gone.

What it knows is in memory alone, and only ever delays a question. After a restart nothing is known, so no
question of a node is held before Flower has answered it once, and a server's is held a second at most.

It sees requests before Flower has proved who sent them. So a question is held only while it is small, and
:data:`_MOST_HELD` of one node; more are answered at once. What a node's answer says is noted only after
Flower has accepted it, and only for messages that the server has sent to that node.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.protobuf.translation import DecodeError  # protobuf's, which Flower's own code catches
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from fedpriv.flower.holding import HELD, HOLD, REPLIES
from fedpriv.flower.intervals import HELD_MOST

FLWR = "1.41"  # whose paths and messages are used here; tests/deployment/test_held.py holds them

NODE_ASKS, NODE_ANSWERS = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
SERVER_ASKS, SERVER_SENDS = "/v1/runtime/pull-messages", "/v1/runtime/push-messages"

_MOST_KNOWN = 100_000  # messages whose replies no server has got yet; the oldest are forgotten
_MOST_HELD = 2  # questions of a node; one, and another from before its connection broke
_MOST_BYTES = 4096  # of a node's question that is held; a longer one is none

_Request = TypeVar("_Request")


class HeldQuestions:
    """An ASGI app around a SuperLink's.

    Args:
        app: the SuperLink.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._sent = dict[int, int]()  # {node: how often a message was stored for it}
        self._given = dict[int, int]()  # {node: how many of them it has got, or found to be gone}
        self._held = Counter[int]()  # {node: questions that are held now}
        self._asked = dict[str, int]()  # {message: the node that is asked}, the oldest first
        self._replied = set[str]()  # those of them whose replies are stored
        # Set, and replaced, when messages to nodes and replies are stored.
        self._news = {SERVER_SENDS: asyncio.Event(), NODE_ANSWERS: asyncio.Event()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path == NODE_ASKS:
            await self._node_asks(scope, receive, send)
        elif path == SERVER_ASKS:
            await self._server_asks(scope, receive, send)
        elif path in (NODE_ANSWERS, SERVER_SENDS):
            await self._stores(path, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _stores(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that stores messages: what it has stored is noted after it."""
        body, again = await _body(receive)
        answer = _Answer(send)
        await self._app(scope, again, answer)
        if answer.status != 200:
            return
        if path == SERVER_SENDS:
            for message in _read(PushAppMessagesRequest, body).messages_list:
                node = message.metadata.dst_node_id
                self._sent[node] = self._sent.get(node, 0) + 1
                self._asked[message.metadata.message_id] = node
            while len(self._asked) > _MOST_KNOWN:
                self._forget(next(iter(self._asked)))
        else:
            request = _read(PushMessagesRequest, body)
            for message in request.messages_list[:1]:  # Flower looks at the first alone
                name = message.metadata.reply_to_message_id
                if self._asked.get(name) == request.node.node_id:
                    self._replied.add(name)
        self._news[path].set()
        self._news[path] = asyncio.Event()

    def _forget(self, name: str) -> None:
        del self._asked[name]
        self._replied.discard(name)

    async def _node_asks(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A node asks for a message: held while it is known that there is none."""
        body, again = await _body(receive)
        node = _read(PullMessagesRequest, body).node.node_id
        allowed = len(body) <= _MOST_BYTES and self._held[node] < _MOST_HELD
        seconds = _seconds(scope) if allowed else 0.0

        def due() -> bool:
            return self._given.get(node) != self._sent.get(node, 0)

        with self._counted(node):
            if not await self._until(due, SERVER_SENDS, seconds, receive):
                return
        count = self._sent.get(node, 0)  # a message that is stored during the answer may not be in it
        answer = _Answer(send, holds=seconds > 0)
        await self._app(scope, again, answer)
        if answer.status != 200:
            return
        if answer.size == 0:  # Flower's encoding of: no message
            self._given[node] = count
        elif node in self._given:
            self._given[node] += 1  # Flower gives one at a time

    async def _server_asks(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A ServerApp asks for replies: held until as many are there as it wants."""
        body, again = await _body(receive)
        numbers = list(_read(PullAppMessagesRequest, body).message_ids)
        seconds, wanted = _seconds(scope), min(_wanted(scope), len(numbers))

        def due() -> bool:
            return sum(number in self._replied for number in numbers) >= wanted

        if not await self._until(due, NODE_ANSWERS, seconds, receive):
            return
        answer = _Answer(send, holds=seconds > 0)
        known = [number for number in numbers if number in self._replied]
        await self._app(scope, again, answer)
        if answer.status == 200:
            for number in known:
                if number in self._asked:
                    self._forget(number)

    @contextmanager
    def _counted(self, node: int) -> Iterator[None]:
        self._held[node] += 1
        try:
            yield
        finally:
            self._held[node] -= 1
            if not self._held[node]:
                del self._held[node]

    async def _until(self, due: Callable[[], bool], news: str, seconds: float, receive: Receive) -> bool:
        """Waits until ``due()``, for these seconds at most; False as soon as the connection is closed."""
        end = time.monotonic() + seconds
        if due() or seconds <= 0:
            return True
        closed = asyncio.ensure_future(receive())  # after its body, a request's next event is its end
        try:
            while not due() and not closed.done() and (left := end - time.monotonic()) > 0:
                told = asyncio.ensure_future(self._news[news].wait())
                await asyncio.wait({told, closed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
            return not closed.done()
        finally:
            closed.cancel()


class _Answer:
    """Passes an answer on, and notes its status and the size of its body."""

    def __init__(self, send: Send, holds: bool = False) -> None:
        self._send, self._holds = send, holds
        self.status, self.size = 0, 0

    async def __call__(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            if self._holds:
                event = {**event, "headers": [*event.get("headers", []), (HELD.encode(), b"1")]}
        elif event["type"] == "http.response.body":
            self.size += len(event.get("body", b""))
        await self._send(event)


async def _body(receive: Receive) -> tuple[bytes, Receive]:
    """(a request's body, what gives the body again, then what follows)."""
    parts, event = list[bytes](), await receive()
    parts.append(event.get("body", b""))
    while event.get("more_body", False):
        event = await receive()
        parts.append(event.get("body", b""))
    body = b"".join(parts)
    whole: Event = {"type": "http.request", "body": body, "more_body": False}
    left = [whole] if event["type"] == "http.request" else [event]  # an event of another type: it is closed

    async def again() -> Event:
        return left.pop() if left else await receive()

    return body, again


def _read(kind: type[_Request], body: bytes) -> _Request:
    """The request; an empty one for a body that is none, which Flower's own code refuses."""
    request: Any = kind()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return kind()
    return cast(_Request, request)


def _header(scope: Scope, name: str) -> str:
    found = [value for key, value in scope["headers"] if key == name.encode()]
    return str(found[0].decode("latin-1")) if len(found) == 1 else ""


def _seconds(scope: Scope) -> float:
    """For how long a question may be held; 0 without a header that says so."""
    try:
        seconds = float(_header(scope, HOLD))
    except ValueError:
        return 0.0
    return min(seconds, HELD_MOST) if math.isfinite(seconds) and seconds > 0 else 0.0


def _wanted(scope: Scope) -> int:
    """How many replies a ServerApp's question waits for; 0 without a header that says so."""
    text = _header(scope, REPLIES)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0
