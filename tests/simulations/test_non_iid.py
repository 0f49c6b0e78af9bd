"""The script about steady learning on skewed clients, and its table in the README."""

from __future__ import annotations

import pytest
from helpers.scripts import SIMULATIONS, script

stability = script("non_iid/stability.py")


def test_the_readme_has_the_table_of_the_committed_results() -> None:
    assert stability.table() in (SIMULATIONS / "non_iid" / "README.md").read_text()


@pytest.mark.parametrize(
    ("scores", "fall"), [({2: 10, 4: 30, 6: 25, 8: 40}, 5), ({4: 1, 2: 3}, 2), ({2: 1, 4: 2}, 0)]
)
def test_the_largest_fall_is_from_any_earlier_score(scores: dict[int, float], fall: float) -> None:
    assert stability.largest_fall(scores) == fall
