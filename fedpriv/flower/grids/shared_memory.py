"""Memory that the two ends of a channel share, for the arrays of the message that is under way.

Through a socket a large array is copied several times, in pieces, while both processes wake for each piece.
Here the sender copies it once into shared memory and the receiver once out of it. Each direction has its own
half, and a channel has at most one message under way, so nobody writes what the other end still reads.

The memory is an anonymous file (``memfd_create``), whose descriptor goes through the socket. Nobody else can
open it, no other file system's size limits it, and it ends with its processes. Where the operating system has
none, arrays go through the socket.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import NamedTuple

_HALF = 32 * 1024 * 1024  # bytes of one direction; pages that no message has used take no memory
_SHARED, _NONE = b"shared", b"none"


class Areas(NamedTuple):
    """The halves of an end, or None without shared memory.

    Attributes:
        sent: where this end writes.
        received: where this end reads.
    """

    sent: memoryview | None = None
    received: memoryview | None = None


def offer(connection: Connection) -> Areas:
    """Make the memory and send it to the other end, which calls :func:`accept`.

    Raises OSError if that end is gone.
    """
    try:
        made = os.memfd_create("fedpriv-channel")
    except (AttributeError, OSError):  # another operating system, or forbidden
        connection.send_bytes(_NONE)
        return Areas()
    with _closing(made):
        try:
            os.ftruncate(made, 2 * _HALF)
            first, second = _halves(made)
        except OSError:  # no address space is left
            connection.send_bytes(_NONE)
            return Areas()
        connection.send_bytes(_SHARED)
        reduction.send_handle(connection, made, None)
        return Areas(first, second)


def accept(connection: Connection) -> Areas:
    """The memory of the end that calls :func:`offer`. Raises OSError or EOFError if that end is gone."""
    if connection.recv_bytes() != _SHARED:
        return Areas()
    with _closing(reduction.recv_handle(connection)) as given:
        first, second = _halves(given)
        return Areas(second, first)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _halves(descriptor: int) -> tuple[memoryview, memoryview]:
    """Both halves of the memory, which lasts as long as they do."""
    whole = memoryview(mmap.mmap(descriptor, 2 * _HALF))
    return whole[:_HALF], whole[_HALF:]
