"""Channels: messages to and from actors on the driver's machine, over local sockets.

With a model of 26,000 parameters, Ray takes about 4 ms to call two actors and fetch their sums, a socket
about 1 ms. Most of Ray's time is spent in its own threads, which delay the actors' computation. Therefore an
actor on the driver's machine serves a channel while its messages are small. Ray still starts, places,
monitors and ends the actor. :mod:`multiprocessing.connection` provides sockets, framing and authentication.

Channels carry bytes only (``send_bytes``, ``recv_bytes``), never pickles; their format is in
:mod:`fedpriv.flower.grids.wire_format`. Arrays lie in memory that both ends share
(:mod:`fedpriv.flower.grids.shared_memory`). Each actor has at most one unanswered message. Further messages
queue in the driver, so that the two ends cannot deadlock while both write. Empty bytes end the channel.

An actor listens in a folder that only this user can enter. It accepts a driver that knows the key, which Ray
sent to the actor.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path

from flwr.app import Message

from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grids.shared_memory import accept, offer
from fedpriv.flower.grids.wire_format import read, write

_KEY = 32  # bytes
_RETRY = 0.01  # seconds between attempts to connect


class Channel:
    """The driver's end of one actor's channel: the queue, and the message that is being answered."""

    def __init__(self, connection: Connection) -> None:
        """Share memory with the actor. Raises OSError if it is gone."""
        self.connection = connection
        self._areas = offer(connection)
        self.queue: deque[tuple[Message | None, bytes]] = deque()  # None ends the channel
        self.sent: Message | None = None
        self.ended = False

    def post(self, message: Message | None) -> None:
        """Send the message once the actor has answered all earlier ones; None then ends the channel.

        Raises OSError if the actor is gone, and ValueError for a message that cannot be written.
        """
        # The arrays of a message that must wait go through the socket: the one before it uses the memory.
        waits = self.sent is not None or bool(self.queue)
        content = b"" if message is None else write(message, None if waits else self._areas.sent)
        self.ended = message is None
        self.queue.append((message, content))
        self.forward()

    def forward(self) -> None:
        """Send the next message unless one is unanswered. Raises OSError if the actor is gone."""
        if self.sent is None and self.queue:
            self.sent, content = self.queue.popleft()
            self.connection.send_bytes(content)

    def receive(self) -> Message:
        """The reply to the message that was sent; the next one is not yet sent.

        Raises OSError or EOFError if the actor is gone, ValueError or TypeError if it sent no message.
        """
        reply = read(self.connection.recv_bytes(), self._areas.received)
        self.sent = None
        return reply

    def unanswered(self) -> list[Message]:
        """The sent and queued messages without a reply."""
        return [m for m in (self.sent, *(message for message, _ in self.queue)) if m is not None]


class Channels:
    """The driver's ends of all channels, by node, and the received replies.

    Attributes:
        key: the key that authenticates the driver.
        replies: the received replies by message id.
    """

    def __init__(self) -> None:
        """Create the folder of the sockets.

        Raises OSError if sockets are impossible there, for example because the folder's path is too long.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="fedpriv-"))
        self.key = secrets.token_bytes(_KEY)
        self.replies: dict[str, Message] = {}
        self._channels: dict[int, Channel] = {}
        try:
            Listener(self.address(0), "AF_UNIX").close()
        except OSError:
            self.close()
            raise

    def address(self, node: int) -> str:
        """The address of the node's socket."""
        return str(self._folder / str(node))

    def connect(self, nodes: Collection[int], timeout: float, watch: Callable[[], None]) -> None:
        """Connect to all ``nodes``, and call ``watch`` before each further attempt.

        Raises TimeoutError after ``timeout`` seconds, and the exceptions of ``watch``.
        """
        deadline = time.monotonic() + timeout
        for node in nodes:
            while node not in self._channels:
                if time.monotonic() > deadline:
                    raise TimeoutError
                try:
                    made = Channel(Client(self.address(node), "AF_UNIX", authkey=self.key))
                except (OSError, EOFError, AuthenticationError):  # not listening yet, or dead
                    watch()
                    time.sleep(_RETRY)
                    continue
                self._channels[node] = made

    def __contains__(self, node: int) -> bool:
        """Whether the node's channel accepts messages."""
        return node in self._channels and not self._channels[node].ended

    def post(self, node: int, message: Message | None) -> list[Message]:
        """Send a message; None ends the channel. Returns the lost messages if the actor is gone."""
        try:
            self._channels[node].post(message)
        except OSError:
            return self._drop(node)
        return []

    def collect(
        self, names: Collection[str], timeout: float | None, lost: Callable[[int, list[Message]], None]
    ) -> None:
        """Read until ``replies`` has all of ``names``, or until ``timeout`` seconds have passed.

        If a channel breaks, ``lost`` is called with its node and its unanswered messages. It must add error
        replies for them to ``replies``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not all(name in self.replies for name in names):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            nodes = {channel.connection: node for node, channel in self._channels.items()}
            ready = wait(list(nodes), left)
            if not ready:
                return
            for connection in ready:
                node = nodes[connection]  # type: ignore[index]
                try:
                    self._read(self._channels[node])
                except (OSError, EOFError, ValueError, TypeError):  # the actor is gone or sent no message
                    lost(node, self._drop(node))

    def _read(self, channel: Channel) -> None:
        message, reply = channel.sent, channel.receive()
        if message is not None:
            self.replies[message.metadata.message_id] = reply
        channel.forward()

    def _drop(self, node: int) -> list[Message]:
        """Close and remove a channel. Returns its unanswered messages."""
        channel = self._channels.pop(node)
        channel.connection.close()
        return channel.unanswered()

    def close(self) -> None:
        """Close all channels and remove the folder; calling it twice is harmless."""
        for node in list(self._channels):
            self._drop(node)
        shutil.rmtree(self._folder, ignore_errors=True)


def serve(address: str, key: bytes, answer: Callable[[Message], Message]) -> None:
    """The actor's end: listen, and answer messages until the driver ends the channel or is gone."""
    with Listener(address, "AF_UNIX", authkey=key) as listener:
        connection = _accept(listener)
    with connection:
        try:
            areas = accept(connection)
            while content := connection.recv_bytes():
                connection.send_bytes(_answered(read(content, areas.received), answer, areas.sent))
        except (OSError, EOFError):
            return


def _accept(listener: Listener) -> Connection:
    """The first connection that authenticates with the key."""
    while True:
        try:
            return listener.accept()
        except (AuthenticationError, EOFError, ConnectionError):
            continue


def _answered(message: Message, answer: Callable[[Message], Message], area: memoryview | None) -> bytes:
    """The reply as bytes, or an error reply if the reply cannot be written."""
    try:
        return write(answer(message), area)
    except Exception as error:
        return write(error_reply(message, error))
