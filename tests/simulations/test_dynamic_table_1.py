"""simulations/dynamic_dp_sgd/table_1.py: the paper's setting, and the sign of the effect on digits."""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType

import pytest
from helpers.scripts import script

needs_mnist = pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs MNIST under FEDPRIV_DATA")


@pytest.fixture(scope="module")
def table_1() -> ModuleType:
    return script("dynamic_dp_sgd/table_1.py")


def on_digits(table_1: ModuleType, method: str, seed: int) -> float:
    """The accuracy at epsilon 0.5 after 200 steps on the bundled digits, without any data file."""
    from batches import run

    made = table_1.cell("short", method, 0.5, 200, 4.0, 1.0, 4.0, 1.25, rate=0.1)
    plain = {"dataset": "digits", "model": "logistic", "input-mean": 0.0, "input-std": 1.0}
    return float(run(replace(made, config=made.config | plain), seed)["accuracy"])


@pytest.mark.slow
def test_dynamic_beats_vanilla_at_a_small_budget(table_1: ModuleType) -> None:
    assert on_digits(table_1, "dynamic", seed=0) > on_digits(table_1, "vanilla", seed=0) + 0.05


@needs_mnist
@pytest.mark.slow
@pytest.mark.data
def test_table_1_is_run_in_the_papers_setting(table_1: ModuleType) -> None:
    """Du et al. 2021, section 4.1 and A.9: p = 250/60000, delta = 1/(10 N), GDP-CLT; and again by PLD."""
    from batches import make_plan

    seen = set()
    for made in table_1.table_cells():
        if made.method != "dynamic":
            continue
        plan = make_plan(made, seed=0)
        assert plan.config.sampling_rate * plan.units == pytest.approx(250)
        assert plan.budget.delta == pytest.approx(1 / 600_000)
        assert plan.budget.method == ("pld" if made.part == "certified" else "gdp-clt")
        seen.add((made.part, plan.budget.epsilon))
    assert seen == {(part, epsilon) for part in ("table", "certified") for epsilon in (0.4, 0.6, 1.2)}


@needs_mnist
@pytest.mark.slow
@pytest.mark.data
def test_dynamic_reaches_the_papers_figure(table_1: ModuleType) -> None:
    from batches import run

    made = next(made for made in table_1.table_cells() if made.method == "dynamic")
    assert (made.part, made.config["epsilon"]) == ("table", 0.4)
    assert run(made, 0)["accuracy"] > 0.9435
