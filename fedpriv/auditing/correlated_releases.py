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
from dataclasses import dataclass, replace

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
class _Window:
    """A release, and what the rows that have been seen say of it."""

    seen: Seen
    total: list[Floats]
    rows: int = 0
    share: float = 0.0  # the sum of the squares of the rows' weights

    def add(self, weight: float, row: Sequence[Floats]) -> None:
        """Adds the next row."""
        self.total = [total + weight * part for total, part in zip(self.total, row, strict=True)]
        self.rows, self.share = self.rows + 1, self.share + weight**2

    def whole(self) -> Seen:
        """The release with the sums and the stds of its rows."""
        pairs = zip(self.total, self.seen.expected, strict=True)
        sums = [total / self.share + usual for total, usual in pairs]
        return replace(self.seen, sums=sums, stds=[std / self.share**0.5 for std in self.seen.stds])


class Rows:
    """C times a sequence of blocks, row by row."""

    def __init__(self, bands: int) -> None:
        """Before the first row, of ``bands`` bands."""
        self._weights = claims.band_coefficients(bands)
        self._past: deque[Sequence[Floats]] = deque(maxlen=bands)  # the newest first

    def following(self, blocks: Sequence[Floats]) -> list[Floats]:
        """The next row. Of the noise in releases it is independent noise, as that was before it was mixed."""
        self._past.appendleft(blocks)
        found = [0.0 * block for block in blocks]
        for weight, past in zip(self._weights, self._past, strict=False):
            found = [total + weight * block for total, block in zip(found, past, strict=True)]
        return found


class CorrelatedReleases:
    """The releases of one run, in order."""

    def __init__(self, bands: int) -> None:
        """Before the first release, of ``bands`` bands."""
        self._weights, self._rows = claims.band_coefficients(bands), Rows(bands)
        self._open: deque[_Window] = deque()

    def add(self, seen: Seen) -> Iterator[Seen]:
        """The release, if any, whose last row this one completes, with the sums and stds of its rows."""
        row = self._rows.following([a - b for a, b in zip(seen.sums, seen.expected, strict=True)])
        self._open.append(_Window(seen, [0.0 * part for part in row]))
        for window in self._open:
            window.add(self._weights[window.rows], row)
        if self._open[0].rows == len(self._weights):
            yield self._open.popleft().whole()

    def rest(self) -> Iterator[Seen]:
        """The releases whose rows the end of the run cuts off."""
        while self._open:
            yield self._open.popleft().whole()
