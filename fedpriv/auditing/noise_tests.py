"""Tests of the residuals (released sums minus exact sums): are they the claimed noise, independent and fresh?

They are for an auditor who knows the data, the cohorts and the clipped contributions. An adversary who
assumes independent noise does not notice if it is dependent, or missing once. Each test has a p-value: the
probability of a result at least as extreme if noise and cohorts are as claimed.

>>> generator = np.random.default_rng(0)
>>> noise = generator.standard_normal((2, 5000))
>>> sound, reused = Residuals(10**6), Residuals(10**6)
>>> for release in (0, 1):
...     sound.add([noise[release]], generator.choice(10**6, 500, replace=False), 5e-4)
...     reused.add([noise[0]], generator.choice(10**6, 500, replace=False), 5e-4)
>>> sound.p_value > 0.01, reused.p_value < 1e-9, reused.oddest
(True, True, 'noise that was used before, in release 2')
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

_MISSING = 0.01  # residuals below this share of the std count as missing noise
_MIN_NORMAL = 1000  # with at least this many entries, a sum of products is close to normal


@dataclass
class Residuals:
    """The releases of one run, tested one by one.

    Attributes:
        population: N, the number of units.
        p_value: the smallest p-value, times the number of tests.
        oddest: what the test with the smallest p-value found.
    """

    population: int
    oddest: str = "nothing"
    _least: float = 1.0
    _tests: int = 0
    _releases: int = 0
    _sizes: list[int] = field(default_factory=list)
    _kept: list[list[Floats]] = field(default_factory=list)  # first, last
    _drawn: dict[int, list[NDArray[np.int64]]] = field(default_factory=dict)  # by group: first, last

    @property
    def p_value(self) -> float:
        """The smallest p-value with Bonferroni's correction, which is valid for dependent tests."""
        return min(1.0, self._least * self._tests)

    def join(self, other: Residuals) -> None:
        """Adds the tests of another silo's releases."""
        self._tests += other._tests
        if other._least < self._least:
            self._least, self.oddest = other._least, other.oddest

    def fault(self, found: str) -> None:
        """Records a fault that is certain, such as an event that is not of the configured cohorts."""
        self._tests += 1
        if self._least > 0:
            self._least, self.oddest = 0.0, f"{found}, in release {max(1, self._releases)}"

    def add(
        self,
        residuals: Sequence[Floats],
        cohort: NDArray[np.int64],
        rate: float,
        random_size: bool = False,
        groups: int = 1,
        group: int = 0,
    ) -> None:
        """Adds and tests a release.

        Args:
            residuals: for each block (released - exact sum) / std of its noise, (d,) or ().
            cohort: the distinct units of the cohort.
            rate: q, the sampling probability of each unit; 1 if all units take part.
            random_size: whether the cohort's size is claimed to be binomial.
            groups, group: the cohort is of those units whose number modulo ``groups`` is ``group``.
        """
        units = len(range(group, self.population, groups))
        self._releases += 1
        self._sizes.append(len(cohort))
        if random_size and rate < 1:
            self.take([("cohort whose size is not random", self._equal_sizes(units, rate))])
        parts = [np.atleast_1d(part) for part in residuals]
        if not all(np.isfinite(part).all() for part in parts):
            self.fault("a release that is not finite")
        for part in parts:
            self.take(_of_block(part))
        if rate < 1:
            self.take([("cohort that is too large", stats.binom.sf(len(cohort) - 1, units, rate))])
            for drawn in self._drawn.get(group, ()):
                self.take([("cohort that was used before", _overlap(units, cohort, drawn))])
            self._drawn[group] = [*self._drawn.get(group, [])[:1], cohort]
        for before in self._kept:
            for part, other in zip(parts, before, strict=False):  # not all releases have as many blocks
                if len(part) == len(other) >= _MIN_NORMAL:
                    self.take([("noise that was used before", _two_sided(part @ other, len(part)))])
        self._kept = [*self._kept[:1], parts]

    def compare(self, messages: Floats) -> None:
        """Tests the noises (n, d) of the last release's messages: each of them, and whether two are alike."""
        small = stats.chi2.cdf((messages**2).sum(1), messages.shape[1])
        self.take([("a message with noise that is too small", min(1.0, len(messages) * small.min()))])
        self.take([("noise that messages share", _shared(messages))])

    def compare_silos(self, noises: Floats) -> None:
        """Tests whether two of the noises (n, d) of all silos' steps in one round are alike."""
        self.take([("noise that silos share", _shared(noises))])

    def _equal_sizes(self, units: int, rate: float) -> float:
        """The p-value of cohorts that all have one size: its probability is at most that of the mode."""
        if len(set(self._sizes)) > 1:
            return 1.0
        mode = stats.binom.pmf(int((units + 1) * rate), units, rate)
        return float(mode) ** (len(self._sizes) - 1)

    def take(self, found: Iterable[tuple[str, float]]) -> None:
        """Adds the results of tests: (what each finds, its p-value)."""
        for what, p_value in found:
            self._tests += 1
            if math.isnan(p_value):  # of numbers that are not finite, which no noise is
                p_value = 0.0
            if p_value < self._least:
                self._least, self.oddest = float(p_value), f"{what}, in release {self._releases}"


