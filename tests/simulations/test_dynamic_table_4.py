"""simulations/dynamic_dp_sgd/run.py: Table 4 in the paper's setting, and its short form shows the effect."""

from __future__ import annotations

import os

import pytest
from helpers.scripts import script

from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config


@pytest.mark.parametrize("column", ["paper", "steps", "distributed"])
@pytest.mark.slow
def test_table_4_is_run_in_the_papers_setting(column: str) -> None:
    """Du et al. 2021, section 4.1 and A.9: p, delta = 1/(10 N), one image a client, GDP-CLT."""
    cells = list(script("dynamic_dp_sgd/run.py").cells(column))
    assert {cell.epsilon for cell in cells} == {0.1, 0.4, 1.0}
    for cell in cells:
        plan = make_plan(Config.parse(cell.config(seed=0)))
        assert plan.config.sampling_rate == {250_000: 1e-3, 500_000: 5e-4}[cell.clients]
        assert plan.budget is not None
        assert (plan.budget.delta, plan.budget.method) == (1 / (10 * cell.clients), "gdp-clt")
        assert (plan.config.own.rho_c > 1) == (cell.method in ("sensitivity-decay", "dynamic"))
        assert (plan.config.own.rho_mu > 1) == (cell.method in ("growing-mu", "dynamic"))
        assert plan.mechanism.placement.name == ("distributed" if column == "distributed" else "central")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs MNIST under FEDPRIV_DATA")
def test_dynamic_beats_vanilla_at_a_small_budget() -> None:
    module = script("dynamic_dp_sgd/run.py")
    accuracy = {cell.method: module.run(cell, seed)["accuracy"] for cell, seed in module.short()}
    assert accuracy["dynamic"] > accuracy["vanilla"] + 0.01
