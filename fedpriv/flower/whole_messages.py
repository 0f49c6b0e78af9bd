"""Small messages in one request each, on both sides of a deployment.

Flower cuts a message into objects (7 for a request of ours, 6 for a reply), which the sender uploads and the
receiver downloads one by one: about 30 requests a node and round. Flower's own messages have room for the
content as well, and its SuperLink keeps it and hands it on. So a message whose content has at most
:data:`MOST` bytes travels whole: one request by its sender, and one by its receiver, who asks for messages
anyhow. Larger ones travel as Flower has it.

Both sides must know of it. The server marks the query with which it first asks a node to describe itself
(:data:`MARK`). A node that runs :mod:`fedpriv.flower.supernode` answers a marked or whole message whole. A
node that has answered whole gets whole messages, until one of them is not answered. Flower's own SuperNodes
ignore the mark, and nothing changes for them.

A whole message has an object id of its own and no object. Flower's SuperLink notes it until the run ends, one
of `fedpriv deploy` for some minutes (:mod:`fedpriv.deployment.leftovers`).

Safety: sizes are checked before arrays are decoded. The fleet's proxy (:mod:`fedpriv.deployment.proxy`)
passes no request of a node for a reply that has more than 1 MiB. The server decodes one reply after the
other, and a reply that cannot be decoded costs no other one.

These internals may change with any version of Flower; :data:`FLWR` is the version that this module fits.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx
from flwr.app import ConfigRecord, Message, MessageType
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.superlink.grid import HttpGrid

from fedpriv.flower.holding import Holding
from fedpriv.flower.intervals import SUPERLINK_GONE
from fedpriv.flower.serialization import MessageError
from fedpriv.flower.topology import EngineError

FLWR = "1.41"

MOST = 2**18  # bytes of the content of a message that travels whole
MARK = "whole-messages"  # the record of a server that reads whole replies

_MOST_PUSHED = 2**23  # bytes of messages in one request of the server
_LEAST_HELD = 0.001  # seconds; a question that says none would not learn that this SuperLink holds
_MOST_PULLED = 32  # replies in one answer to the server
# Messages in objects that are sent together. Flower's grid uploads all of their envelopes before the first
# object, and nodes ask for the objects meanwhile: 200 nodes kept the SuperLink from taking the objects.
_MOST_ORDINARY = 8
BACKOFF = {"initial_backoff": 0.05, "backoff_cap": 1.0}  # seconds between looks for an object that is to come


def arrived_whole(message: Message, tree: ObjectTree) -> bool:
    """Whether a message came with its content (or error) and without objects."""
    return not tree.children and (message.has_error() or len(message.content) > 0)


def require_small(message: Message) -> None:
    """Raises MessageError for a message that is too large to travel whole."""
    if message.has_content() and recorddict_to_proto(message.content).ByteSize() > MOST:
        raise MessageError(f"a message that came whole has more than {MOST:,} bytes")


def is_marked(message: Message) -> bool:
    """Whether the message's sender reads whole replies."""
    return bool(message.has_content() and MARK in message.content)


def _in_one_piece(message: Message) -> ProtoMessage | None:
    """The message in Flower's encoding, with an id; None if its content is too large."""
    found: ProtoMessage = message_to_proto(message)
    if found.content.ByteSize() > MOST:
        return None
    found.metadata.message_id = secrets.token_hex(32)  # Flower's ids are hashes, which it does not compare
    message.metadata.__dict__["_message_id"] = found.metadata.message_id
    return found


def client_of(send: Callable[..., Any]) -> object:
    """The client of Flower's fleet connection, of which ``send`` is the callback that sends replies."""
    return inspect.getclosurevars(send).nonlocals["client"]


def sender(send: Callable[..., Any]) -> Callable[[Message], bool]:
    """For the callback ``send`` of Flower's fleet connection: sends a reply whole if it is small enough.

    Flower's callback drops the content, so its client is taken out of it.
    """
    own = inspect.getclosurevars(send).nonlocals
    client, node, retries = own["client"], own["node"], own["retry_invoker"]

    def whole(reply: Message) -> bool:
        if (found := _in_one_piece(reply)) is None:
            return False
        tree = ObjectTree(object_id=found.metadata.message_id)
        request = PushMessagesRequest(node=node, messages_list=[found], message_object_trees=[tree])
        # The time that an answer took can depend on private data, so it is not reported.
        request.clientapp_runtime_list.append(0.0)
        retries.invoke(client.PushMessages, request)
        return True

    return whole


@contextmanager
def _reached() -> Iterator[None]:
    """Within this block the error of a SuperLink that is gone says so."""
    try:
        yield
    except httpx.TransportError as error:
        raise EngineError(
            f"Flower's SuperLink has not answered for {SUPERLINK_GONE:g} s ({type(error).__name__})"
        ) from None


