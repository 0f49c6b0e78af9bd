"""Who was absent from a run: the nodes that gave nothing, from which release on, and when they were back.

It may be told only where all nodes are asked in every release, as silos are: who does not answer then tells
of no one's draw. What was charged for an absent silo stays charged, for its answer may have been on its way.

>>> absences = Dropouts()
>>> for round, failed in enumerate([{}, {1: "failed"}, {1: "gone offline"}, {}]):
...     absences.note(failed, first=4 * round + 1, last=4 * round + 4)
>>> absences.told()
[{'partition': 1, 'from release': 5, 'to release': 12, 'back': True, 'why': ['failed', 'gone offline']}]
>>> absences.told(after=12)
[]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEY = "absences"  # in reports and metrics


@dataclass
class Dropout:
    """A node that gave nothing to releases in a row, counted from 1."""

    partition: int
    first: int
    last: int
    why: list[str] = field(default_factory=list)
    back: bool = False

    def told(self) -> dict[str, Any]:
        """As reports and metrics have it."""
        span = {"partition": self.partition, "from release": self.first, "to release": self.last}
        return {**span, "back": self.back, "why": list(self.why)}


class Dropouts:
    """All absences of a run, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[Dropout] = []
        self._now: dict[int, Dropout] = {}

    def note(self, failed: Mapping[int, str], first: int, last: int) -> None:
        """That releases ``first`` to ``last`` went without these partitions, and why; all others answered."""
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

    def told(self, after: int = 0) -> list[dict[str, Any]]:
        """The absences of releases after this one, as reports and metrics have them."""
        return [absence.told() for absence in self._all if absence.last > after]


def until(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The absences that a run's metrics tell of, as it is taken up again: with all nodes there."""
    last = {(told["partition"], told["from release"]): told for row in metrics for told in row.get(KEY, ())}
    return [{**told, "back": True} for told in last.values()]
