"""simulations/dp2_movielens: the paper's setting, and what is learned from MovieLens-100k."""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from helpers.scripts import script

from fedpriv.accounting import epsilon

needs_ratings = pytest.mark.skipif(
    not os.environ.get("FEDPRIV_DATA"), reason="needs MovieLens-100k under FEDPRIV_DATA"
)


@pytest.fixture(scope="module")
def movielens() -> ModuleType:
    return script("dp2_movielens/run.py")


@needs_ratings
@pytest.mark.data
@pytest.mark.slow
def test_the_published_settings_are_run(movielens: ModuleType) -> None:
    """Li 2023, C.2 and Table 2: 50 epochs of 1,250 cohorts of 64, sigma 0.5, delta 1e-6, one switch."""
    from batches import make_plan

    assert {made.config["rounds"] for made in movielens.PUBLISHED} == {50 * 1250}
    plan = make_plan(movielens.PUBLISHED[2], seed=0)
    assert plan.mechanism.sampler.expected_size == pytest.approx(64)
    assert (plan.mechanism.scale, plan.config.delta) == (0.5, 1e-6)
    assert plan.mechanism.optimizer.sgd_steps == plan.mechanism.optimizer.adaptive_steps == 31_250


@needs_ratings
@pytest.mark.data
@pytest.mark.slow
def test_all_methods_have_one_budget(movielens: ModuleType) -> None:
    """The extra query's noise is larger, by nearly the square root of 2: it answers twice in most steps."""
    from batches import make_plan

    cells = [movielens.PUBLISHED[2], *(few[0] for few in movielens.ABLATIONS.values())]
    plans = {made.method: make_plan(made, 0) for made in cells}
    for plan in plans.values():
        spent = epsilon(plan.mechanism.planned_events(), 1e-6).epsilon
        assert spent == pytest.approx(movielens.budget(62_500), rel=2e-3)
        assert spent <= plan.budget.epsilon
    scale = plans.pop(movielens.EXTRA).mechanism.scale
    assert scale == pytest.approx(0.5 * 2**0.5, rel=0.01)
    assert {plan.mechanism.scale for plan in plans.values()} == {0.5}


@needs_ratings
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.data
def test_five_private_epochs_are_better_than_always_predicting_the_mean(movielens: ModuleType) -> None:
    """The test ratings' variance is 1.27."""
    from batches import run

    made = movielens.OURS[-1]
    assert made.method == "DP2-RMSProp"
    assert run(made, 0)["mse"] < 1.15


@needs_ratings
@pytest.mark.slow
@pytest.mark.data
def test_the_preconditioned_half_gains_on_dp_sgd(movielens: ModuleType) -> None:
    """Table 1 in small: 800 steps, the second half preconditioned, against DP-SGD of the same step size.

    Gradients are clipped, and no noise is added, which so few steps could not bear.
    """
    from batches import run

    def mse(published: Any, **changes: Any) -> float:
        short = {"rounds": 800, "evaluate-every": 800, "learning-rate": 5.0, "placement": "none"}
        config = {**published.config, **short, **changes}
        return float(run(replace(published, config=config, noise_multiplier=None), 0)["mse"])

    delay = {"dp2-sgd-steps": 400, "dp2-adaptive-steps": 400, "dp2-adaptive-learning-rate": 2.0}
    dp_sgd, _, dp2 = movielens.PUBLISHED[:3]
    assert mse(dp2, **delay) < mse(dp_sgd) - 0.2
