"""Nodes in persistent Ray actors: no polling, one message per actor and release.

Each actor imports the ClientApp once, keeps its Context, and answers one message at a time. An actor on this
machine receives messages over its own channel (:mod:`fedpriv.flower.grids.channel`) until one is large. Large
messages, and those to other machines, go through Ray. A record that several messages of a batch share (the
model) is put into Ray's object store once. Ray pickles only between processes that this grid started on the
user's machine or cluster; messages of a deployment do not use this grid.

An actor that dies and an app that raises give an error reply, as in Flower's engine.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.app.user_config import UserConfig, UserConfigValue
from ray.exceptions import GetTimeoutError, RayError

from fedpriv._internal import hardware, user_code, validation
from fedpriv.flower.error_masking import error_reply, raising
from fedpriv.flower.grids.base import CLIENT_APP, GridError, HostedGrid, load_client_app, node_context
from fedpriv.flower.grids.channel import Channels, serve
from fedpriv.flower.serialization import add_replies

# Ray sends arguments and results up to this size in bytes inside the call, larger ones through its object
# store: Ray's default, and ours, which makes a round of a 26,000-parameter model about four times as fast.
_RAY_INLINE, _OUR_INLINE = 100 * 1024, 4 * 1024 * 1024
_CHANNEL_BYTES = 4 * 1024 * 1024  # the largest arrays of a message on a channel
_DRIVER_ADDS = 4 * _CHANNEL_BYTES  # the largest arrays of a batch whose replies the driver adds itself
_DEATH_TIMEOUT = 10.0  # seconds to wait for Ray's report on a dead actor

Part = TypeVar("Part")
Envelope = tuple[Metadata, dict[str, Any]]  # a message; records in the object store are None


class _Node:
    """One actor: a ClientApp and its Context."""

    def __init__(
        self, client_app: str, node: int, nodes: int, run_config: UserConfig, paths: list[str], threads: int
    ) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        torch.set_num_threads(threads)
        self._app = load_client_app(client_app)
        self._context = node_context(node, nodes, run_config)
        self._failure = ""

    def ready(self) -> str:
        """Ray's id of the actor's machine; returns once the actor can answer."""
        return str(ray.get_runtime_context().get_node_id())

    def serve(self, address: str, key: bytes) -> None:
        """Answer the messages of a channel until the driver ends it."""
        serve(address, key, self._reply)

    def answer(self, envelope: Envelope, *stored: ArrayRecord) -> Message:
        """Answer a message that was sent through Ray."""
        return self._reply(_with_stored(envelope, stored))

    def _reply(self, message: Message) -> Message:
        """The app's reply; an exception becomes an error reply with the name of its type only."""
        try:
            with raising():
                return self._app(message, self._context)
        except Exception as error:
            self._failure = user_code.trace(error)
            return error_reply(message, error)

    def failure(self) -> str:
        """The traceback of what failed last, in the user's own code alone."""
        return self._failure

    def add(self, one: Message, other: Message) -> Message:
        """The sum of two replies."""
        return _added(one, other)

    def memory(self) -> int:
        """This process's peak memory in bytes."""
        return hardware.peak_memory()


