"""Plain private rules: with no noise they are the textbook rules, step for step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.trajectories import follow

from fedpriv._internal.validation import ArgumentError
from fedpriv.optimizers import (
    AdaGrad,
    AdaptiveClipping,
    FirstOrder,
    PrivateOptimizer,
    RmsProp,
    Sgd,
    State,
    Yogi,
    dp_adagrad,
    dp_adam,
    dp_rmsprop,
    dp_sgd,
    dp_yogi,
    dynamic_dp_sgd,
)
from fedpriv.optimizers.schedules import Constant

GRADIENTS = np.random.Generator(np.random.Philox(1)).standard_normal((50, 20))


def trained(optimizer: PrivateOptimizer, gradients: np.ndarray = GRADIENTS) -> torch.Tensor:
    return follow(optimizer, lambda query, t: [gradients[t]], len(gradients))[-1].params


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch(momentum: float) -> None:
    parameter = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    for gradient in GRADIENTS:
        parameter.grad = torch.as_tensor(gradient)
        reference.step()
    mine = trained(dp_sgd(0.1, clip_norm=1.0, momentum=momentum))
    torch.testing.assert_close(mine, parameter.detach(), rtol=1e-12, atol=1e-12)


def test_adam_equals_torch() -> None:
    parameter = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adam([parameter], lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    for gradient in GRADIENTS:
        parameter.grad = torch.as_tensor(gradient)
        reference.step()
    mine = trained(dp_adam(0.1, 1.0, beta1=0.8, beta2=0.95, epsilon=1e-6))
    torch.testing.assert_close(mine, parameter.detach(), rtol=1e-10, atol=1e-12)


def test_rmsprop_equals_torch() -> None:
    parameter = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.RMSprop([parameter], lr=0.1, alpha=0.8, eps=1e-3)
    for gradient in GRADIENTS:
        parameter.grad = torch.as_tensor(gradient)
        reference.step()
    mine = trained(dp_rmsprop(0.1, 1.0, beta2=0.8, epsilon=1e-3))
    torch.testing.assert_close(mine, parameter.detach(), rtol=1e-10, atol=1e-12)


def test_adagrad_equals_torch() -> None:
    parameter = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adagrad([parameter], lr=0.1, eps=1e-3)
    for gradient in GRADIENTS:
        parameter.grad = torch.as_tensor(gradient)
        reference.step()
    mine = trained(dp_adagrad(0.1, 1.0, epsilon=1e-3))
    torch.testing.assert_close(mine, parameter.detach(), rtol=1e-10, atol=1e-12)


def test_yogi_equals_its_algorithm() -> None:
    """Zaheer et al. 2018, algorithm 2; large and small gradients alternate so that v falls too."""
    gradients = GRADIENTS * np.where(np.arange(50) % 10 < 5, 3.0, 0.1)[:, None]
    theta, m, v = np.zeros((3, 20))
    falls = 0
    for g in gradients:
        m = 0.8 * m + (1 - 0.8) * g
        new = np.where(v > g * g, v - 0.05 * g * g, v + 0.05 * g * g)
        falls += int((new < v).sum())
        v = new
        theta = theta - 0.1 * m / (np.sqrt(v) + 1e-3)
    assert falls > 20
    mine = trained(dp_yogi(0.1, 1.0, beta1=0.8, beta2=0.95, epsilon=1e-3), gradients)
    np.testing.assert_allclose(mine.numpy(), theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", [RmsProp(), AdaGrad(), Yogi()])
def test_schedules_and_adaptive_clipping_go_with_any_rule(rule: RmsProp | AdaGrad | Yogi) -> None:
    """The schedule gives the query's C_t and r_t; the rule alone decides the update."""
    scheduled = dynamic_dp_sgd(rule, 0.1, 2.0, steps=10, rho_c=4.0, rho_mu=2.0)
    constant = FirstOrder(rule, scheduled.learning_rate, lambda t: 1.0)
    torch.testing.assert_close(trained(scheduled), trained(constant))
    query = scheduled.query(State(torch.zeros(20), 5, rule.slots(torch.zeros(20))))
    assert query.blocks[0].sensitivity == pytest.approx(1.0)
    assert query.relative_noise == pytest.approx(2**-0.5)
    adaptive = AdaptiveClipping(constant)
    state = adaptive.init(torch.zeros(20, dtype=torch.float64))
    for gradient in GRADIENTS:
        state = adaptive.update(state, (torch.as_tensor(gradient), torch.tensor(0.1)))
    torch.testing.assert_close(state.params, trained(constant))


@pytest.mark.parametrize(
    "optimizer",
    [
        dp_sgd(0.1, 1.0, 0.9),
        dp_adam(0.1, 1.0),
        dp_rmsprop(0.1, 1.0),
        dp_adagrad(0.1, 1.0),
        dp_yogi(0.1, 1.0),
    ],
)
def test_state_round_trips_through_its_tensors(optimizer: PrivateOptimizer) -> None:
    state = optimizer.init(torch.zeros(20))
    for gradient in GRADIENTS[:5].astype(np.float32):
        state = optimizer.update(state, (torch.as_tensor(gradient),))
    again = State.from_tensors(state.tensors(), state.step)
    last = (torch.as_tensor(GRADIENTS[5].astype(np.float32)),)
    assert torch.equal(optimizer.update(state, last).params, optimizer.update(again, last).params)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: dp_sgd(0.0, 1.0), "learning-rate"),
        (lambda: dp_sgd(0.1, -1.0), "clip-norm"),
        (lambda: dp_sgd(0.1, 1.0, momentum=1.0), "momentum"),
        (lambda: dp_adam(0.1, 1.0, beta2=1.0), "beta2"),
        (lambda: dp_adam(0.1, 1.0, epsilon=0.0), "adam-epsilon"),
        (lambda: dp_rmsprop(0.1, 1.0, beta2=-0.1), "beta2"),
        (lambda: dp_rmsprop(0.1, 1.0, epsilon=np.inf), "adam-epsilon"),
        (lambda: dp_adagrad(0.1, 1.0, epsilon=-1.0), "adam-epsilon"),
        (lambda: dp_adagrad(0.1, 0.0), "clip-norm"),
        (lambda: dp_yogi(0.1, 1.0, beta1=1.0), "beta1"),
        (lambda: dp_yogi(0.1, 1.0, epsilon=0.0), "adam-epsilon"),
        (lambda: FirstOrder(Sgd(), Constant(np.inf), Constant(1.0)), "learning-rate is inf"),
        (lambda: FirstOrder(Sgd(), Constant(0.1), Constant(0.0)), "clip-norm is 0.0"),
        (lambda: FirstOrder(Sgd(), Constant(0.1), Constant(1.0), Constant(-1.0)), "relative-noise is -1.0"),
    ],
)
def test_bad_values_are_named(call: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        call()  # type: ignore[operator]
