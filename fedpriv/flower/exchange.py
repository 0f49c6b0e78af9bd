"""Messages to nodes and their replies, of which the server believes nothing that it can check.

- One reply per message counts: the first. A reply counts for the node that was asked, if it comes from this
  node; Flower's server replies only with errors.
- A reply that cannot be decoded costs no other one. Flower's own grid decodes a group at once, so replies
  over it are received in small groups.
- Any error while a reply is read makes this reply unusable, and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid

from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grids.base import HostedGrid
from fedpriv.flower.intervals import REPLIES, REPLIES_HELD, Rhythm
from fedpriv.flower.serialization import MessageError
from fedpriv.flower.whole_messages import WholeGrid

_MAX_GROUPS = 64  # requests for replies in one look, unless a group is larger than
_MAX_AT_ONCE = 8  # replies that are decoded, and in memory, at once
_MAX_NAME = 100  # characters of an exception's name
# Flower's errors for messages that expired or whose node has left.
_UNANSWERED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)

_Read = TypeVar("_Read")


class UnansweredError(MessageError):
    """A node did not do what it was asked."""


class SilentError(UnansweredError):
    """A node did not reply."""


class FailedError(UnansweredError):
    """A node replied with an error."""


class UnreadableError(MessageError):
    """A node's reply could not be decoded."""


def exchange(
    grid: Grid,
    contents: Mapping[int, RecordDict],
    kind: str,
    group: str,
    timeout: float,
    rhythm: Rhythm | None = None,
    awaited: Collection[int] | None = None,
) -> dict[int, Message]:
    """Sends each node its content and returns the replies that arrive in time, by node id.

    Args:
        grid: the grid of the nodes.
        contents: {node id: the content of its message}.
        kind: Flower's message type.
        group: a label of the messages: the release, or the round.
        timeout: the seconds to wait, and the messages' time to live.
        rhythm: when to look for replies; None: without earlier exchanges to go by.
        awaited: the nodes whose replies are waited for, of nodes that a server asks; None: all. Replies of
            others count if they are there by then.
    """
    if not contents:
        return {}
    batch = messages(grid, contents, kind, group, timeout)
    if isinstance(grid, HostedGrid):
        received = _believed(batch, grid.send_and_receive(batch, timeout=timeout))
    else:
        received = replies_to(grid, batch, timeout, rhythm, awaited)
    return {message.metadata.dst_node_id: reply for message, reply in received}


def replies_to(
    grid: Grid,
    batch: Sequence[Message],
    timeout: float,
    rhythm: Rhythm | None = None,
    awaited: Collection[int] | None = None,
) -> Iterator[tuple[Message, Message]]:
    """Sends the messages; (message, its reply) as the replies arrive, until all are there or time is up.

    Args:
        grid: the grid of the nodes.
        batch: the messages.
        timeout: the seconds to wait.
        rhythm: see :func:`exchange`. It notes how long it took until all awaited replies were there.
        awaited: see :func:`exchange`.
    """
    stored = set(grid.push_messages(batch))  # Flower leaves out a message that it could not store
    sent = [message for message in batch if message.metadata.message_id in stored]
    return _believed(sent, _pulled(grid, sent, timeout, rhythm or Rhythm(*REPLIES), awaited))


def _believed(batch: Iterable[Message], replies: Iterable[Message]) -> Iterator[tuple[Message, Message]]:
    """(message, the first reply to it that comes from the node that was asked)."""
    asked = {message.metadata.message_id: message for message in batch}
    for reply in replies:
        message, source = asked.get(reply.metadata.reply_to_message_id), reply.metadata.src_node_id
        # If a node is gone, Flower's server replies with an error in its place.
        by_server = source == SUPERLINK_NODE_ID and reply.has_error()
        if message is not None and (source == message.metadata.dst_node_id or by_server):
            del asked[message.metadata.message_id]
            yield message, reply


def messages(
    grid: Grid, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float
) -> list[Message]:
    """One message per node. Arguments are as for :func:`exchange`."""
    # Flower's constructor needs the identity of a Flower task, which hosted grids do not have.
    if isinstance(grid, HostedGrid):
        return [
            grid.create_message(content, kind, node, group, timeout) for node, content in contents.items()
        ]
    return [Message(content, node, kind, ttl=timeout, group_id=group) for node, content in contents.items()]