def _overlap(units: int, cohort: NDArray[np.int64], drawn: NDArray[np.int64]) -> float:
    """The p-value of the overlap of two cohorts: given their sizes, all samplers draw uniformly."""
    both = len(np.intersect1d(cohort, drawn, assume_unique=True))
    return float(stats.hypergeom.sf(both - 1, units, len(drawn), len(cohort)))


def _of_block(part: Floats) -> Iterator[tuple[str, float]]:
    """(what it finds, p-value) of the tests of one block's residuals against independent standard normals."""
    count = len(part)
    yield "noise that is too small", stats.chi2.cdf(part @ part, count)
    missing = int((abs(part) < _MISSING).sum())
    yield "noise that is missing", stats.binom.sf(missing - 1, count, 2 * stats.norm.cdf(_MISSING) - 1)
    if count >= _MIN_NORMAL:
        yield "noise that all coordinates share", _two_sided(part.sum(), count)
        yield "noise that neighbours share", _two_sided(part[1:] @ part[:-1], count - 1)
        yield "noise that distant coordinates share", _repeated(part)


def _repeated(part: Floats) -> float:
    """The p-value of noise (n,) that is repeated at some distance: the largest of all its autocorrelations.

    >>> noise = np.random.default_rng(0).standard_normal(5000)
    >>> _repeated(noise) > 0.01, _repeated(np.concatenate([noise, noise[:1500]])) < 1e-9
    (True, True)
    """
    count = len(part)
    size = 1 << (2 * count - 1).bit_length()  # so that no sum runs around the end
    sums = np.fft.irfft(np.abs(np.fft.rfft(part, size)) ** 2)
    distances = np.arange(2, count - _MIN_NORMAL + 1)
    if not len(distances):
        return 1.0
    # In parts of the sum of squares, whose tails are lighter than a normal distribution's.
    scale = count / max(float(part @ part), np.finfo(np.float64).tiny)
    largest = float((np.abs(scale * sums[distances]) / np.sqrt(count - distances)).max())
    return min(1.0, 2 * len(distances) * float(stats.norm.sf(largest)))


def _shared(noises: Floats) -> float:
    """The p-value of n independent standard normal vectors (n, d) against two that have something in common.

    The squared cosine of the angle between two of them has the distribution Beta(1/2, (d - 1) / 2): an exact
    test of each pair, times their number.

    >>> noises = np.random.default_rng(0).standard_normal((40, 5))
    >>> _shared(noises) > 0.01, _shared(np.concatenate([noises, noises[3:4]])) < 1e-9
    (True, True)
    """
    count, size = noises.shape
    pairs = count * (count - 1) // 2
    if not pairs or size < 2:
        return 1.0
    lengths = np.maximum(np.linalg.norm(noises, axis=1), np.finfo(np.float64).tiny)
    cosines = np.triu((noises @ noises.T) / lengths / lengths[:, None], 1)
    nearest = min(1.0, float((cosines**2).max()))
    return float(min(1.0, pairs * stats.beta.sf(nearest, 0.5, (size - 1) / 2)))


def _two_sided(total: Any, count: int) -> float:
    """The two-sided p-value of a sum of ``count`` independent numbers with mean 0 and variance 1."""
    return float(2 * stats.norm.sf(abs(float(total)) / math.sqrt(count)))