class RayGrid(HostedGrid):
    """A Grid of Ray actors.

    It uses this process's Ray instance. If there is none, it starts one, and ends it in ``close``.

    Args:
        nodes: the number of actors.
        run_config: the public configuration in every node's Context.
        client_app: the ClientApp as ``module:attribute``, importable from this process's ``sys.path``.
        num_cpus: CPUs per actor, which may be a fraction; default: an equal share of Ray's CPUs. torch uses
            the whole part as threads in the actor, at least one.
        num_gpus: GPUs per actor, which may be a fraction.
        start_timeout: seconds to wait for the actors to start.

    Raises:
        GridError: the actors request more resources than Ray has, or do not start in time.
    """

    def __init__(
        self,
        nodes: int = 1,
        run_config: Mapping[str, UserConfigValue] | None = None,
        client_app: str = CLIENT_APP,
        num_cpus: float | None = None,
        num_gpus: float = 0.0,
        start_timeout: float = 120.0,
    ) -> None:
        super().__init__(nodes, run_config, client_app)
        validation.non_negative("num-gpus", num_gpus)
        if num_cpus is not None:
            validation.finite_positive("num-cpus", num_cpus)
        self._actors: dict[int, Any] = {}
        self._pending: dict[str, tuple[Any, Message]] = {}
        self._channels: Channels | None = None
        self._serving: dict[int, Any] = {}
        self._on_channels: set[str] = set()  # ids of the messages that were sent over a channel
        self._owns_ray = not ray.is_initialized()
        self._inline = start_ray() if self._owns_ray else _RAY_INLINE
        try:
            self._start_actors(num_cpus, num_gpus, start_timeout)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, num_cpus: float | None, num_gpus: float, timeout: float) -> None:
        resources = ray.cluster_resources()
        cpus = resources.get("CPU", 0.0) / self.nodes if num_cpus is None else num_cpus
        for name, share, total in (
            ("CPU", cpus, resources.get("CPU", 0.0)),
            ("GPU", num_gpus, resources.get("GPU", 0.0)),
        ):
            if share * self.nodes > total + 1e-9:
                wanted = f"{self.nodes} actors of {share:g} {name} each do not fit: Ray has {total:g} {name}"
                raise GridError(wanted + ("; device=cpu asks for none" if name == "GPU" else ""))
        actor = ray.remote(_Node).options(num_cpus=cpus, num_gpus=num_gpus, max_restarts=0)
        paths = [path for path in sys.path if path]
        for node in self.get_node_ids():
            self._actors[node] = actor.remote(
                self.client_app, node, self.nodes, self.run_config, paths, max(1, int(cpus))
            )
        try:
            machines = ray.get([handle.ready.remote() for handle in self._actors.values()], timeout=timeout)
            this = ray.get_runtime_context().get_node_id()
            local = [node for node, machine in zip(self._actors, machines, strict=True) if machine == this]
            self._open_channels(local, timeout)
        except (GetTimeoutError, TimeoutError):
            raise GridError(
                f"the actors did not start within {timeout:g} s; are Ray's resources in use elsewhere?"
            ) from None
        except RayError as error:
            raise GridError(f"an actor failed to start: {error}") from error

    def _open_channels(self, nodes: list[int], timeout: float) -> None:
        """Open channels to these nodes if the operating system supports Unix sockets."""
        if not hasattr(socket, "AF_UNIX") or not nodes:
            return
        try:
            channels = self._channels = Channels()
        except OSError:
            return
        for node in nodes:
            address = channels.address(node)
            self._serving[node] = self._actors[node].serve.remote(address, channels.key)
        channels.connect(nodes, timeout, self._look_at_serving)

    def _look_at_serving(self) -> None:
        """Raises RayError if an actor that serves a channel has died."""
        done, _ = ray.wait(list(self._serving.values()), num_returns=len(self._serving), timeout=0)
        ray.get(done)

    adds = True

    def send_and_add(self, messages: Iterable[Message], *, timeout: float | None = None) -> Message | None:
        """See :meth:`HostedGrid.send_and_add`. Replies are added in pairs, in a fixed order.

        The driver adds small replies, which arrive over channels. The actors add large replies in a tree of
        pairs, so that the driver reads one sum for any number of actors.
        """
        batch = list(messages)
        local = all(self._has_channel(message.metadata.dst_node_id) for message in batch)
        if local and sum(map(_bytes_of, batch)) <= _DRIVER_ADDS:
            replies = self._collect(list(self.push_messages(batch)), timeout)
            return _in_pairs(replies, _added) if len(replies) == len(batch) else None
        for message in batch:
            self._end_channel(message.metadata.dst_node_id)
        futures = [self._pending.pop(name)[0] for name in self.push_messages(batch)]
        actors = [self._actors[message.metadata.dst_node_id] for message in batch]
        _, total = _in_pairs(
            list(zip(actors, futures, strict=True)),
            lambda one, other: (one[0], one[0].add.remote(one[1], other[1])),
        )
        name = batch[0].metadata.message_id
        self._pending[name] = (total, batch[0])
        return next(iter(self._collect([name], timeout)), None)

    def _submit(self, messages: list[Message]) -> None:
        self._submit_to_ray([message for message in messages if not self._sent_by_channel(message)])

    def _sent_by_channel(self, message: Message) -> bool:
        """Send the message over its node's channel, and return whether there is one.

        A large message ends the channel.
        """
        node, channels = message.metadata.dst_node_id, self._channels
        if _bytes_of(message) > _CHANNEL_BYTES:
            self._end_channel(node)
        if channels is None or not self._has_channel(node):
            return False
        self._on_channels.add(message.metadata.message_id)
        self._lost(node, channels.post(node, message))
        return True

    def _has_channel(self, node: int) -> bool:
        return self._channels is not None and node in self._channels

    def _end_channel(self, node: int) -> None:
        """Send all further messages to the node through Ray."""
        if self._channels is not None and self._has_channel(node):
            self._lost(node, self._channels.post(node, None))

    def _lost(self, node: int, messages: Iterable[Message]) -> None:
        """Add error replies, with Ray's reason, for the messages of a channel whose actor is gone."""
        assert self._channels is not None
        for message in messages:
            error: Exception = EOFError()
            try:
                ray.get(self._serving[node], timeout=_DEATH_TIMEOUT)
            except RayError as found:
                error = found
            self._channels.replies[message.metadata.message_id] = error_reply(message, error, crashed=True)

    def _submit_to_ray(self, messages: list[Message]) -> None:
        stored = self._store_shared(messages)
        for message in messages:
            references = [stored[id(record)] for record in message.content.values() if id(record) in stored]
            handle = self._actors[message.metadata.dst_node_id]
            future = handle.answer.remote(_without_stored(message, stored), *references)
            self._pending[message.metadata.message_id] = (future, message)

    def _store_shared(self, messages: Iterable[Message]) -> dict[int, Any]:
        """Object references of the large records that several messages share, by ``id``."""
        records = [record for message in messages for record in message.content.values()]
        uses = Counter(id(record) for record in records)
        shared = {id(record): record for record in records if uses[id(record)] > 1}
        return {
            key: ray.put(record)
            for key, record in shared.items()
            if isinstance(record, ArrayRecord) and record.count_bytes() > self._inline
        }

    def _collect(self, message_ids: list[str], timeout: float | None) -> list[Message]:
        started = time.monotonic()
        replies = self._collect_from_channels(message_ids, timeout)
        wanted = {name: self._pending[name][0] for name in message_ids if name in self._pending}
        if wanted:
            left = None if timeout is None else max(0.0, started + timeout - time.monotonic())
            done, _ = ray.wait(list(wanted.values()), num_returns=len(wanted), timeout=left)
            ready = set(done)
            replies |= {name: self._from_ray(name) for name, future in wanted.items() if future in ready}
        return [replies[name] for name in message_ids if name in replies]

    def _collect_from_channels(self, message_ids: list[str], timeout: float | None) -> dict[str, Message]:
        if self._channels is None:
            return {}
        names = [name for name in message_ids if name in self._on_channels]
        self._channels.collect(names, timeout, self._lost)
        ready = [name for name in message_ids if name in self._channels.replies]
        self._on_channels.difference_update(ready)
        return {name: self._channels.replies.pop(name) for name in ready}

    def _from_ray(self, name: str) -> Message:
        future, message = self._pending.pop(name)
        try:
            reply: Message = ray.get(future)
        except RayError as error:
            return error_reply(message, error, crashed=True)
        return reply

    def memory(self) -> int:
        """The sum of the actors' peak memory in bytes. Later messages go through Ray."""
        return sum(ray.get(self._call_all("memory")))

    def failure(self) -> str:
        """As :meth:`HostedGrid.failure`. Later messages go through Ray."""
        done, _ = ray.wait(self._call_all("failure"), num_returns=len(self._actors), timeout=_DEATH_TIMEOUT)
        for future in done:
            with suppress(RayError):  # an actor that is gone
                if text := ray.get(future):
                    return str(text)
        return ""

    def _call_all(self, name: str) -> list[Any]:
        """The futures of this method of all actors."""
        for node in self._actors:
            self._end_channel(node)
        return [getattr(handle, name).remote() for handle in self._actors.values()]

    def close(self) -> None:
        """End this grid's actors, and Ray if this grid started it."""
        self._pending.clear()
        for handle in self._actors.values():
            ray.kill(handle)
        self._actors.clear()
        if self._channels is not None:
            self._channels.close()
            self._channels = None
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
        self._owns_ray = False