def _pulled(
    grid: Grid,
    batch: Iterable[Message],
    timeout: float,
    rhythm: Rhythm,
    awaited: Collection[int] | None = None,
) -> Iterator[Message]:
    """The replies to these messages that arrive in time; an error in place of one that cannot be decoded."""
    pending = {message.metadata.message_id: message for message in batch}
    begin = time.monotonic()
    if pending and rhythm.known:
        time.sleep(rhythm.rest(0.0) if _holds(grid) else rhythm.pause(0.0))
    while pending:
        left = timeout - (time.monotonic() - begin)
        for reply in _look(grid, pending, awaited, min(REPLIES_HELD, max(left, 0.0))):
            pending.pop(reply.metadata.reply_to_message_id, None)
            yield reply
        waited = time.monotonic() - begin
        if not _awaited(pending, awaited):
            rhythm.note(waited)
            return
        if waited > timeout:
            return
        time.sleep(rhythm.rest(waited) if _holds(grid) else rhythm.pause(waited))


def _awaited(pending: Mapping[str, Message], nodes: Collection[int] | None) -> list[str]:
    """Those of the pending messages whose replies are waited for."""
    return [number for number, one in pending.items() if nodes is None or one.metadata.dst_node_id in nodes]


def _holds(grid: Grid) -> bool:
    """Whether the SuperLink holds the questions for replies, so that nobody needs to wait between them."""
    return isinstance(grid, WholeGrid) and grid.holds


def _look(
    grid: Grid, batch: Mapping[str, Message], awaited: Collection[int] | None, held: float
) -> Iterator[Message]:
    """The replies to these messages that are there; an error in place of one that cannot be decoded.

    A SuperLink that can waits up to ``held`` seconds for those of the awaited nodes.
    """
    pending = dict(batch)
    if isinstance(grid, WholeGrid):
        first = _awaited(pending, awaited)
        awaited_first = list(dict.fromkeys([*first, *pending]))
        for number, reply in grid.pull(awaited_first, len(first), held):
            if not isinstance(reply, Exception):
                yield reply
            elif number in pending:
                yield error_reply(pending[number], UnreadableError())
        return
    ids, size = list(pending), min(_MAX_AT_ONCE, -(-len(pending) // _MAX_GROUPS))
    for one in range(0, len(ids), size):
        yield from _pull(grid, {number: pending[number] for number in ids[one : one + size]})


def _pull(grid: Grid, batch: Mapping[str, Message]) -> list[Message]:
    """The replies to these messages that are there by now."""
    try:
        return list(grid.pull_messages(list(batch)))
    except Exception:
        list(grid.get_node_ids())  # it raises its own error if Flower's server is gone
        if len(batch) > 1:
            return [reply for number, message in batch.items() for reply in _pull(grid, {number: message})]
        return [error_reply(message, UnreadableError()) for message in batch.values()]


def read(reply: Message | None, reader: Callable[[RecordDict], _Read]) -> _Read:
    """What ``reader`` reads from the content of a node's reply.

    Raises:
        SilentError: there is no reply.
        FailedError: the reply is an error.
        MessageError: the reply cannot be read, whatever the error is.
    """
    if reply is None or (reply.has_error() and reply.error.code in _UNANSWERED):
        raise SilentError("no reply in time")
    if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
        raise SilentError("gone offline")
    if reply.has_error():
        raise FailedError(f"failed with {error_name(reply)}")
    try:
        return reader(reply.content)
    except MessageError:
        raise
    except Exception as error:  # too large for the memory, say; another node's reply must still count
        raise MessageError(f"a reply cannot be read ({type(error).__name__})") from None


def by_app(reply: Message) -> bool:
    """Whether the reply is an error of fedpriv's ClientApp, whose reason is the exception's type."""
    if not reply.has_error():
        return False
    reason = reply.error.reason or ""
    return len(reason) <= _MAX_NAME and reason.isascii() and reason.isidentifier()


def error_name(reply: Message) -> str:
    """The exception's type if the reply names one. Other texts could quote data and are dropped."""
    return reply.error.reason if by_app(reply) else f"Flower's error code {reply.error.code}"
