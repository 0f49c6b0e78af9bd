"""Nodes in persistent Ray actors: no polling, one message an actor and release.

Each actor imports the ClientApp once, keeps its Context, and answers messages one at a time. An actor on
this machine gets them over a channel of its own (:mod:`fedpriv.flower.grids.channel`) until one is large.
Large ones, and those to other machines, go through Ray, which puts records that several messages of a batch
share (the model) into its object store once. Ray serialises between processes that this grid started itself
on the user's own machine or cluster; messages of a deployment never pass here.

An actor that dies, or an app that raises, becomes an error reply, as in Flower's own engine.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.app.user_config import UserConfig, UserConfigValue
from ray.exceptions import GetTimeoutError, RayError

from fedpriv._internal import hardware, validation
from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grids.base import CLIENT_APP, GridError, HostedGrid, load_client_app, node_context
from fedpriv.flower.grids.channel import Channels, serve
from fedpriv.flower.serialization import add_replies

# Bytes up to which Ray sends an argument or a result inside the call instead of through its object store:
# Ray's default, and ours, which makes a round of a 26,000-parameter model about four times as fast.
_RAY_INLINE, _OUR_INLINE = 100 * 1024, 4 * 1024 * 1024
_SMALL = 4 * 1024 * 1024  # bytes of arrays that a message on a channel may have
_DRIVER_ADDS = 4 * _SMALL  # bytes of a batch's arrays, up to which the driver adds them itself
_LAST_WORDS = 10.0  # seconds that Ray has to say why an actor is gone

Part = TypeVar("Part")
Envelope = tuple[Metadata, dict[str, Any]]  # a message; records that are stored elsewhere are None


class _Node:
    """One actor: a ClientApp and its Context."""

    def __init__(
        self, client_app: str, node: int, nodes: int, run_config: UserConfig, paths: list[str], threads: int
    ) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        torch.set_num_threads(threads)
        self._app = load_client_app(client_app)
        self._context = node_context(node, nodes, run_config)

    def ready(self) -> str:
        """Ray's name of the machine, once the actor can answer."""
        return str(ray.get_runtime_context().get_node_id())

    def serve(self, address: str, key: bytes) -> None:
        """Answer what comes on a channel, until the driver ends it."""
        serve(address, key, self._reply)

    def answer(self, envelope: Envelope, *stored: ArrayRecord) -> Message:
        """Answer a message that Ray brought."""
        return self._reply(_with_stored(envelope, stored))

    def _reply(self, message: Message) -> Message:
        """The app's reply; its exceptions become error replies that name their type only."""
        try:
            return self._app(message, self._context)
        except Exception as error:
            return error_reply(message, error)

    def add(self, one: Message, other: Message) -> Message:
        """The two replies' sum."""
        return _added(one, other)

    def memory(self) -> int:
        """Bytes that this process took at most."""
        return hardware.peak_memory()


