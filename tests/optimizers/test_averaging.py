"""Averaging: the average is the formula's, the inner optimizer does not depend on it, and runs return it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.config.plan import make_plan
from fedpriv.optimizers import (
    METHODS,
    Adadp,
    DpSrm,
    ExponentialMovingAverage,
    PrivateOptimizer,
    State,
    adadp,
    dp_adam,
    dp_sgd,
)
from fedpriv.optimizers.schedules import Constant
from fedpriv.runs.runner import execute
from fedpriv.simulation.run import make_engine

INNER: list[PrivateOptimizer] = [dp_sgd(0.3, 1.0), dp_adam(0.1, 1.0), Adadp(0.1, 1.0, tolerance=0.5)]


def states(method: PrivateOptimizer, steps: int = 40) -> list[State]:
    """The states after each of many noisy answers, through their stored form."""
    generator = torch.Generator().manual_seed(1)
    state, seen = method.init(torch.linspace(-1, 1, 6, dtype=torch.float64)), []
    for _ in range(steps):
        answer = torch.randn(6, generator=generator, dtype=torch.float64)
        state = method.update(State.from_tensors(state.tensors(), state.step), (answer,))
        seen.append(state)
    return seen


@pytest.mark.parametrize("inner", INNER, ids=lambda inner: type(inner).__name__)
def test_the_average_is_the_formulas_and_the_inner_rule_is_untouched(inner: PrivateOptimizer) -> None:
    plain, found = states(inner), states(ExponentialMovingAverage(inner, 0.8))
    average = np.linspace(-1, 1, 6)
    for t, (one, other) in enumerate(zip(plain, found, strict=True), 1):
        assert torch.equal(one.params, other.params)
        decay = min(0.8, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * one.params.numpy()
        np.testing.assert_allclose(other.output.numpy(), average, rtol=1e-12)
        assert set(other.slots) == {*one.slots, "output"}


def test_plans_and_queries_are_those_of_the_inner_optimizer() -> None:
    inner = Adadp(0.1, 1.0)
    method = ExponentialMovingAverage(inner, 0.9)
    assert method.planned(7) == inner.planned(7)
    start = torch.zeros(3)
    assert method.query(method.init(start)).releases == inner.query(inner.init(start)).releases == 2


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, float("nan")])
def test_a_decay_is_between_0_and_1(decay: float) -> None:
    with pytest.raises(ArgumentError, match="averaging"):
        ExponentialMovingAverage(dp_sgd(0.1, 1.0), decay)


def test_what_hands_out_another_model_is_not_averaged() -> None:
    chooses = DpSrm(Constant(0.1), 1.0, 0.1, 0.5, output_step=3)
    with pytest.raises(ArgumentError, match="another model"):
        ExponentialMovingAverage(chooses, 0.9).init(torch.zeros(2))
    with pytest.raises(ArgumentError, match="srm-random-iterate"):
        make_plan(small(optimizer="dp-srm", srm_random_iterate=True, averaging=0.9))
    with pytest.raises(ArgumentError, match="level client"):
        make_plan(small(level="client", unit="example", clients=4, examples_per_client=50, averaging=0.9))


def test_a_run_hands_out_the_average_of_the_same_run() -> None:
    newest, averaged = (
        execute(plan, make_engine(plan.config))
        for plan in (make_plan(small(averaging=decay, seed=5)) for decay in (0.0, 0.9))
    )
    assert not torch.equal(newest.params, averaged.params)
    assert averaged.report["averaging"] == 0.9
    assert newest.report["averaging"] is None
    assert newest.report["privacy"]["views"] == averaged.report["privacy"]["views"]


def test_minus_1_is_what_the_optimizer_has_by_default() -> None:
    assert make_plan(small(optimizer="adadp", rounds=4)).config.averaging == METHODS["adadp"].averaging == 0.9
    assert make_plan(small(optimizer="adadp", rounds=4, averaging=0.0)).config.averaging == 0
    assert make_plan(small(optimizer="dp-sgd")).config.averaging == 0
    silos = {"level": "client", "unit": "example", "clients": 4, "examples_per_client": 50, "silo_steps": 2}
    assert make_plan(small(optimizer="adadp", **silos)).config.averaging == 0
    with pytest.raises(ArgumentError, match="it must be at least 0 and below 1, or -1"):
        make_plan(small(averaging=-0.5))


def test_an_optimizer_that_is_handed_over_averages_as_its_name_does() -> None:
    config = small(rounds=4, learning_rate=0.0)
    assert make_plan(config, optimizer=adadp(8.0, 1.0)).config.averaging == METHODS["adadp"].averaging
    assert make_plan(config, optimizer=dp_sgd(4.0, 1.0)).config.averaging == 0
