"""The configured engine, with a stopwatch for its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, cast

from fedpriv._internal import validation
from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv.config.plan import gpu_share, number_of_actors
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.node.factory import make_worker


class TimedEngine(Protocol):
    """An engine with a stopwatch that has the seconds of each gathering, by part.

    ``gather`` is the whole. ``data``, and ``answer`` if nodes are other processes, are those of the slowest
    node. If parties add noise, ``party noise`` is its time, and ``aside`` the time of the extra request that
    measures it.
    """

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`~fedpriv.federated.engine.Engine`."""

    def close(self) -> None:
        """See :class:`~fedpriv.federated.engine.Engine`."""

    def memory(self) -> int:
        """The sum of the other processes' peak memory in bytes. Call it last."""


class _Watched:
    """An engine that times its gatherings, and the parties' noise separately."""

    def __init__(self, inner: Engine, watch: Stopwatch, grid: Any = None) -> None:
        self._inner, self._watch, self._grid = inner, watch, grid

    def gather(self, request: SumRequest) -> PartialSum:
        with self._watch.time("gather"):
            reply = self._inner.gather(request)
        if request.party_stds is not None:
            self._time_noise(request)
        return reply

    def _time_noise(self, request: SumRequest) -> None:
        """Repeat the request without units, so that the nodes only generate noise; ignore the reply."""
        spent, started = self._watch.take(), time.perf_counter()
        empty = tuple(replace(shard, ids=shard.ids[:0]) for shard in request.shards)
        self._inner.gather(replace(request, shards=empty))
        seconds = time.perf_counter() - started
        noise = self._watch.take().get("answer", seconds)
        self._watch.add({**spent, "party noise": noise, "aside": seconds})

    def memory(self) -> int:
        return 0 if self._grid is None else int(self._grid.memory())

    def close(self) -> None:
        self._inner.close()


def timed_engine(config: Config, watch: Stopwatch) -> TimedEngine:
    """Start the engine that ``simulate`` would use."""
    if config.aggregates_securely:
        hint = "benchmarks/secure_aggregation.py measures it"
        raise validation.fail("secure-aggregation", True, "be false where rounds are timed", hint)
    if config.in_process:
        side = make_worker(config.table())
        timed = replace(side, view=cast(Any, Timed(side.view, watch, {"batch": "data"})))
        return _Watched(timed, watch)
    from flwr.app import Message

    from fedpriv.flower.grid_engine import GridEngine
    from fedpriv.flower.grids.ray import RayGrid
    from fedpriv.flower.timed_app import TIMES

    class TimedGrid(RayGrid):
        """A grid that adds the slowest node's times to the stopwatch."""

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
        timed = reply.has_content() and TIMES in reply.content
        return dict(reply.content[TIMES]) if timed else {}

    grid = TimedGrid(
        number_of_actors(config),
        config.table(),
        client_app="fedpriv.flower.timed_app:app",
        num_cpus=config.cpus_per_actor,
        num_gpus=gpu_share(config),
    )
    return _Watched(GridEngine(grid, reply_timeout=config.reply_timeout), watch, grid)
