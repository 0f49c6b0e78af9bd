"""Regularisers: their gradients, the textbook rule on loss plus R, and what they leave alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.small import small
from helpers.toys import CountingGate, RowsEngine, noise_free, world

from fedpriv._internal.validation import ArgumentError
from fedpriv.config.plan import make_plan
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers import (
    L2,
    AdaClip,
    AdaptiveClipping,
    Dp2,
    DpSrm,
    NoisyAdaGrad,
    Nonconvex,
    PrivateOptimizer,
    Regularised,
    Regulariser,
    dp_adam,
    dp_sgd,
)
from fedpriv.optimizers.schedules import Constant
from fedpriv.rng import Key

LAMBDA, STEPS, RATE, D = 0.3, 25, 0.2, 20
KEY = Key.from_seed(3)
START = torch.linspace(-2, 2, D, dtype=torch.float64)
KINDS: list[Regulariser] = [L2(LAMBDA), Nonconvex(LAMBDA)]


def value(regulariser: Regulariser, theta: torch.Tensor) -> torch.Tensor:
    """R as the papers print it."""
    square = theta * theta
    if isinstance(regulariser, L2):
        return LAMBDA / 2 * square.sum()
    return LAMBDA * (square / (1 + square)).sum()


@pytest.mark.parametrize("regulariser", KINDS)
def test_gradients_are_those_of_the_printed_functions(regulariser: Regulariser) -> None:
    theta = torch.tensor([0.0, 0.5, -1.0, 3.0, 1e4], dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(value(regulariser, theta), theta)[0]
    torch.testing.assert_close(regulariser.gradient(theta.detach()), wanted, rtol=1e-10, atol=1e-14)
    assert bool(torch.isfinite(Nonconvex(1.0).gradient(torch.tensor([1e30, -1e20]))).all())


def end_of(optimizer: PrivateOptimizer, engine: RowsEngine) -> torch.Tensor:
    mechanism = noise_free(optimizer, STEPS)
    cohorts = CohortSampler(mechanism.sampler, KEY, 100)
    return run(mechanism, START, engine, CountingGate(), KEY, cohorts).state.params


@pytest.mark.parametrize("regulariser", KINDS)
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_it_is_the_textbook_rule_on_loss_plus_regulariser(rule: str, regulariser: Regulariser) -> None:
    rows = world(1)
    theta = START.clone().requires_grad_()
    plain = torch.optim.SGD([theta], lr=RATE) if rule == "sgd" else torch.optim.Adam([theta], lr=RATE)
    for _ in range(STEPS):
        plain.zero_grad()
        (0.5 * (theta - rows).square().sum(1).mean() + value(regulariser, theta)).backward()
        plain.step()
    inner = dp_sgd(RATE, math.inf) if rule == "sgd" else dp_adam(RATE, math.inf)
    end = end_of(Regularised(inner, regulariser), RowsEngine(rows))
    torch.testing.assert_close(end, theta.detach(), rtol=1e-9, atol=1e-10)
    assert not torch.allclose(end, end_of(inner, RowsEngine(rows)))


def test_the_recursive_estimate_carries_the_regularisers_exact_gradient() -> None:
    """STORM on loss + R: v_t = g_t + R'_t + (1 - gamma) (v_{t-1} - g_{t-1} - R'_{t-1})."""
    rows, regulariser, gamma = world(1), Nonconvex(LAMBDA), 0.25
    theta = old = v = START
    for t in range(STEPS):
        g, h = (p - rows.mean(0) + regulariser.gradient(p) for p in (theta, old))
        v = g + (1 - gamma) * (v - h) if t else g
        old, theta = theta, theta - RATE * v
    inner = DpSrm(Constant(RATE), math.inf, math.inf, gamma)
    end = end_of(Regularised(inner, regulariser), RowsEngine(rows))
    torch.testing.assert_close(end, theta, rtol=1e-9, atol=1e-10)


def test_preconditioned_steps_precondition_the_regulariser_too() -> None:
    """Li's algorithm 1 with g + R' for g, in numpy."""
    rows, s_1, s_2, epsilon, beta = world(1).numpy(), 3, 2, 0.1, 0.9
    theta, total, v = START.numpy(), np.zeros(D), np.zeros(D)
    for t in range(STEPS):
        place = t % (s_1 + s_2)
        g = theta - rows.mean(0) + LAMBDA * theta
        if place == 0:
            total = np.zeros(D)
        if place == s_1:
            v = beta * v + (1 - beta) * (total / s_1) ** 2
        if place < s_1:
            total = total + g
            theta = theta - RATE * g
        else:
            theta = theta - 0.05 * g / (np.sqrt(v) + epsilon)
    rates = (Constant(RATE), Constant(0.05))
    inner = Dp2("rmsprop", *rates, math.inf, math.inf, s_1, s_2, epsilon=epsilon, beta=beta)
    end = end_of(Regularised(inner, L2(LAMBDA)), RowsEngine(torch.as_tensor(rows)))
    np.testing.assert_allclose(end.numpy(), theta, rtol=1e-9, atol=1e-10)


def test_a_running_mean_is_subtracted_once() -> None:
    """AdaClip without clipping and noise is gradient descent on loss + R, whatever its running mean is."""
    rows, theta = world(1), START
    for _ in range(STEPS):
        theta = theta - RATE * (theta - rows.mean(0) + LAMBDA * theta)
    inner = AdaClip(dp_sgd(RATE, math.inf), 1e-2, 1e2)
    end = end_of(Regularised(inner, L2(LAMBDA)), RowsEngine(rows))
    torch.testing.assert_close(end, theta, rtol=1e-9, atol=1e-10)


def test_squares_are_those_of_the_mean_loss() -> None:
    inner = NoisyAdaGrad(
        Constant(RATE), 1.0, 1.0, lambda params, step: torch.eye(D).double(), rank=D, epsilon=1.0
    )
    state, answer = inner.init(START), (torch.zeros(D).double(), torch.ones(D).double())
    plain, shaped = inner.update(state, answer), Regularised(inner, L2(LAMBDA)).update(state, answer)
    torch.testing.assert_close(shaped.slots["second"], plain.slots["second"])
    torch.testing.assert_close(shaped.params, START - RATE * LAMBDA * START / 2)


def test_it_is_outside_the_clip_and_the_noise() -> None:
    """Under clipping and noise the step differs from the inner one by eta grad R and nothing else."""
    inner, regulariser = dp_sgd(RATE, 0.5), Nonconvex(LAMBDA)
    ends = {}
    for name, method in (("inner", inner), ("regularised", Regularised(inner, regulariser))):
        mechanism = Mechanism(method, Poisson(40, 0.3), Central(), 0.7, 1)
        budget_gate, cohorts = CountingGate(), CohortSampler(mechanism.sampler, KEY, 7)
        state = run(mechanism, START, RowsEngine(100 * world(1)), budget_gate, KEY, cohorts).state
        ends[name] = state.params
        assert tuple(budget_gate.charged) == mechanism.planned_events()
        assert method.query(state) == inner.query(state)
    wanted = ends["inner"] - RATE * regulariser.gradient(START)
    torch.testing.assert_close(ends["regularised"], wanted, rtol=1e-12, atol=1e-12)


def test_released_bits_get_nothing() -> None:
    method = AdaptiveClipping(dp_sgd(RATE, 1.0))
    state = method.init(START)
    answer = (torch.zeros(D, dtype=torch.float64), torch.tensor(0.25, dtype=torch.float64))
    plain = method.update(state, answer)
    shaped = Regularised(method, L2(LAMBDA)).update(state, answer)
    for name, slot in plain.slots.items():
        assert torch.equal(slot, shaped.slots[name])
    torch.testing.assert_close(shaped.params, plain.params - RATE * LAMBDA * START)


@pytest.mark.parametrize("strength", [0.0, -1.0, math.inf])
def test_strengths_out_of_range_are_named(strength: float) -> None:
    for kind in (L2, Nonconvex):
        with pytest.raises(ArgumentError, match="regularisation"):
            kind(strength)


def test_the_configuration_wraps_any_optimizer() -> None:
    plan = make_plan(small(regulariser="nonconvex", regularisation=0.01))
    assert isinstance(plan.mechanism.optimizer, Regularised)
    assert plan.mechanism.optimizer.regulariser == Nonconvex(0.01)
    assert plan.mechanism.planned_events() == make_plan(small()).mechanism.planned_events()
    plain = make_plan(small(regulariser="l2", placement="none")).mechanism.optimizer
    assert isinstance(plain, Regularised)
    assert plain.regulariser == L2(0.001)
    corrected = make_plan(small(optimizer="dp2-yogi", dp2_noise_correction=True, regulariser="l2"))
    assert isinstance(corrected.mechanism.optimizer, Regularised)
    assert corrected.mechanism.optimizer.inner.noise_std > 0  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"regularisation is 0\.5, which needs a regulariser"):
        make_plan(small(regularisation=0.5))
    with pytest.raises(ArgumentError, match="regulariser is 'l2'; it must be none with optimizer pda-dpmd"):
        make_plan(small(regulariser="l2", optimizer="pda-dpmd", public_examples=20))
    several = {"work": "local-steps", "partition": "iid", "examples_per_client": 4, "clients": 200}
    with pytest.raises(ArgumentError, match="it must be none with work local-steps"):
        make_plan(small(regulariser="l2", **several))
