"""Cells on the machines of a Ray cluster: one actor for each machine, with a pool of the machine's own.

The sweep's folder must be on a file system that all machines share, at the same path: a cell writes its run
folder where it runs, and is resumed from there. If a machine is lost, its cells run again on the others.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedpriv._internal import ray_cluster
from fedpriv._internal.ray_cluster import ClusterError
from fedpriv.simulation.sweeps.pool import Pool

_START_TIMEOUT = 120.0  # seconds to wait for the machines' actors
_LOOK = 0.2  # seconds that an actor waits for its cells' messages
_MAX_LOSSES = 3  # machines on which a cell may be lost, before it counts as failed


class _Host:
    """A machine's actor."""

    def __init__(self, paths: list[str], jobs: int) -> None:
        ray_cluster.look_in(paths)
        self._pool = Pool(jobs)

    def sees(self, probe: str) -> bool:
        """Whether the file is there."""
        return os.path.exists(probe)

    def start(self, name: str, request: Mapping[str, Any]) -> None:
        """See :meth:`Pool.start`."""
        self._pool.start(name, **request)

    def end(self) -> None:
        """See :meth:`Pool.end`."""
        self._pool.end()

    def messages(self) -> list[dict[str, Any]]:
        """See :meth:`Pool.messages`."""
        return self._pool.messages(_LOOK)


class _Machine:
    """The driver's end of an actor: its room, and the cells that it runs."""

    def __init__(self, actor: Any, address: str, jobs: int) -> None:
        self.actor, self.address, self.jobs = actor, address, jobs
        self.cells: set[str] = set()
        self.look: Any = None


class ClusterPool:
    """The same as :class:`Pool`, over the machines of the Ray cluster that ``RAY_ADDRESS`` names.

    Args:
        jobs: how many cells run side by side, on all machines together.
        folder: the sweep's, which all machines must see.

    Raises ClusterError if no machine can run cells, or one does not see the folder.
    """

    def __init__(self, jobs: int, folder: Path) -> None:
        ray_cluster.resources()  # connects to the cluster
        ray_cluster.require_ready()
        self._requests: dict[str, dict[str, Any]] = {}
        self._waiting: list[str] = []
        self._losses: dict[str, int] = {}
        self._machines: list[_Machine] = []
        self._ending = False
        try:
            self._start_hosts(jobs)
            self._require_shared(folder)
        except BaseException:
            self.close()
            raise

    def _start_hosts(self, jobs: int) -> None:
        paths = ray_cluster.search_path()
        for name, each in ray_cluster.machines().items():
            room = min(int(each["Resources"].get("CPU", 0)), jobs)
            if room < 1:
                continue
            actor = ray.remote(_Host).options(
                num_cpus=room,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False),
                runtime_env=ray_cluster.environment(),
            )
            self._machines.append(_Machine(actor.remote(paths, room), each["NodeManagerAddress"], room))
        if not self._machines:
            raise ClusterError("no machine of the Ray cluster has a CPU for a cell")

    def _require_shared(self, folder: Path) -> None:
        probe = folder / f".shared-{secrets.token_hex(8)}"
        probe.touch()
        try:
            for machine in self._machines:
                try:
                    seen = ray.get(machine.actor.sees.remote(str(probe.resolve())), timeout=_START_TIMEOUT)
                except GetTimeoutError:
                    raise ClusterError(
                        f"machine {machine.address} started nothing within {_START_TIMEOUT:g} s; are "
                        "its CPUs in use elsewhere?"
                    ) from None
                except RayError as error:
                    raise ClusterError(f"machine {machine.address}: {error}") from error
                if not seen:
                    raise ClusterError(
                        f"machine {machine.address} does not see {folder.resolve()}; put --out on a file "
                        "system that all machines of the cluster share"
                    )
        finally:
            probe.unlink(missing_ok=True)

    def start(self, name: str, folder: Path, lock: Path, log: Path, settings: Mapping[str, Any]) -> None:
        """Begin a cell, on the machine with the most room."""
        paths = {"folder": folder.resolve(), "lock": lock.resolve(), "log": log.resolve()}
        self._requests[name] = {**paths, "settings": dict(settings)}
        self._waiting.append(name)
        self._place()

    def _place(self) -> None:
        """Start waiting cells where there is room."""
        while self._waiting and self._machines:
            machine = max(self._machines, key=lambda each: each.jobs - len(each.cells))
            if machine.jobs <= len(machine.cells):
                return
            name = self._waiting.pop(0)
            machine.cells.add(name)
            machine.actor.start.remote(name, self._requests[name])

    def end(self) -> None:
        """Ask all cells to end after their rounds."""
        self._ending = True
        for machine in self._machines:
            machine.actor.end.remote()

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """What cells told, waiting at most so long.

        Raises ClusterError if no machine is left.
        """
        found = []
        if self._ending:  # what has not begun does not begin
            found += [{"cell": name, "exit": 0} for name in self._waiting]
            self._waiting.clear()
        for machine in self._machines:
            machine.look = machine.look or machine.actor.messages.remote()
        looks = {machine.look: machine for machine in self._machines}
        deadline = time.monotonic() + seconds
        pending = list(looks)
        while pending and not found:
            done, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                break
            for look in done:
                found += self._taken(looks[look])
        self._place()
        return found

    def _taken(self, machine: _Machine) -> list[dict[str, Any]]:
        look, machine.look = machine.look, None
        try:
            found: list[dict[str, Any]] = ray.get(look)
        except RayError:
            return self._lost(machine)
        machine.cells -= {message["cell"] for message in found if "exit" in message}
        return found

    def _lost(self, machine: _Machine) -> list[dict[str, Any]]:
        """The machine is gone: its cells wait for another one, or fail if they were lost too often."""
        self._machines.remove(machine)
        if not self._machines:
            raise ClusterError(
                "the last machine of the Ray cluster is gone; the same command continues the sweep"
            )
        failed: list[dict[str, Any]] = []
        for name in sorted(machine.cells):
            self._losses[name] = self._losses.get(name, 0) + 1
            if self._losses[name] < _MAX_LOSSES:
                self._waiting.append(name)
                continue
            why = f"{_MAX_LOSSES} machines that ran it were lost; perhaps memory was short"
            failed += [{"cell": name, "failed": why}, {"cell": name, "exit": 1}]
        return failed

    def close(self) -> None:
        """End all cells at once."""
        for machine in self._machines:
            ray.kill(machine.actor)
        self._machines.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
