"""Lines: messages to and from actors on the driver's own machine, over local sockets.

Ray takes some 4 ms to call two actors with a model of 26,000 parameters and to fetch their sums, most of it
in threads of its own that the actors' computation then waits for; a socket takes 1. So a Ray actor on this
machine serves a line for as long as its messages are small; Ray starts it, places it, watches it and ends it.

A letter is a length in 8 bytes and a message (:mod:`fedpriv.flower.grids.letters`); nothing is pickled. One
letter an actor is under way at a time, and the rest wait here, so that neither end can wait for the other to
read. An empty letter ends the line.

The socket lies in a folder that only this user can enter, and an actor shows the key that Ray brought it.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import shutil
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from flwr.app import Message

from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grids.letters import read, write

_LENGTH = struct.Struct("<Q")
_NUMBER = struct.Struct("<I")
_KEY = 32  # bytes
_LOOK = 1.0  # seconds between looks at actors that have not dialled


class Line:
    """The driver's end of one actor's line: what waits, and which message is under way."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.waiting: deque[tuple[Message | None, bytes]] = deque()  # None ends the line
        self.under_way: Message | None = None
        self.ended = False

    def post(self, message: Message | None) -> None:
        """Send the message as soon as the actor has answered all before it; None ends the line then.

        Raises OSError where the actor is gone, and ValueError for a message that cannot be written.
        """
        letter = b"" if message is None else write(message)
        self.ended = message is None
        self.waiting.append((message, letter))
        self.forward()

    def forward(self) -> None:
        """Send the next letter, where none is under way. Raises OSError where the actor is gone."""
        if self.under_way is None and self.waiting:
            self.under_way, letter = self.waiting.popleft()
            send(self.end, letter)

    def unanswered(self) -> list[Message]:
        """The messages that no reply will come to, once the line is dead."""
        return [m for m in (self.under_way, *(message for message, _ in self.waiting)) if m is not None]


class Lines:
    """The driver's ends of its actors' lines, by node, and the replies that came."""

    def __init__(self) -> None:
        """Open a socket for actors to dial: ``address``, with ``key``.

        Raises OSError where there can be none: the path of the temporary folder is too long for one, say.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="fedpriv-"))
        self.address, self.key = str(self._folder / "lines"), secrets.token_bytes(_KEY)
        self.replies: dict[str, Message] = {}
        self._lines: dict[int, Line] = {}
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        try:
            self._door.bind(self.address)
        except OSError:
            self.close()
            raise
        self._door.listen()

    def accept(self, nodes: Collection[int], timeout: float, watch: Callable[[], None]) -> None:
        """Wait for all ``nodes`` to have dialled. Raises TimeoutError, and what ``watch`` does meanwhile."""
        deadline = time.monotonic() + timeout
        while len(self._lines) < len(nodes):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._door.settimeout(min(_LOOK, left))
            try:
                end, _ = self._door.accept()
            except TimeoutError:
                watch()
                continue
            end.settimeout(left)
            try:
                name = bytes(receive(end))
            except (OSError, EOFError):  # gone again: who watches the actors will see it
                end.close()
                continue
            end.settimeout(None)
            if hmac.compare_digest(name[:_KEY], self.key):
                (node,) = _NUMBER.unpack(name[_KEY:])
                self._lines[node] = Line(end)
                self._selector.register(end, selectors.EVENT_READ, node)
            else:
                end.close()

    def __contains__(self, node: int) -> bool:
        """Whether the node's line takes messages."""
        return node in self._lines and not self._lines[node].ended

    def post(self, node: int, message: Message | None) -> list[Message]:
        """Send a message, or with None end the line; the messages that are lost where the actor is gone."""
        try:
            self._lines[node].post(message)
        except OSError:
            return self._drop(node)
        return []

    def collect(
        self, names: Collection[str], timeout: float | None, lost: Callable[[int, list[Message]], None]
    ) -> None:
        """Read until ``replies`` holds every one of ``names``, or the time is over.

        ``lost`` is told the node and the messages of a line that broke; it has to put replies to them.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not all(name in self.replies for name in names):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._selector.select(left)
            if not ready:
                return
            for key, _ in ready:
                node = int(key.data)
                try:
                    self._read(self._lines[node])
                except (OSError, EOFError, ValueError, TypeError):  # gone, or what it sent is no letter
                    lost(node, self._drop(node))

    def _read(self, line: Line) -> None:
        message, reply = line.under_way, read(receive(line.end))
        if message is not None:
            self.replies[message.metadata.message_id] = reply
        line.under_way = None
        line.forward()

    def _drop(self, node: int) -> list[Message]:
        """Forget a line; the messages that it still had."""
        line = self._lines.pop(node)
        self._selector.unregister(line.end)
        line.end.close()
        return line.unanswered()

    def close(self) -> None:
        """Close all ends and remove the socket; calling it twice does no harm."""
        for node in list(self._lines):
            self._drop(node)
        self._selector.close()
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def serve(address: str, key: bytes, node: int, answer: Callable[[Message], Message]) -> None:
    """The actor's end: dial, and answer what comes until the driver ends the line or is gone."""
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        send(end, key + _NUMBER.pack(node))
        try:
            while letter := receive(end):
                send(end, _answered(read(letter), answer))
        except (OSError, EOFError):
            return


def _answered(message: Message, answer: Callable[[Message], Message]) -> bytes:
    """The letter of the reply, or of its error where it cannot be written."""
    try:
        return write(answer(message))
    except Exception as error:
        return write(error_reply(message, error))


def send(end: socket.socket, letter: bytes) -> None:
    """Send a letter. Raises OSError where the other end is gone."""
    end.sendall(_LENGTH.pack(len(letter)))
    end.sendall(letter)


def receive(end: socket.socket) -> bytearray:
    """The next letter. Raises EOFError where the other end is gone."""
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size))
    return _exactly(end, length)


def _exactly(end: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    left = memoryview(data)
    while left:
        taken = end.recv_into(left)
        if not taken:
            raise EOFError("the other end is gone")
        left = left[taken:]
    return data
