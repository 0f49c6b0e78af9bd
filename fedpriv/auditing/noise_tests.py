"""What is left of released sums once the exact ones are taken away: is it the noise that was said, and new?

For an auditor, who knows the data, the cohorts and the clips: an adversary who trusts that noise is
independent does not notice that it is not, or is missing once, and whoever looks closer would. Each test has
a p-value: the probability of what was seen, or of anything odder, where all is as it should be.

>>> generator = np.random.default_rng(0)
>>> noise = generator.standard_normal((2, 5000))
>>> sound, reused = Residuals(10**6), Residuals(10**6)
>>> for release in (0, 1):
...     sound.add([noise[release]], generator.choice(10**6, 500, replace=False), 5e-4)
...     reused.add([noise[0]], generator.choice(10**6, 500, replace=False), 5e-4)
>>> sound.p_value > 0.01, reused.p_value < 1e-9, reused.oddest
(True, True, 'noise that was there before, in release 2')
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

_TINY = 0.01  # of a std: what is smaller counts as missing
_MANY = 1000  # entries, from which on a sum of their products is all but normal


@dataclass
class Residuals:
    """Releases of one run, tested one after the other.

    Attributes:
        population: N, how many units there are.
        p_value: of the oddest test, times the number of tests.
        oddest: what it found.
    """

    population: int
    oddest: str = "nothing"
    _least: float = 1.0
    _tests: int = 0
    _releases: int = 0
    _kept: list[tuple[list[Floats], NDArray[np.int64]]] = field(default_factory=list)  # the first, the last

    @property
    def p_value(self) -> float:
        """See above; by Bonferroni, so that it is right however the tests depend on each other."""
        return min(1.0, self._least * self._tests)

    def add(self, residuals: Sequence[Floats], cohort: NDArray[np.int64], rate: float) -> None:
        """A release.

        Args:
            residuals: for each block (released - exact sum) / std of its noise, (d,) or ().
            cohort: the units that were in it, distinct.
            rate: q, the probability of each; 1 for everyone.
        """
        self._releases += 1
        parts = [np.atleast_1d(part) for part in residuals]
        for part in parts:
            self._take(_of_block(part))
        if rate < 1:
            self._take([("cohort that is too large", stats.binom.sf(len(cohort) - 1, self.population, rate))])
        for before, drawn in self._kept:
            for part, other in zip(parts, before, strict=False):  # not all releases have as many blocks
                if len(part) == len(other) >= _MANY:
                    self._take([("noise that was there before", _two_sided(part @ other, len(part)))])
            if rate < 1:
                self._take([("cohort that was there before", self._overlap(cohort, drawn))])
        self._kept = [*self._kept[:1], (parts, cohort)]

    def _overlap(self, cohort: NDArray[np.int64], drawn: NDArray[np.int64]) -> float:
        """Given their sizes, cohorts of all samplers are uniform and meet by chance."""
        both = len(np.intersect1d(cohort, drawn, assume_unique=True))
        return float(stats.hypergeom.sf(both - 1, self.population, len(drawn), len(cohort)))

    def _take(self, found: Iterable[tuple[str, float]]) -> None:
        for what, p_value in found:
            self._tests += 1
            if p_value < self._least:
                self._least, self.oddest = float(p_value), f"{what}, in release {self._releases}"


def _of_block(part: Floats) -> Iterator[tuple[str, float]]:
    """Tests of one block's residuals, which should be independent standard normal numbers."""
    count = len(part)
    yield "noise that is too small", stats.chi2.cdf(part @ part, count)
    missing = int((abs(part) < _TINY).sum())
    yield "noise that is missing", stats.binom.sf(missing - 1, count, 2 * stats.norm.cdf(_TINY) - 1)
    if count >= _MANY:
        yield "noise that all coordinates share", _two_sided(part.sum(), count)
        yield "noise that neighbours share", _two_sided(part[1:] @ part[:-1], count - 1)


def _two_sided(total: Any, count: int) -> float:
    """Of a sum of so many numbers of mean 0 and variance 1."""
    return float(2 * stats.norm.sf(abs(float(total)) / math.sqrt(count)))
