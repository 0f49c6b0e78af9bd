"""Absences of nodes: which node missed which releases, and whether it came back.

They are recorded only if all nodes take part in every release, as silos do: then an absence reveals nothing
about sampling. The charge of an absent silo remains, because its reply may already have been sent.

>>> absences = Dropouts()
>>> for round, failed in enumerate([{}, {1: "failed"}, {1: "gone offline"}, {}]):
...     absences.note(failed, first=4 * round + 1, last=4 * round + 4)
>>> absences.to_json()
[{'partition': 1, 'from release': 5, 'to release': 12, 'back': True, 'why': ['failed', 'gone offline']}]
>>> absences.to_json(after=12)
[]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEY = "absences"  # in reports and metrics


@dataclass
class Dropout:
    """A node's absence from consecutive releases, counted from 1."""

    partition: int
    first: int
    last: int
    why: list[str] = field(default_factory=list)
    back: bool = False

    def to_json(self) -> dict[str, Any]:
        """The absence as a JSON-serialisable dict, for reports and metrics."""
        span = {"partition": self.partition, "from release": self.first, "to release": self.last}
        return {**span, "back": self.back, "why": list(self.why)}


class Dropouts:
    """All absences of a run, in the order of their first releases."""

    def __init__(self) -> None:
        self._all: list[Dropout] = []
        self._now: dict[int, Dropout] = {}

    def note(self, failed: Mapping[int, str], first: int, last: int) -> None:
        """Record that these partitions missed releases ``first`` to ``last``; all others answered."""
        for partition in self._now.keys() - failed.keys():
            self._now.pop(partition).back = True
        for partition, why in sorted(failed.items()):
            if partition not in self._now:
                self._now[partition] = Dropout(partition, first, last)
                self._all.append(self._now[partition])
            absence = self._now[partition]
            absence.last = last
            if why not in absence.why:
                absence.why.append(why)

    def to_json(self, after: int = 0) -> list[dict[str, Any]]:
        """The absences that last beyond release ``after``, as JSON-serialisable dicts."""
        return [absence.to_json() for absence in self._all if absence.last > after]


def until(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The absences in an interrupted run's metrics; its resumed part begins with all nodes."""
    rows = [absence for row in metrics for absence in row.get(KEY, ())]
    last = {(absence["partition"], absence["from release"]): absence for absence in rows}
    return [{**absence, "back": True} for absence in last.values()]
