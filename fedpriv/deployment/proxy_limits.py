"""How much a proxy takes from its peers at a time.

Flower checks a node's key after it has read the whole request. So anybody who reaches the port can have the
proxy hold a head and a small body for each connection, and no more. Larger bodies are those of enrolled nodes
(:mod:`fedpriv.deployment.node_proof`), up to :data:`_MOST_BODIES` in all.
"""

from __future__ import annotations

import http.client
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedpriv.deployment.folders import Party

FLWR = "1.41"  # whose sizes these are; tests/deployment/test_proxy_limits.py holds them

PUSH_OBJECT, PUSH_MESSAGES = "/v1/fleet/push-object", "/v1/fleet/push-messages"
START_RUN = "/v1/control/start-run"

MOST_HEAD = 2**14  # bytes of a request's head after its first line; Flower's have some 700
SMALL = 2**14  # bytes of a body; Flower's calls have at most some 300, a node's key among them
# {path: bytes of a body} of the calls that have more.
FLEET: Mapping[str, int] = {
    PUSH_OBJECT: 6 * 2**20,  # parts of arrays, of 5 MiB and 181 bytes; what Flower does not cut is smaller
    # Replies of 256 KiB (fedpriv/flower/whole_messages.py), or ids of a large one's parts, 70 bytes each.
    PUSH_MESSAGES: 2**20,
}
CONTROL: Mapping[str, int] = {START_RUN: 2**24}  # with the app, of which Flower takes 10 MiB

_MOST_BODIES = 2**29  # bytes of all bodies that are not small; 100 parts of arrays
_WAIT = 20.0  # seconds for memory; nodes wait 30 for an answer, and ask again after a 503

OF_A_NODE = 2  # connections: one for messages, one for heartbeats; a third one while it sends a large message
_CONNECTIONS = 2048  # at a time, or twice as many as the nodes have
_OTHERS = 64  # descriptors of a proxy that are not a connection's


def connections(server: Party, descriptors: int) -> int:
    """The number of connections that a proxy takes at a time, of a process with so many descriptors.

    A connection takes two: one to the peer, one to the SuperLink.

    >>> from pathlib import Path
    >>> few, many = (Party(Path(), {"nodes": nodes}) for nodes in (3, 2000))
    >>> connections(few, 1024), connections(few, 65536), connections(many, 65536)
    (480, 2048, 8000)
    """
    wanted = max(_CONNECTIONS, 2 * OF_A_NODE * server.nodes)
    return max(1, min(wanted, (descriptors - _OTHERS) // 2))


class NoRoomError(Exception):
    """The bodies of other requests have left no memory for one more."""


class BodyMemory:
    """The memory for the bodies of requests, which all connections of a proxy share."""

    def __init__(self, most: int = _MOST_BODIES, wait: float = _WAIT) -> None:
        self._left, self._wait, self._freed = most, wait, threading.Condition()

    @contextmanager
    def taken(self, length: int) -> Iterator[None]:
        """Within this block there may be a body of this many bytes. Small ones always may.

        All of it is taken before the first byte is read, so that no bodies wait for each other half read. A
        body that waits stays with its sender.

        Raises NoRoomError if there is no memory after some seconds.
        """
        if length <= SMALL:
            yield
            return
        with self._freed:
            if not self._freed.wait_for(lambda: length <= self._left, self._wait):
                raise NoRoomError
            self._left -= length
        try:
            yield
        finally:
            with self._freed:
                self._left += length
                self._freed.notify_all()


class Head:
    """A file with a request's head, of which no more than :data:`MOST_HEAD` bytes are read."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file, self._left = file, MOST_HEAD

    def readline(self, most: int) -> bytes:
        """The next line, or its first bytes. Raises LineTooLong when the head is too large."""
        line = self._file.readline(min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("head")
        return line
