"""The display of a metrics record."""

from __future__ import annotations

import math

import pytest

from fedpriv.tasks.metrics import METRICS, scores, shown


@pytest.mark.parametrize(
    ("record", "key", "text"),
    [
        ({"loss": 1.0, "accuracy": 0.5}, "accuracy", "accuracy 50.00%"),
        ({"loss": 1.0, "recall@5": 0.25}, "recall@5", "recall at 5 25.00%"),
        ({"loss": 1.0, "mse": 12.34567}, "mse", "mean squared error 12.35"),
        ({"loss": 1.0, "round": 3}, "loss", "loss 1"),
        ({"mse": None}, "mse", "mean squared error -"),
    ],
)
def test_a_record_is_shown_by_its_first_measure(record: dict[str, float], key: str, text: str) -> None:
    measure = shown(record)
    assert measure.key == key
    assert measure.labelled(record[key]) == text
    assert scores(record) == {name: value for name, value in record.items() if name != "round"}


def test_axes_are_in_percent_where_scores_are_parts_of_one() -> None:
    accuracy, error = shown({}), shown({"mse": 1.0})
    assert (accuracy.axis, accuracy.limits([50, 60])) == ("test accuracy (%)", (0, 100))
    assert (error.axis, error.limits([2.0, math.nan])) == ("test mean squared error", (0, 2.2))
    assert error.limits([math.nan]) == error.limits([]) == (0, 1.1)
    assert error.limits([0.0]) == (0, 1)
    assert accuracy.heights([{"accuracy": 0.5}]) == [50]
    heights = error.heights([{"mse": 2.0}, {"mse": None}, {}])
    assert heights[0] == 2
    assert all(math.isnan(height) for height in heights[1:])
    assert len({measure.key for measure in METRICS}) == len(METRICS)
