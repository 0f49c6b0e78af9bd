"""Adaptive methods with several local steps: step sizes follow from the noise, momentum from the rounds."""

from __future__ import annotations

import statistics

import pytest
import torch
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config

ADAPTIVE = {"dp-adam": 0.01, "dp-rmsprop": 0.005, "dp-adagrad": 0.1, "dp-yogi": 0.02}
ALL = {**ADAPTIVE, **{f"dynamic-{name}": rate for name, rate in ADAPTIVE.items()}, "adaptive-adp-sgd": 20.0}
LOCAL = {"work": "local-steps", "local_steps": 3, "partition": "iid", "examples_per_client": 4}


def plan_of(**changes: object) -> Plan:
    """A run of logistic regression, of 7,850 parameters, whose step size is its method's own."""
    return make_plan(small(**{"learning_rate": 0.0, "rounds": 12, **changes}))


def moved(plan: Plan) -> list[float]:
    """How far each step moves a coordinate, over the answer, whose coordinates are its noise's std."""
    optimizer, cohort = plan.mechanism.optimizer, plan.mechanism.sampler.expected_size
    state, found = optimizer.init(torch.zeros(7850, dtype=torch.float64)), []
    for event in plan.mechanism.planned_events():
        [block] = optimizer.query(state).blocks
        std = event.noise_multiplier * block.sensitivity / cohort
        after = optimizer.update(state, (torch.full_like(state.params, std),))
        found.append(float((state.params - after.params)[0]) / std)
        state = after
    return found


@pytest.mark.parametrize("optimizer", ALL)
def test_on_answers_as_large_as_their_noise_the_mean_step_is_plain_averaging(optimizer: str) -> None:
    factors = moved(plan_of(optimizer=optimizer, **LOCAL))
    assert len(factors) == 12
    assert statistics.mean(factors) == pytest.approx(1, rel=1e-6)


def test_the_step_size_follows_the_noise_and_the_cohort() -> None:
    few, more, sure = (
        plan_of(optimizer="dp-adam", **LOCAL, **changes).config.learning_rate
        for changes in ({}, {"sampling_rate": 0.4}, {"epsilon": 30.0})
    )
    assert few > 1.5 * more
    assert few > 1.5 * sure


@pytest.mark.parametrize("optimizer", ALL)
def test_elsewhere_it_is_the_method_s_own_number(optimizer: str) -> None:
    assert plan_of(optimizer=optimizer).config.learning_rate == ALL[optimizer]
    assert plan_of(optimizer=optimizer, placement="none", **LOCAL).config.learning_rate == ALL[optimizer]


def test_a_step_size_that_is_given_stays_and_a_plan_is_that_of_its_own_settings() -> None:
    assert plan_of(optimizer="dp-adam", learning_rate=0.3, **LOCAL).config.learning_rate == 0.3
    plan = plan_of(optimizer="adaptive-adp-sgd", **LOCAL)
    assert make_plan(Config.parse(plan.config.table())) == plan


@pytest.mark.parametrize(("rounds", "beta1"), [(10, 0.0), (30, 0.5), (150, 0.9), (1000, 0.9)])
def test_momentum_remembers_a_fifteenth_of_a_run_with_local_steps(rounds: int, beta1: float) -> None:
    config = small(optimizer="dp-yogi", rounds=rounds)
    assert config.resolved().beta1 == 0.9
    assert config.changed(work="local-steps", local_steps=3).resolved().beta1 == pytest.approx(beta1)
    assert config.changed(work="local-steps", local_steps=3, beta1=0.8).resolved().beta1 == 0.8
    with pytest.raises(ArgumentError, match=r"beta1 is -0.5; it must lie in \[0, 1\)"):
        make_plan(config.changed(beta1=-0.5))
