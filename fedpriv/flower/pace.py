"""How long a server waits for its nodes: a node that hangs delays one release, and not all later ones.

A release ends when all awaited nodes have answered, or at its deadline. A node that did not answer in time is
asked again in the next release in which it takes part, and is not waited for: after the first miss in one
release, after each further miss in twice as many, at most 64. So a node that is only slower than the others
comes back, and one that hangs costs few deadlines. A node that answers in time is waited for at once.
What a node misses is a dropout: its parties are missing from the sum, and the release adds the missing noise.

>>> pace = Pace(reply_timeout=600.0)
>>> pace.deadline
600.0
>>> for seconds in (1.0, 9.0, 2.0):
...     pace.note({1, 2}, {1, 2}, seconds)
>>> pace.deadline
90.0
>>> pace.note({1, 2}, {1}, 90.0)
>>> sorted(pace.awaited({1, 2}))
[1]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from fedpriv._internal import validation

_TIMES, _LEAST = 10.0, 30.0  # how often the slowest release, and the least deadline in seconds
_KNOWN, _KEPT = 3, 20  # complete releases from which a deadline follows, and those that are remembered
_LONGEST = 64  # releases in a row that do not wait for a late node


@dataclass
class _Pause:
    """A late node is not waited for in ``length`` releases that ask it; ``left`` of them are to come."""

    length: int
    left: int


class Pace:
    """The deadline of the next release, and the nodes that it waits for.

    Args:
        reply_timeout: the most seconds that a release waits.
        round_deadline: the seconds after which a release goes on; 0: as many as follow from earlier ones.

    Raises ArgumentError if the deadline is above the timeout.
    """

    def __init__(self, reply_timeout: float, round_deadline: float = 0.0) -> None:
        self._timeout = validation.finite_positive("reply-timeout", reply_timeout)
        self._given = validation.non_negative("round-deadline", round_deadline)
        if self._given > self._timeout:
            allowed = f"be at most reply-timeout, {self._timeout:g}"
            raise validation.fail("round-deadline", round_deadline, allowed)
        self._late = dict[int, _Pause]()
        self._seconds: deque[float] = deque(maxlen=_KEPT)

    @property
    def deadline(self) -> float:
        """The seconds after which the next release goes on."""
        if self._given:
            return self._given
        if len(self._seconds) < _KNOWN:
            return self._timeout
        return min(self._timeout, max(_LEAST, _TIMES * max(self._seconds)))

    def awaited(self, asked: Collection[int]) -> set[int]:
        """The nodes of a release that are waited for: those that do not pause, or all where all do."""
        return {node for node in asked if not self._pauses(node)} or set(asked)

    def _pauses(self, node: int) -> bool:
        return node in self._late and self._late[node].left > 0

    def note(self, asked: Collection[int], answered: Collection[int], seconds: float) -> None:
        """A release has ended after so many seconds, with answers of these nodes, errors among them."""
        missing = set(asked) - set(answered)
        for node in set(asked) - missing:
            self._late.pop(node, None)
        for node in missing:
            if self._pauses(node):
                self._late[node].left -= 1
            else:
                length = min(2 * self._late[node].length, _LONGEST) if node in self._late else 1
                self._late[node] = _Pause(length, length)
        if asked and not missing:
            self._seconds.append(seconds)