def _without_stored(message: Message, stored: Collection[int]) -> Envelope:
    """The message with None for each record in the object store.

    It is one argument, because Ray needs time for each argument.
    """
    own = {name: None if id(record) in stored else record for name, record in message.content.items()}
    return message.metadata, own


def _with_stored(envelope: Envelope, stored: Iterable[ArrayRecord]) -> Message:
    """The message of an envelope, with its records from the object store."""
    metadata, own = envelope
    rest = iter(stored)
    return make_message(
        metadata, RecordDict({name: next(rest) if r is None else r for name, r in own.items()})
    )


def _bytes_of(message: Message) -> int:
    """The size of a message's arrays in bytes. A reply has about as many numbers, in float64."""
    return int(sum(record.count_bytes() for record in message.content.array_records.values()))


def _added(one: Message, other: Message) -> Message:
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


def _in_pairs(parts: list[Part], add: Callable[[Part, Part], Part]) -> Part:
    """The sum of one or more parts: neighbours are added, then neighbouring sums, until one is left."""
    while len(parts) > 1:
        left, right = parts[::2], parts[1::2]
        parts = [*map(add, left, right), *left[len(right) :]]
    return parts[0]


def start_ray(num_cpus: int | None = None) -> int:
    """Start a local Ray without dashboard and usage statistics, or connect to ``RAY_ADDRESS``.

    Args:
        num_cpus: logical CPUs of a local Ray; default: the machine's.

    Returns:
        the size in bytes up to which this Ray inlines arguments and results.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "local")
    local = address == "local"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ray.init(
            address=address,
            num_cpus=num_cpus if local else None,
            include_dashboard=False if local else None,
            log_to_driver=False,
            logging_level="ERROR",
            _system_config={"max_direct_call_object_size": _OUR_INLINE} if local else None,
        )
    return _OUR_INLINE if local else _RAY_INLINE
