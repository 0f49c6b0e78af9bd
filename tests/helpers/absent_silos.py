"""A deployment's run in this process: the same settings, and silos that miss the same releases."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, cast

from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.runs.result import Result
from fedpriv.runs.runner import execute
from fedpriv.simulation.run import make_engine

Absent = Mapping[int, Set[int]]  # {release, from 0: the silos that do not answer it}


@dataclass(frozen=True)
class WithoutSilos:
    """An engine some of whose silos do not answer some releases."""

    engine: Engine
    absent: Absent

    def gather(self, request: SumRequest) -> PartialSum:
        """The sums of the silos that answer."""
        missing = self.absent.get(request.release, set())
        shards = tuple(shard for shard in request.shards if shard.home not in missing)
        return self.engine.gather(replace(request, shards=shards))

    def close(self) -> None:
        """Release what the engine holds."""
        self.engine.close()


def simulated(config: Config, absent: Absent | None = None) -> Result:
    """The result of a deployment's settings on this machine, without any grid."""
    usual = Config.parse({})
    waits = {name: getattr(usual, name) for name in ("round_deadline", "start_timeout", "reply_timeout")}
    config = config.changed(nodes_own_data=False, engine="in-process", **waits)  # nobody waits here
    engine = make_engine(config)
    return execute(make_plan(config), WithoutSilos(cast(Engine, engine), absent) if absent else engine)


def missed(report: Mapping[str, Any]) -> dict[int, set[int]]:
    """{release, from 0: the silos whose nodes missed it}, as a report says."""
    found: dict[int, set[int]] = {}
    for absence in report["privacy"]["absences"]:
        for release in range(absence["from release"] - 1, absence["to release"]):
            found.setdefault(release, set()).add(absence["partition"])
    return found
