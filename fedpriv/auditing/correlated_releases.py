"""What an adversary makes of releases with correlated noise.

C times the releases is C times the true sums plus independent noise (:mod:`fedpriv.mechanism.correlated`). A
unit that takes part in release t shows in rows t, ..., t + b - 1 of it, c_k times in row t + k. The adversary
adds these rows with the weights c_k, whose squares sum to 1: what the unit adds is there once, with the noise
of one release. At the end of a run rows are missing, and less is seen.

The rows have other releases' units in them, too. None is of the unit's group, so the unit is not among them.
The adversary subtracts what it expects of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedpriv.auditing import claims
from fedpriv.auditing.audited_units import Floats
from fedpriv.data import Indices
from fedpriv.mechanism.query import Query


@dataclass(frozen=True)
class Seen:
    """A release as the adversary sees it.

    Attributes:
        query: what was asked.
        release: its number.
        units: the guessed units that may be in it.
        cohort: those that were asked.
        sums: the released sums, one for each block.
        expected: what the adversary expects of them, with every coin unknown.
        stds: the stds of the blocks' noise.
        rate: the probability with which a unit of the release's group is asked.
    """

    query: Query
    release: int
    units: Indices
    cohort: Indices
    sums: Sequence[Floats]
    expected: Sequence[Floats]
    stds: Sequence[float]
    rate: float


@dataclass
class CorrelatedReleases:
    """The releases of one run, in order.

    Attributes:
        bands: b.
    """

    bands: int
    _left: deque[list[Floats]] = field(default_factory=deque)  # the newest first
    _seen: deque[Seen] = field(default_factory=deque)  # the newest last: those that a window still needs
    _scored: int = 0  # of _seen, how many windows are over

    def independent(self, left: Sequence[Floats]) -> list[Floats]:
        """w_t from the residuals y_t, ..., y_{t-b+1}: independent where the noise is as claimed."""
        self._left.appendleft(list(left))
        while len(self._left) > self.bands:
            self._left.pop()
        return _combined(claims.band_coefficients(self.bands), self._left)

    def add(self, seen: Seen) -> Iterator[Seen]:
        """The release, if any, whose last row this one completes, with the sums and stds of its rows."""
        self._seen.append(seen)
        if len(self._seen) - self._scored == self.bands:
            yield self._window(self._scored)
            self._scored += 1
        if self._scored >= self.bands:  # no later window reaches back to the first
            self._seen.popleft()
            self._scored -= 1

    def rest(self) -> Iterator[Seen]:
        """The releases whose rows the end of the run cuts off."""
        while self._scored < len(self._seen):
            yield self._window(self._scored)
            self._scored += 1

    def _window(self, at: int) -> Seen:
        """Release ``at`` of those that are kept, seen through the rows from its own on."""
        c, own = claims.band_coefficients(self.bands), self._seen[at]
        rows = range(at, min(len(self._seen), at + self.bands))
        shares, others = 0.0, [0.0 * part for part in own.sums]
        for row in rows:
            shares += c[row - at] ** 2
            for back in range(min(row, self.bands - 1) + 1):
                if (other := self._seen[row - back]) is not own:
                    weight = c[row - at] * c[back]
                    pairs = zip(others, other.sums, other.expected, strict=True)
                    others = [total + weight * (part - usual) for total, part, usual in pairs]
        sums = [part + other / shares for part, other in zip(own.sums, others, strict=True)]
        return replace(own, sums=sums, stds=[std / shares**0.5 for std in own.stds])


def _combined(weights: Sequence[float], parts: Sequence[Sequence[Floats]]) -> list[Floats]:
    """The weighted sums of the blocks of several releases."""
    found = [weights[0] * block for block in parts[0]]
    for weight, blocks in zip(weights[1:], list(parts)[1:], strict=False):
        found = [total + weight * block for total, block in zip(found, blocks, strict=True)]
    return found
