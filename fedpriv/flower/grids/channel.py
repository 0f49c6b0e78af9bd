"""Channels: messages to and from actors on the driver's own machine, over local sockets.

Ray takes some 4 ms to call two actors with a model of 26,000 parameters and to fetch their sums, most of it
in threads of its own that the actors' computation then waits for; a socket takes 1. So a Ray actor on this
machine serves a channel for as long as its messages are small; Ray starts it, places it, watches it and ends
it. The sockets, their framing and the check of the key are :mod:`multiprocessing.connection`'s.

Only bytes pass (``send_bytes``, ``recv_bytes``), never pickles; :mod:`fedpriv.flower.grids.wire_format` makes
them. One message an actor is under way at a time, and the rest wait here, so that neither end can wait for
the other to read. Empty bytes end the channel.

An actor listens in a folder that only this user can enter, and takes a driver that has the key which Ray
brought it.
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
from fedpriv.flower.grids.wire_format import read, write

_KEY = 32  # bytes
_RETRY = 0.01  # seconds between looks for actors that do not listen yet


class Channel:
    """The driver's end of one actor's channel: what waits, and which message is under way."""

    def __init__(self, end: Connection) -> None:
        self.end = end
        self.waiting: deque[tuple[Message | None, bytes]] = deque()  # None ends the channel
        self.under_way: Message | None = None
        self.ended = False

    def post(self, message: Message | None) -> None:
        """Send the message as soon as the actor has answered all before it; None ends the channel then.

        Raises OSError where the actor is gone, and ValueError for a message that cannot be written.
        """
        content = b"" if message is None else write(message)
        self.ended = message is None
        self.waiting.append((message, content))
        self.forward()

    def forward(self) -> None:
        """Send the next message, where none is under way. Raises OSError where the actor is gone."""
        if self.under_way is None and self.waiting:
            self.under_way, content = self.waiting.popleft()
            self.end.send_bytes(content)

    def unanswered(self) -> list[Message]:
        """The messages that no reply will come to, once the channel is dead."""
        return [m for m in (self.under_way, *(message for message, _ in self.waiting)) if m is not None]


class Channels:
    """The driver's ends of its actors' channels, by node, and the replies that came."""

    def __init__(self) -> None:
        """Make the folder of the sockets: ``address(node)``, with ``key``.

        Raises OSError where there can be none: the path of the temporary folder is too long for one, say.
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
        """Where the node's actor has to listen."""
        return str(self._folder / str(node))

    def connect(self, nodes: Collection[int], timeout: float, watch: Callable[[], None]) -> None:
        """Wait for all ``nodes`` to listen. Raises TimeoutError, and what ``watch`` does meanwhile."""
        deadline = time.monotonic() + timeout
        for node in nodes:
            while node not in self._channels:
                if time.monotonic() > deadline:
                    raise TimeoutError
                try:
                    end = Client(self.address(node), "AF_UNIX", authkey=self.key)
                except (
                    OSError,
                    EOFError,
                    AuthenticationError,
                ):  # not there yet, or gone: ``watch`` sees that
                    watch()
                    time.sleep(_RETRY)
                    continue
                self._channels[node] = Channel(end)

    def __contains__(self, node: int) -> bool:
        """Whether the node's channel takes messages."""
        return node in self._channels and not self._channels[node].ended

    def post(self, node: int, message: Message | None) -> list[Message]:
        """Send a message, or with None end the channel; the messages that are lost where the actor is
        gone."""
        try:
            self._channels[node].post(message)
        except OSError:
            return self._drop(node)
        return []

    def collect(
        self, names: Collection[str], timeout: float | None, lost: Callable[[int, list[Message]], None]
    ) -> None:
        """Read until ``replies`` holds every one of ``names``, or the time is over.

        ``lost`` is called with the node and the messages of a channel that broke; it has to put replies to
        them.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not all(name in self.replies for name in names):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            nodes = {channel.end: node for node, channel in self._channels.items()}
            ready = wait(list(nodes), left)
            if not ready:
                return
            for end in ready:
                node = nodes[end]  # type: ignore[index]
                try:
                    self._read(self._channels[node])
                except (OSError, EOFError, ValueError, TypeError):  # gone, or what it sent is no message
                    lost(node, self._drop(node))

    def _read(self, channel: Channel) -> None:
        message, reply = channel.under_way, read(channel.end.recv_bytes())
        if message is not None:
            self.replies[message.metadata.message_id] = reply
        channel.under_way = None
        channel.forward()

    def _drop(self, node: int) -> list[Message]:
        """Forget a channel; the messages that it still had."""
        channel = self._channels.pop(node)
        channel.end.close()
        return channel.unanswered()

    def close(self) -> None:
        """Close all ends and remove the folder; calling it twice does no harm."""
        for node in list(self._channels):
            self._drop(node)
        shutil.rmtree(self._folder, ignore_errors=True)


def serve(address: str, key: bytes, answer: Callable[[Message], Message]) -> None:
    """The actor's end: listen, and answer what comes until the driver ends the channel or is gone."""
    with Listener(address, "AF_UNIX", authkey=key) as door:
        accepted = _accepted(door)
    with accepted as end:
        try:
            while content := end.recv_bytes():
                end.send_bytes(_answered(read(content), answer))
        except (OSError, EOFError):
            return


def _accepted(door: Listener) -> Connection:
    """The first who shows the key."""
    while True:
        try:
            return door.accept()
        except (AuthenticationError, EOFError, ConnectionError):
            continue


def _answered(message: Message, answer: Callable[[Message], Message]) -> bytes:
    """The bytes of the reply, or of its error where it cannot be written."""
    try:
        return write(answer(message))
    except Exception as error:
        return write(error_reply(message, error))
