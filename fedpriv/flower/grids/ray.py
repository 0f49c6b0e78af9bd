"""Nodes in persistent Ray actors: no polling, one message an actor and release.

Each actor imports the ClientApp once, keeps its Context, and answers messages one at a time; the driver
blocks in ``ray.wait``. Records that several messages of a batch share (the model) are put into Ray's
object store once. Ray serialises between processes that this grid started itself on the user's own
machine or cluster; messages of a deployment never pass here.

An actor that dies, or an app that raises, becomes an error reply, as in Flower's own engine.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ray
import torch
from flwr.app import ArrayRecord, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.app.user_config import UserConfig, UserConfigValue
from ray.exceptions import GetTimeoutError, RayError

from fedpriv import _check
from fedpriv.flower.grids.base import (
    CLIENT_APP,
    GridError,
    HostedGrid,
    load_client_app,
    node_context,
)
from fedpriv.flower.guard import error_reply
from fedpriv.flower.messages import add_replies

# Bytes up to which Ray sends an argument or a result inside the call instead of through its object store:
# Ray's default, and ours, which makes a round of a 26,000-parameter model about four times as fast.
_RAY_INLINE, _OUR_INLINE = 100 * 1024, 4 * 1024 * 1024

Letter = tuple[Metadata, dict[str, Any]]  # a message; records that are stored elsewhere are None


class _Node:
    """One actor: a ClientApp and its Context."""

    def __init__(
        self, client_app: str, node: int, nodes: int, run_config: UserConfig, paths: list[str], threads: int
    ) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        torch.set_num_threads(threads)
        self._app = load_client_app(client_app)
        self._context = node_context(node, nodes, run_config)

    def ready(self) -> int:
        """The actor's process id, once it can answer."""
        return os.getpid()

    def answer(self, letter: Letter, *stored: ArrayRecord) -> Message:
        """The app's reply; its exceptions become error replies that name their type only."""
        message = _open(letter, stored)
        try:
            return self._app(message, self._context)
        except Exception as error:
            return error_reply(message, error)

    def add(self, one: Message, other: Message) -> Message:
        """The two replies' sum."""
        try:
            return add_replies(one, other)
        except Exception as error:
            return error_reply(one, error)


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
        _check.non_negative("num-gpus", num_gpus)
        if num_cpus is not None:
            _check.finite_positive("num-cpus", num_cpus)
        self._actors: dict[int, Any] = {}
        self._pending: dict[str, tuple[Any, Message]] = {}
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
                raise GridError(
                    f"{self.nodes} actors of {share:g} {name} each do not fit: Ray has {total:g} {name}"
                )
        actor = ray.remote(_Node).options(num_cpus=cpus, num_gpus=num_gpus, max_restarts=0)
        paths = [path for path in sys.path if path]
        for node in self.get_node_ids():
            self._actors[node] = actor.remote(
                self.client_app, node, self.nodes, self.run_config, paths, max(1, int(cpus))
            )
        try:
            ray.get([handle.ready.remote() for handle in self._actors.values()], timeout=timeout)
        except GetTimeoutError:
            raise GridError(
                f"the actors did not start within {timeout:g} s; are Ray's resources in use elsewhere?"
            ) from None
        except RayError as error:
            raise GridError(f"an actor failed to start: {error}") from error

    adds = True

    def send_and_add(self, messages: Iterable[Message], *, timeout: float | None = None) -> Message | None:
        """As :meth:`HostedGrid.send_and_add`: actors add their replies two by two, in a tree, so that the
        driver reads one model's worth of numbers however many actors there are."""
        batch = list(messages)
        taken = [self._pending.pop(name)[0] for name in self.push_messages(batch)]
        level = [(self._actors[m.metadata.dst_node_id], reply) for m, reply in zip(batch, taken, strict=True)]
        while len(level) > 1:
            left, right = level[::2], level[1::2]
            pairs = zip(left, right, strict=False)
            sums = [(actor, actor.add.remote(one, other)) for (actor, one), (_, other) in pairs]
            level = sums + left[len(right) :]
        name = batch[0].metadata.message_id
        self._pending[name] = (level[0][1], batch[0])
        return next(iter(self._collect([name], timeout)), None)

    def _submit(self, messages: list[Message]) -> None:
        stored = self._store_shared(messages)
        for message in messages:
            references = [stored[id(record)] for record in message.content.values() if id(record) in stored]
            handle = self._actors[message.metadata.dst_node_id]
            future = handle.answer.remote(_letter(message, stored), *references)
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
        wanted = {name: self._pending[name][0] for name in message_ids if name in self._pending}
        if not wanted:
            return []
        done, _ = ray.wait(list(wanted.values()), num_returns=len(wanted), timeout=timeout)
        ready = set(done)
        return [self._reply(name) for name, future in wanted.items() if future in ready]

    def _reply(self, name: str) -> Message:
        future, message = self._pending.pop(name)
        try:
            reply: Message = ray.get(future)
        except RayError as error:
            return error_reply(message, error, crashed=True)
        return reply

    def close(self) -> None:
        """End this grid's actors, and Ray where this grid started it."""
        self._pending.clear()
        for handle in self._actors.values():
            ray.kill(handle)
        self._actors.clear()
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
        self._owns_ray = False


def _letter(message: Message, stored: Collection[int]) -> Letter:
    """The message without those of its records that are stored elsewhere, which it names.

    It is one argument, because Ray takes its time for each of them.
    """
    own = {name: None if id(record) in stored else record for name, record in message.content.items()}
    return message.metadata, own


def _open(letter: Letter, stored: Iterable[ArrayRecord]) -> Message:
    """The message of a letter, with its stored records in their places."""
    metadata, own = letter
    rest = iter(stored)
    return make_message(
        metadata, RecordDict({name: next(rest) if r is None else r for name, r in own.items()})
    )


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
