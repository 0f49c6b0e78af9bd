"""What runs measure on the public test set, and how people are shown it.

A metrics record has a number for each measure of its task (see :meth:`fedpriv.tasks.task.Task.evaluate`); the
first of ``METRICS`` that it has is what progress, tables and curves show.

>>> shown({"loss": 0.5, "mse": 1.25}).labelled(1.25)
'mean squared error 1.25'
>>> shown({"loss": 0.5, "accuracy": 0.875}).text(0.875)
'87.50%'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number about a model on test examples.

    Attributes:
        key: its name in metrics records.
        words: its name for people.
        fraction: whether it is a part of one, shown in percent.
    """

    key: str
    words: str
    fraction: bool = False

    def text(self, value: float | None) -> str:
        """The value for people."""
        if value is None:
            return "-"
        return f"{value:.2%}" if self.fraction else f"{value:.4g}"

    def labelled(self, value: float | None) -> str:
        """The value with its name."""
        return f"{self.words} {self.text(value)}"

    @property
    def axis(self) -> str:
        """The label of a plot's axis."""
        return f"test {self.words} (%)" if self.fraction else f"test {self.words}"

    def limits(self, heights: Sequence[float]) -> tuple[float, float]:
        """The range of the axis of a plot with these heights."""
        highest = max((height for height in heights if math.isfinite(height)), default=1.0)
        return (0, 100) if self.fraction else (0, 1.1 * highest or 1.0)

    def heights(self, records: Sequence[Mapping[str, Any]]) -> list[float]:
        """The records' values as a plot has them; NaN where there is none."""
        values = (record.get(self.key) for record in records)
        return [math.nan if v is None else 100 * v if self.fraction else v for v in values]


METRICS = (
    Metric("accuracy", "accuracy", fraction=True),
    Metric("recall@5", "recall at 5", fraction=True),
    Metric("mse", "mean squared error"),
    Metric("loss", "loss"),
)


def counted(number: int, noun: str) -> str:
    """The number with its noun.

    >>> counted(1, "round"), counted(5000, "round")
    ('1 round', '5,000 rounds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown(record: Mapping[str, Any]) -> Metric:
    """The measure of a record that is shown; accuracy where there is no record."""
    return next((measure for measure in METRICS if measure.key in record), METRICS[0])


def scores(record: Mapping[str, Any]) -> dict[str, float | None]:
    """The record's measures alone."""
    return {measure.key: record[measure.key] for measure in METRICS if measure.key in record}