class WholeGrid(Grid):  # type: ignore[misc]  # Flower is not followed by mypy
    """Flower's grid of a ServerApp, with whole messages for the nodes that read them.

    Every method raises EngineError if the SuperLink has not answered for SUPERLINK_GONE seconds.

    Args:
        grid: the grid that Flower made.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        # Flower's own grid asks again for ever. Its process would hold the run's ledger, and no resume begin.
        grid._retry_invoker.max_time = SUPERLINK_GONE
        self._readers = set[int]()  # nodes that have answered whole
        self._unanswered = dict[int, str]()  # {node: its last whole message}
        self._client: object = None  # Flower's, whose questions are marked
        self._holding: Holding | None = None

    def set_run(self, run: Any) -> None:
        """See Flower's Grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """See Flower's Grid."""
        return self._grid.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        """See Flower's Grid."""
        return cast(Message, self._grid.create_message(*arguments, **named))

    def get_node_ids(self) -> Iterable[int]:
        """See Flower's Grid."""
        with _reached():
            return list(self._grid.get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Sends the messages; the ids of those that the SuperLink has stored."""
        stored, ordinary, whole, size = list[str](), list[Message](), list[ProtoMessage](), 0
        for message in messages:
            found = _in_one_piece(message) if self._reads(message.metadata.dst_node_id) else None
            if found is None:
                if message.metadata.message_type == MessageType.QUERY:
                    message.content[MARK] = ConfigRecord({"flwr": FLWR})
                ordinary.append(message)
                continue
            self._unanswered[message.metadata.dst_node_id] = found.metadata.message_id
            whole.append(found)
            size += found.ByteSize()
            if size > _MOST_PUSHED:
                stored += self._push(whole)
                whole, size = [], 0
        stored += self._push(whole)
        for first in range(0, len(ordinary), _MOST_ORDINARY):
            with _reached():
                stored += self._grid.push_messages(ordinary[first : first + _MOST_ORDINARY])
        return stored

    def _reads(self, node: int) -> bool:
        """Whether a node gets whole messages; not if it did not answer the last one."""
        if self._unanswered.pop(node, None) is not None:
            self._readers.discard(node)
        return node in self._readers

    def _push(self, messages: list[ProtoMessage]) -> list[str]:
        if not messages:
            return []
        trees = [ObjectTree(object_id=message.metadata.message_id) for message in messages]
        request = PushAppMessagesRequest(messages_list=messages, message_object_trees=trees)
        with _reached():
            return list(self._grid._runtime_client.PushMessages(request).message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The replies that are there by now. Raises what decoding one of them raises."""
        for _, reply in self.pull(list(message_ids)):
            if isinstance(reply, Exception):
                raise reply
            yield reply

    @property
    def holds(self) -> bool:
        """Whether the SuperLink held the last question for replies, or would have."""
        return self._holding is not None and self._holding.holds

    def _hold(self, client: object, seconds: float, replies: int) -> None:
        """Has the SuperLink hold the next question of this client until so many replies are there."""
        if self._client is not client:  # Flower's grid makes its client when it is first needed
            self._client, self._holding = client, Holding.of(client)
        if self._holding is not None:
            self._holding.seconds, self._holding.replies = max(seconds, _LEAST_HELD), replies

    def pull(
        self, message_ids: list[str], wanted: int = 0, held: float = 0.0
    ) -> Iterator[tuple[str, Message | Exception]]:
        """(id of a message, its reply) for the replies that are there by now, decoded one after the other.

        An exception takes the place of a reply that cannot be had or decoded.

        Args:
            message_ids: the messages.
            wanted, held: the SuperLink may wait ``held`` seconds for replies to the first ``wanted`` ones.
        """
        end = time.monotonic() + held
        for first in range(0, len(message_ids), _MOST_PULLED):
            request = PullAppMessagesRequest(message_ids=message_ids[first : first + _MOST_PULLED])
            with _reached():
                client = self._grid._runtime_client
                self._hold(client, end - time.monotonic(), min(max(wanted - first, 0), _MOST_PULLED))
                response = client.PullMessages(request)
            for found, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                number = str(found.metadata.reply_to_message_id)
                try:
                    yield number, self._decoded(found, tree)
                except Exception as error:
                    yield number, error

    def _decoded(self, found: ProtoMessage, tree: ObjectTree) -> Message:
        source = int(found.metadata.src_node_id)
        if self._unanswered.get(source) == found.metadata.reply_to_message_id:
            del self._unanswered[source]
        if found.content.ByteSize() > MOST:
            raise MessageError(f"a reply that came whole has more than {MOST:,} bytes")
        envelope = message_from_proto(found)
        if arrived_whole(envelope, tree):
            if source != SUPERLINK_NODE_ID and envelope.has_content():
                self._readers.add(source)
            return envelope
        return self._from_objects(int(found.metadata.run_id), tree)

    def _from_objects(self, run: int, tree: ObjectTree) -> Message:
        """The reply of these objects, as Flower's grid reads it."""
        client, node = self._grid._runtime_client, Node(node_id=SUPERLINK_NODE_ID)

        def confirm(number: str) -> None:
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=number)
            )

        pull = make_pull_object_fn_protobuf(client.PullObject, node, run)
        # The SuperLink ends the wait for objects whose upload has stopped.
        reply = pull_and_inflate_object_from_tree(
            tree, pull, confirm, return_type=Message, max_tries_per_object=None, **BACKOFF
        )
        reply.metadata.__dict__["_message_id"] = tree.object_id
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """See Flower's Grid; :func:`fedpriv.flower.exchange.exchange` is used instead."""
        return list(self._grid.send_and_receive(messages, timeout=timeout))


def with_whole_messages(grid: Grid) -> Grid:
    """The grid, with whole messages if it is that of a ServerApp in a process of its own."""
    return WholeGrid(grid) if isinstance(grid, HttpGrid) else grid
