"""Nodes in persistent Ray actors: no polling, one message per actor and release.

Each actor imports the ClientApp once, keeps its Context, and answers one message at a time. An actor on this
machine receives messages over its own channel (:mod:`fedpriv.flower.grids.channel`) until one is large. Large
messages, and those to other machines, go through Ray. A record that several messages of a batch share (the
model) is put into Ray's object store once. Ray pickles only between processes that this grid started on the
user's machine or cluster; messages of a deployment do not use this grid.

An app that raises gives an error reply, as in Flower's engine, and so does an actor that is lost: killed, out
of memory, or on a machine that left the cluster. If nodes keep nothing between messages (``stateless``), a
lost actor is replaced instead: by a new one if Ray has room for it, else by another actor, which then answers
for both nodes. What the lost actor had not answered is computed again. Its reply never arrived, so nothing is
counted twice.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import ray
from flwr.app import ArrayRecord, Message
from flwr.app.user_config import UserConfigValue
from ray.exceptions import GetTimeoutError, RayError

from fedpriv._internal import ray_cluster, validation
from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grids.actor import NodeActor, added, bytes_of, in_pairs, without_stored
from fedpriv.flower.grids.base import CLIENT_APP, GridError, HostedGrid
from fedpriv.flower.grids.channel import Channels

_CHANNEL_BYTES = 4 * 1024 * 1024  # the largest arrays of a message on a channel
_DRIVER_ADDS = 4 * _CHANNEL_BYTES  # the largest arrays of a batch whose replies the driver adds itself
_DEATH_TIMEOUT = 10.0  # seconds to wait for Ray's report on a dead actor
_REPLACE_TIMEOUT = 30.0  # seconds in which a new actor must start to replace a lost one
_MAX_ATTEMPTS = 3  # actors that a message is sent to, one after the other, if each is lost


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
        stateless: whether any actor may answer for any node, because nodes keep nothing between messages.

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
        start_timeout: float = 300.0,
        stateless: bool = False,
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
        self._crashed: dict[str, Message] = {}  # messages whose actor was lost before it replied
        self._stateless = stateless
        self._owns_ray = not ray.is_initialized()
        self._inline = ray_cluster.start_ray() if self._owns_ray else ray_cluster.RAY_INLINE
        try:
            self._start_actors(num_cpus, num_gpus, start_timeout)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, num_cpus: float | None, num_gpus: float, timeout: float) -> None:
        there = ray_cluster.total()
        cpus = there["CPU"] / self.nodes if num_cpus is None else num_cpus
        for name, share in (("CPU", cpus), ("GPU", num_gpus)):
            if share * self.nodes > there[name] + 1e-9:
                has = f"Ray has {there[name]:g} {name}"
                wanted = f"{self.nodes} actors of {share:g} {name} each do not fit: {has}"
                raise GridError(wanted + ("; device=cpu asks for none" if name == "GPU" else ""))
        self._cpus = cpus
        self._kind = ray.remote(NodeActor).options(
            num_cpus=cpus,
            num_gpus=num_gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",  # a cluster's machines share the work; one machine has all of it
            runtime_env=ray_cluster.environment(),
        )
        for node in self.get_node_ids():
            self._actors[node] = self._new_actor()
        try:
            machines = ray.get([handle.ready.remote() for handle in self._actors.values()], timeout=timeout)
            this = ray.get_runtime_context().get_node_id()
            local = [node for node, machine in zip(self._actors, machines, strict=True) if machine == this]
            self._open_channels(local, timeout)
        except (GetTimeoutError, TimeoutError):
            raise GridError(
                f"the actors did not start within {timeout:g} s; are Ray's resources in use elsewhere, or is "
                "the machine busy? engine=in-process needs no Ray"
            ) from None
        except RayError as error:
            raise GridError(f"an actor failed to start: {error}") from error

    def _new_actor(self) -> Any:
        paths, threads = ray_cluster.search_path(), max(1, int(self._cpus))
        return self._kind.remote(self.client_app, self.nodes, self.run_config, paths, threads)

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
        pairs, so that the driver reads one sum for any number of actors. If an actor is lost, all replies are
        computed again, and the driver adds them.
        """
        batch = list(messages)
        local = all(self._has_channel(message.metadata.dst_node_id) for message in batch)
        if local and sum(map(bytes_of, batch)) <= _DRIVER_ADDS:
            return self._added_here(batch, timeout)
        for message in batch:
            self._end_channel(message.metadata.dst_node_id)
        futures = [self._pending.pop(name)[0] for name in self.push_messages(batch)]
        actors = [self._actors[message.metadata.dst_node_id] for message in batch]
        _, total = in_pairs(
            list(zip(actors, futures, strict=True)),
            lambda one, other: (one[0], one[0].add.remote(one[1], other[1])),
        )
        name = batch[0].metadata.message_id
        self._pending[name] = (total, batch[0])
        reply = self._arrived([name], timeout).get(name)
        if self._crashed.pop(name, None) is None or not self._stateless:
            return reply
        for node in self.get_node_ids():
            if not self._lives(self._actors[node]):
                self._replace(node)
        return self._added_here(batch, timeout)

    def _added_here(self, batch: list[Message], timeout: float | None) -> Message | None:
        replies = self._collect(list(self.push_messages(batch)), timeout)
        return in_pairs(replies, added) if len(replies) == len(batch) else None

    def _lives(self, actor: Any) -> bool:
        try:
            ray.get(actor.ready.remote(), timeout=_DEATH_TIMEOUT)
        except GetTimeoutError:
            return True  # it is busy
        except RayError:
            return False
        return True

    def _replace(self, node: int) -> bool:
        """Another actor answers for the node from now on; False if none is left.

        A new actor, if Ray has room for one and it starts in time; else the actor of another node.
        """
        lost = self._actors[node]
        living = {id(actor): actor for actor in self._actors.values() if actor is not lost}
        if (len(living) + 1) * self._cpus <= ray_cluster.total()["CPU"] + 1e-9:
            new = self._new_actor()
            try:
                ray.get(new.ready.remote(), timeout=_REPLACE_TIMEOUT)
                living = {id(new): new}
            except (GetTimeoutError, RayError):
                ray.kill(new)
        for other in living.values():
            for each in [each for each, actor in self._actors.items() if actor is other]:
                self._end_channel(each)  # while an actor serves a channel, it answers nothing else
            if self._lives(other):
                for each, actor in list(self._actors.items()):
                    if actor is lost:
                        self._actors[each] = other
                return True
        return False

    def _submit(self, messages: list[Message]) -> None:
        self._submit_to_ray([message for message in messages if not self._sent_by_channel(message)])

    def _sent_by_channel(self, message: Message) -> bool:
        """Send the message over its node's channel, and return whether there is one.

        A large message ends the channel.
        """
        node, channels = message.metadata.dst_node_id, self._channels
        if bytes_of(message) > _CHANNEL_BYTES:
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
            self._crashed[message.metadata.message_id] = message
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
            future = handle.answer.remote(without_stored(message, stored), *references)
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
        deadline = None if timeout is None else time.monotonic() + timeout
        replies, wanted = dict[str, Message](), message_ids
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            replies |= self._arrived(wanted, left)
            lost = {name: self._crashed.pop(name) for name in wanted if name in self._crashed}
            if not lost or not self._stateless or attempt == _MAX_ATTEMPTS:
                break
            wanted = [name for name, message in lost.items() if self._has_actor(message)]
            self._submit([lost[name] for name in wanted])
        return [replies[name] for name in message_ids if name in replies]

    def _has_actor(self, message: Message) -> bool:
        """Whether an actor answers for the message's node, once a lost one was replaced."""
        node = message.metadata.dst_node_id
        return self._lives(self._actors[node]) or self._replace(node)

    def _arrived(self, message_ids: list[str], timeout: float | None) -> dict[str, Message]:
        """The replies that arrive in time, by message; those of lost actors are error replies."""
        started = time.monotonic()
        replies = self._collect_from_channels(message_ids, timeout)
        wanted = {name: self._pending[name][0] for name in message_ids if name in self._pending}
        if wanted:
            left = None if timeout is None else max(0.0, started + timeout - time.monotonic())
            done, _ = ray.wait(list(wanted.values()), num_returns=len(wanted), timeout=left)
            ready = set(done)
            replies |= {name: self._from_ray(name) for name, future in wanted.items() if future in ready}
        return replies

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
            self._crashed[name] = message
            return error_reply(message, error, crashed=True)
        return reply

    def memory(self) -> int:
        """The sum of the actors' peak memory in bytes. Later messages go through Ray."""
        return sum(ray.get(self._call_all("memory")))

    def failure(self) -> str:
        """As :meth:`HostedGrid.failure`. Later messages go through Ray."""
        done, _ = ray.wait(self._call_all("failure"), num_returns=self.nodes, timeout=_DEATH_TIMEOUT)
        for future in done:
            with suppress(RayError):  # an actor that is gone
                if text := ray.get(future):
                    return str(text)
        return ""

    def _call_all(self, name: str) -> list[Any]:
        """The futures of this method of all actors."""
        for node in self._actors:
            self._end_channel(node)
        actors = {id(actor): actor for actor in self._actors.values()}
        return [getattr(actor, name).remote() for actor in actors.values()]

    def close(self) -> None:
        """End this grid's actors, and Ray if this grid started it."""
        self._pending.clear()
        self._crashed.clear()
        for handle in self._actors.values():
            ray.kill(handle)
        self._actors.clear()
        if self._channels is not None:
            self._channels.close()
            self._channels = None
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
        self._owns_ray = False