class RayGrid(HostedGrid):
    """A Grid of Ray actors.

    Uses the Ray instance of this process where there is one, else starts one and ends it in ``close``.

    Args:
        nodes: how many actors.
        run_config: the public configuration that every node's Context carries.
        client_app: the ClientApp as ``module:attribute``, importable from this process's ``sys.path``.
        num_cpus: CPUs per actor, a fraction allowed; default: an equal share of Ray's CPUs. An actor's
            torch uses its whole part as threads, at least one.
        num_gpus: GPUs per actor, a fraction allowed.
        start_timeout: seconds to wait for the actors to start.

    Raises:
        GridError: the actors ask for more than there is, or did not start in time.
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
        self._sent: set[str] = set()  # by a channel
        self._owns_ray = not ray.is_initialized()
        self._inline = start_ray() if self._owns_ray else _RAY_INLINE
        try:
            self._start_actors(num_cpus, num_gpus, start_timeout)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, num_cpus: float | None, num_gpus: float, timeout: float) -> None:
        there = ray.cluster_resources()
        cpus = there.get("CPU", 0.0) / self.nodes if num_cpus is None else num_cpus
        for name, share, total in (
            ("CPU", cpus, there.get("CPU", 0.0)),
            ("GPU", num_gpus, there.get("GPU", 0.0)),
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
            there = ray.get([handle.ready.remote() for handle in self._actors.values()], timeout=timeout)
            here = ray.get_runtime_context().get_node_id()
            near = [node for node, name in zip(self._actors, there, strict=True) if name == here]
            self._open_channels(near, timeout)
        except (GetTimeoutError, TimeoutError):
            raise GridError(
                f"the actors did not start within {timeout:g} s; are Ray's resources in use elsewhere?"
            ) from None
        except RayError as error:
            raise GridError(f"an actor failed to start: {error}") from error

    def _open_channels(self, nodes: list[int], timeout: float) -> None:
        """Channels to these nodes, where the system has such sockets."""
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
        """Raises RayError where an actor has ended that has a channel to serve."""
        done, _ = ray.wait(list(self._serving.values()), num_returns=len(self._serving), timeout=0)
        ray.get(done)

    adds = True

    def send_and_add(self, messages: Iterable[Message], *, timeout: float | None = None) -> Message | None:
        """As :meth:`HostedGrid.send_and_add`, in pairs, in the same order whoever adds.

        Small replies come over channels, and the driver adds them. Of large ones the actors add two by two,
        in a tree, so that the driver reads one model's worth of numbers however many actors there are.
        """
        batch = list(messages)
        near = all(self._has_channel(message.metadata.dst_node_id) for message in batch)
        if near and sum(map(_bytes_of, batch)) <= _DRIVER_ADDS:
            replies = self._collect(list(self.push_messages(batch)), timeout)
            return _in_pairs(replies, _added) if len(replies) == len(batch) else None
        for message in batch:
            self._end_channel(message.metadata.dst_node_id)
        taken = [self._pending.pop(name)[0] for name in self.push_messages(batch)]
        actors = [self._actors[message.metadata.dst_node_id] for message in batch]
        _, total = _in_pairs(
            list(zip(actors, taken, strict=True)),
            lambda one, other: (one[0], one[0].add.remote(one[1], other[1])),
        )
        name = batch[0].metadata.message_id
        self._pending[name] = (total, batch[0])
        return next(iter(self._collect([name], timeout)), None)

    def _submit(self, messages: list[Message]) -> None:
        self._submit_to_ray([message for message in messages if not self._sent_by_channel(message)])

    def _sent_by_channel(self, message: Message) -> bool:
        """Send the message by its node's channel, if there is one; a large message is that channel's end."""
        node, channels = message.metadata.dst_node_id, self._channels
        if _bytes_of(message) > _SMALL:
            self._end_channel(node)
        if channels is None or not self._has_channel(node):
            return False
        self._sent.add(message.metadata.message_id)
        self._lost(node, channels.post(node, message))
        return True

    def _has_channel(self, node: int) -> bool:
        return self._channels is not None and node in self._channels

    def _end_channel(self, node: int) -> None:
        """From here on, what the node gets comes through Ray."""
        if self._channels is not None and self._has_channel(node):
            self._lost(node, self._channels.post(node, None))

    def _lost(self, node: int, messages: Iterable[Message]) -> None:
        """Reply to the messages of a channel whose actor is gone with what Ray says of it."""
        assert self._channels is not None
        for message in messages:
            error: Exception = EOFError()
            try:
                ray.get(self._serving[node], timeout=_LAST_WORDS)
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
        """Object references for the large records that several messages hold, by ``id``."""
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
        self._channels.collect([name for name in message_ids if name in self._sent], timeout, self._lost)
        ready = [name for name in message_ids if name in self._channels.replies]
        self._sent.difference_update(ready)
        return {name: self._channels.replies.pop(name) for name in ready}

    def _from_ray(self, name: str) -> Message:
        future, message = self._pending.pop(name)
        try:
            reply: Message = ray.get(future)
        except RayError as error:
            return error_reply(message, error, crashed=True)
        return reply

    def memory(self) -> int:
        """Bytes that the actors took at most, all together. What they get from here on comes through Ray."""
        for node in self._actors:
            self._end_channel(node)
        return sum(ray.get([handle.memory.remote() for handle in self._actors.values()]))

    def close(self) -> None:
        """End this grid's actors, and Ray where this grid started it."""
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
    """The message without those of its records that are stored elsewhere, which it names.

    It is one argument, because Ray takes its time for each of them.
    """
    own = {name: None if id(record) in stored else record for name, record in message.content.items()}
    return message.metadata, own


def _with_stored(envelope: Envelope, stored: Iterable[ArrayRecord]) -> Message:
    """The message of an envelope, with its stored records in their places."""
    metadata, own = envelope
    rest = iter(stored)
    return make_message(
        metadata, RecordDict({name: next(rest) if r is None else r for name, r in own.items()})
    )


def _bytes_of(message: Message) -> int:
    """The size of a message's arrays; its reply's sums are of about as many, in twice the bytes."""
    return int(sum(record.count_bytes() for record in message.content.array_records.values()))


def _added(one: Message, other: Message) -> Message:
    """The two replies' sum, or an error reply; of what else they hold, the larger values."""
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
    """The sum of one part at least: neighbours are added, then neighbouring sums, until one is left."""
    while len(parts) > 1:
        left, right = parts[::2], parts[1::2]
        parts = [*map(add, left, right), *left[len(right) :]]
    return parts[0]


def start_ray(num_cpus: int | None = None) -> int:
    """Start a quiet local Ray without dashboard and usage statistics, or join ``RAY_ADDRESS``.

    Args:
        num_cpus: logical CPUs of a local Ray; default: the machine's.

    Returns:
        The size in bytes up to which this Ray inlines arguments and results.
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
