"""simulations/dynamic_dp_sgd/table_3.py: the paper's setting, and the sign of the effect on NAME."""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType

import pytest
from helpers.scripts import script

needs_names = pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs NAME under FEDPRIV_DATA")


@pytest.fixture(scope="module")
def table_3() -> ModuleType:
    return script("dynamic_dp_sgd/table_3.py")


@needs_names
@pytest.mark.slow
@pytest.mark.data
def test_table_3_is_run_in_the_papers_setting(table_3: ModuleType) -> None:
    """Du et al. 2021, A.9: an LSTM, 50 epochs, step size 2, C_0 = 1.5, noise by GDP-CLT; and again by PLD."""
    from batches import make_plan

    seen = set()
    for made in table_3.table_cells():
        if made.method == "dynamic":
            plan = make_plan(made, seed=0)
            drawn = plan.mechanism.sampler.expected_size * plan.mechanism.rounds
            assert drawn == pytest.approx(50 * 16_059, rel=1e-3)
            assert (plan.config.model, plan.config.learning_rate, plan.config.clip_norm) == ("lstm", 2.0, 1.5)
            seen.add((plan.budget.method, plan.budget.epsilon))
    assert seen == {(method, epsilon) for method in ("gdp-clt", "pld") for epsilon in (1.0, 2.0, 4.0, 8.0)}


@needs_names
@pytest.mark.slow
@pytest.mark.data
def test_dynamic_beats_vanilla_at_a_small_budget(table_3: ModuleType) -> None:
    """100 steps of a network without recurrence, at a small budget."""
    from batches import run

    def accuracy(method: str) -> float:
        made = table_3.cell(method, 0.05)
        short = {"model": "mlp-text", "rounds": 100, "evaluate-every": 100}
        return float(run(replace(made, config=made.config | short), 0)["accuracy"])

    assert accuracy("dynamic") > accuracy("vanilla") + 0.02
