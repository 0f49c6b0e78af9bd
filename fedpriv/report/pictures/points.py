"""Points of pictures: the mean of repetitions, and its 95 % confidence interval by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.report.sweep_results import Ended
from fedpriv.tasks.metrics import Metric

_COVERAGE = 0.95


@dataclass(frozen=True)
class Point:
    """The repetitions of one method at one place; the mean is NaN where one of them diverged."""

    at: float | None
    mean: float
    half: float  # of the interval; 0 for one run
    runs: int
    highest: float = math.inf  # that a score can be

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the interval, as far as scores reach; NaN where the mean is NaN."""
        return max(self.mean - self.half, 0.0), min(self.mean + self.half, self.highest)

    @property
    def beyond(self) -> bool:
        """Whether Student's interval reaches beyond what a score can be."""
        return self.mean - self.half < 0 or self.mean + self.half > self.highest

    @classmethod
    def of(cls, at: float | None, cells: Sequence[Ended]) -> Point:
        """The point of the last scores of these cells."""
        records = [cell.run.metrics[-1] for cell in cells]
        return cls.of_records(at, cells[0].measure, records)

    @classmethod
    def of_records(cls, at: float | None, measure: Metric, records: Sequence[Mapping[str, Any]]) -> Point:
        """The point of these scores."""
        values = measure.heights(records)
        return cls(at, *interval(values), len(values), 100.0 if measure.fraction else math.inf)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(the mean, half the width of its 95 % confidence interval by Student's t); 0 for one value.

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)  # 4.303 / sqrt(3)
    (2.0, 2.484)
    """
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2 or math.isnan(mean):
        return mean, 0.0
    quantile = float(t.ppf((1 + _COVERAGE) / 2, len(values) - 1))
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))
