"""DP-SGD and DP-Adam: with no noise they are the textbook rules, step for step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpriv._check import ArgumentError
from fedpriv.optimizers import PrivateOptimizer, State, dp_adam, dp_sgd

GRADIENTS = np.random.Generator(np.random.Philox(1)).standard_normal((50, 20))


def follow(optimizer: PrivateOptimizer, gradients: np.ndarray) -> torch.Tensor:
    state = optimizer.init(torch.zeros(20, dtype=torch.float64))
    for gradient in gradients:
        optimizer.query(state)
        state = optimizer.update(state, (torch.as_tensor(gradient),))
    return state.params


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch(momentum: float) -> None:
    parameter = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    for gradient in GRADIENTS:
        parameter.grad = torch.as_tensor(gradient)
        reference.step()
    mine = follow(dp_sgd(0.1, clip_norm=1.0, momentum=momentum), GRADIENTS)
    torch.testing.assert_close(mine, parameter.detach(), rtol=1e-12, atol=1e-12)


def test_adam_equals_torch() -> None:
    parameter = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adam([parameter], lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    for gradient in GRADIENTS:
        parameter.grad = torch.as_tensor(gradient)
        reference.step()
    mine = follow(dp_adam(0.1, 1.0, beta1=0.8, beta2=0.95, epsilon=1e-6), GRADIENTS)
    torch.testing.assert_close(mine, parameter.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", [dp_sgd(0.1, 1.0, 0.9), dp_adam(0.1, 1.0)])
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
    ],
)
def test_bad_values_are_named(call: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        call()  # type: ignore[operator]
