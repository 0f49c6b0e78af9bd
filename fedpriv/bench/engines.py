"""The configured engine, with a stopwatch on what its nodes do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, cast

from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv.config.plan import gpu_share, number_of_actors
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.node.factory import make_worker


class TimedEngine(Protocol):
    """An engine after each of whose gatherings the watch tells where its time went, in seconds.

    ``gather`` is the whole; ``data``, and ``answer`` where nodes are apart, are of the slowest node. Where
    parties add noise, ``party noise`` is what that took of it, and ``aside`` what it took to find that out.
    """

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`~fedpriv.federated.engine.Engine`."""

    def close(self) -> None:
        """See :class:`~fedpriv.federated.engine.Engine`."""

    def memory(self) -> int:
        """Bytes that nodes in other processes took at most, all together; they answer no more."""


class _Watched:
    """An engine whose gatherings are timed, and the parties' noise by itself."""

    def __init__(self, inner: Engine, watch: Stopwatch, grid: Any = None) -> None:
        self._inner, self._watch, self._grid = inner, watch, grid

    def gather(self, request: SumRequest) -> PartialSum:
        with self._watch.time("gather"):
            reply = self._inner.gather(request)
        if request.party_stds is not None:
            self._ask_for_noise(request)
        return reply

    def _ask_for_noise(self, request: SumRequest) -> None:
        """Ask once more, for the same parties' noise on no units; the answer is thrown away."""
        spent, started = self._watch.take(), time.perf_counter()
        nobody = tuple(replace(shard, ids=shard.ids[:0]) for shard in request.shards)
        self._inner.gather(replace(request, shards=nobody))
        seconds = time.perf_counter() - started
        noise = self._watch.take().get("answer", seconds)
        self._watch.add({**spent, "party noise": noise, "aside": seconds})

    def memory(self) -> int:
        return 0 if self._grid is None else int(self._grid.memory())

    def close(self) -> None:
        self._inner.close()


def timed_engine(config: Config, watch: Stopwatch) -> TimedEngine:
    """The engine that ``simulate`` would start, started."""
    if config.in_process:
        side = make_worker(config.table())
        timed = replace(side, view=cast(Any, Timed(side.view, watch, {"batch": "data"})))
        return _Watched(timed, watch)
    from flwr.app import Message

    from fedpriv.flower.grid_engine import GridEngine
    from fedpriv.flower.grids.ray import RayGrid
    from fedpriv.flower.timed_app import TIMES

    class Listening(RayGrid):
        """A grid that adds what the slowest node's replies say to the watch."""

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            times = [_times(reply) for reply in replies]
            watch.add({name: max(each.get(name, 0.0) for each in times) for name in set().union(*times)})
            return replies

        def send_and_add(self, messages: Iterable[Any], *, timeout: float | None = None) -> Message | None:
            total = super().send_and_add(messages, timeout=timeout)
            watch.add({} if total is None else _times(total))
            return total

    def _times(reply: Message) -> dict[str, float]:
        there = reply.has_content() and TIMES in reply.content
        return dict(reply.content[TIMES]) if there else {}

    grid = Listening(
        number_of_actors(config),
        config.table(),
        client_app="fedpriv.flower.timed_app:app",
        num_cpus=config.cpus_per_actor,
        num_gpus=gpu_share(config),
    )
    return _Watched(GridEngine(grid, reply_timeout=config.reply_timeout), watch, grid)
