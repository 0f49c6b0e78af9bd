"""simulations/secure_aggregation: its tables are those of its results, and its settings are runs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from helpers import scripts

from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config

FOLDER = Path(__file__).parents[2] / "simulations/secure_aggregation"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripts.script("secure_aggregation/run.py")


def test_the_tables_are_those_of_the_results(script: ModuleType) -> None:
    text = (FOLDER / "README.md").read_text()
    assert script.table() in text
    assert script.choice() in text


def test_each_cell_has_five_seeds_that_chose_nothing(script: ModuleType) -> None:
    assert not set(script.FRESH) & set(script.CHOICE)
    for method in script.METHODS:
        for epsilon in script.EPSILONS:
            runs = script._of((method, epsilon, script.chosen(method)), script.FRESH)
            assert sorted(run["seed"] for run in runs) == list(script.FRESH)
            assert all(max(run["epsilon"].values()) <= epsilon for run in runs)


def test_a_short_form_of_each_method_is_a_plan(script: ModuleType) -> None:
    for method in script.METHODS:
        settings = script.config((method, 2.0, 1.0), 1) | {"dataset": "infinite-digits"}
        plan = make_plan(Config.parse({**settings, "rounds": 1, "evaluate-every": 1, "clients": 6}))
        assert plan.budget is not None
