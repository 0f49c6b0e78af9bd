"""The processes of :mod:`fedpriv.flower.grids.ray`: actors, which answer messages and add replies.

An actor usually answers for one node. If another actor is lost, it may also answer for that actor's node: it
keeps a Context for each node that it answers for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.app.user_config import UserConfig

from fedpriv._internal import hardware, ray_cluster, user_code
from fedpriv.flower.error_masking import error_reply, raising
from fedpriv.flower.grids.base import load_client_app, node_context
from fedpriv.flower.grids.channel import serve
from fedpriv.flower.serialization import add_replies

Part = TypeVar("Part")
Envelope = tuple[Metadata, dict[str, Any]]  # a message; records in the object store are None


class NodeActor:
    """A ClientApp, and the Contexts of the nodes that it answers for."""

    def __init__(
        self, client_app: str, nodes: int, run_config: UserConfig, paths: list[str], threads: int
    ) -> None:
        ray_cluster.look_in(paths)
        torch.set_num_threads(threads)
        self._app = load_client_app(client_app)
        self._nodes, self._run_config = nodes, run_config
        self._contexts: dict[int, Context] = {}
        self._failure = ""

    def ready(self) -> str:
        """Ray's id of the actor's machine; returns once the actor can answer."""
        return str(ray.get_runtime_context().get_node_id())

    def serve(self, address: str, key: bytes) -> None:
        """Answer the messages of a channel until the driver ends it."""
        serve(address, key, self._reply)

    def answer(self, envelope: Envelope, *stored: ArrayRecord) -> Message:
        """Answer a message that was sent through Ray."""
        return self._reply(with_stored(envelope, stored))

    def _reply(self, message: Message) -> Message:
        """The app's reply; an exception becomes an error reply with the name of its type only."""
        try:
            with raising():
                return self._app(message, self._context(message.metadata.dst_node_id))
        except Exception as error:
            self._failure = user_code.trace(error)
            return error_reply(message, error)

    def _context(self, node: int) -> Context:
        if node not in self._contexts:
            self._contexts[node] = node_context(node, self._nodes, self._run_config)
        return self._contexts[node]

    def failure(self) -> str:
        """The traceback of what failed last, in the user's own code alone."""
        return self._failure

    def add(self, one: Message, other: Message) -> Message:
        """The sum of two replies."""
        return added(one, other)

    def memory(self) -> int:
        """This process's peak memory in bytes."""
        return hardware.peak_memory()


def without_stored(message: Message, stored: Collection[int]) -> Envelope:
    """The message with None for each record in the object store.

    It is one argument, because Ray needs time for each argument.
    """
    own = {name: None if id(record) in stored else record for name, record in message.content.items()}
    return message.metadata, own


def with_stored(envelope: Envelope, stored: Iterable[ArrayRecord]) -> Message:
    """The message of an envelope, with its records from the object store."""
    metadata, own = envelope
    rest = iter(stored)
    return make_message(
        metadata, RecordDict({name: next(rest) if r is None else r for name, r in own.items()})
    )


def bytes_of(message: Message) -> int:
    """The size of a message's arrays in bytes. A reply has about as many numbers, in float64."""
    return int(sum(record.count_bytes() for record in message.content.array_records.values()))


def added(one: Message, other: Message) -> Message:
    """The sum of two replies, or an error reply. Config records get the larger value of each field."""
    try:
        total = add_replies(one, other)
        if total.has_content():
            for name in one.content.config_records.keys() - total.content.keys():
                mine, theirs = one.content[name], other.content[name]
                larger = {key: max(value, theirs.get(key, value)) for key, value in mine.items()}
                total.content[name] = ConfigRecord({**theirs, **larger})
        return total
    except Exception as error:
        return error_reply(one, error)


def in_pairs(parts: list[Part], add: Callable[[Part, Part], Part]) -> Part:
    """The sum of one or more parts: neighbours are added, then neighbouring sums, until one is left."""
    while len(parts) > 1:
        left, right = parts[::2], parts[1::2]
        parts = [*map(add, left, right), *left[len(right) :]]
    return parts[0]
