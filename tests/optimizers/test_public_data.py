"""AdaDPS and PDA-DPMD as straight-line numpy, and public data that stays public."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.toys import CountingGate, RowsEngine, world

from fedpriv._internal.validation import ArgumentError
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.release import SERVER
from fedpriv.mechanism.sampling import Everyone
from fedpriv.optimizers import AdaDps, PdaDpmd, PrivateOptimizer
from fedpriv.optimizers.schedules import Constant
from fedpriv.rng import Key

KEY, ROUNDS, ETA, CLIP, Z = Key.from_seed(2), 12, 0.2, 0.7, 0.5
START = torch.zeros(20, dtype=torch.float64)
TARGET = np.linspace(-3, 3, 20)


def public(theta: torch.Tensor, step: int) -> torch.Tensor:
    return (1 + 0.1 * step) * (theta - torch.as_tensor(TARGET))


def trained(optimizer: PrivateOptimizer, rows: torch.Tensor) -> np.ndarray:
    mechanism = Mechanism(optimizer, Everyone(40), Central(), Z, ROUNDS)
    cohorts = CohortSampler(mechanism.sampler, KEY, 40)
    return run(mechanism, START, RowsEngine(rows), CountingGate(), KEY, cohorts).state.params.numpy()


def straight_line(
    rows: np.ndarray, divisor: Callable[[np.ndarray], np.ndarray], step: Callable[..., np.ndarray]
) -> np.ndarray:
    """theta_{t+1} = step(t, theta, (sum of clip(gradient / A) + Z C noise) / N)."""
    theta = np.zeros(20)
    for t in range(ROUNDS):
        ghat = (1 + 0.1 * t) * (theta - TARGET)
        gradients = (theta - rows) / divisor(ghat)
        factors = np.minimum(1, CLIP / np.linalg.norm(gradients, axis=1, keepdims=True))
        noise = Normals(KEY, (SERVER, t), [START]).take()[0].numpy()
        theta = step(t, theta, ((gradients * factors).sum(0) + Z * CLIP * noise) / 40, ghat)
    return theta


def test_adadps_is_its_algorithm() -> None:
    beta, epsilon, rows = 0.8, 0.01, world(1)
    v = np.zeros(20)

    def divisor(ghat: np.ndarray) -> np.ndarray:
        nonlocal v
        v = beta * v + (1 - beta) * ghat**2
        return np.sqrt(v) + epsilon

    expected = straight_line(rows.numpy(), divisor, lambda t, theta, y, ghat: theta - ETA * y)
    found = trained(AdaDps(Constant(ETA), CLIP, public, epsilon, beta), rows)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("horizon", [ROUNDS, 5])
def test_pda_dpmd_is_its_update(horizon: int) -> None:
    rows = world(1)

    def step(t: int, theta: np.ndarray, y: np.ndarray, ghat: np.ndarray) -> np.ndarray:
        alpha = math.cos(math.pi * t / (2 * horizon)) if t < horizon else 0.0
        return theta - ETA * (alpha * y + (1 - alpha) * ghat)

    expected = straight_line(rows.numpy(), lambda ghat: np.ones(20), step)
    assert trained(PdaDpmd(Constant(ETA), CLIP, public, horizon), rows) == pytest.approx(expected, rel=1e-9)


def test_the_first_private_step_is_private_alone_and_the_last_public_alone() -> None:
    method = PdaDpmd(Constant(1.0), CLIP, public, horizon=1)
    state = method.update(method.init(START), (torch.ones(20, dtype=torch.float64),))
    assert torch.equal(state.params, START - 1)
    after = method.update(state, (torch.full((20,), math.pi, dtype=torch.float64),))
    torch.testing.assert_close(after.params, state.params - public(state.params, 1))


def test_public_statistics_are_a_fixed_preconditioner() -> None:
    statistics = torch.arange(1.0, 21.0, dtype=torch.float64)
    method = AdaDps(Constant(ETA), CLIP, lambda params, step: -statistics, epsilon=0.5, beta=0.0)
    state = method.init(START)
    for _ in range(3):
        divisor = method.query(state).blocks[0].terms[0].divisor  # type: ignore[union-attr]
        assert divisor is not None
        torch.testing.assert_close(divisor, statistics + 0.5)
        state = method.update(state, (torch.ones(20, dtype=torch.float64),))


def test_each_step_asks_the_public_function_once_and_of_noisy_parameters() -> None:
    """AdaDPS at w^0..w^T, PDA-DPMD at theta_0..theta_{T-1}: neither sees a row."""
    for make, count in (
        (lambda p: AdaDps(Constant(ETA), CLIP, p), ROUNDS + 1),
        (lambda p: PdaDpmd(Constant(ETA), CLIP, p, ROUNDS), ROUNDS),
    ):
        asked: list[int] = []

        def recorded(theta: torch.Tensor, step: int, asked: list[int] = asked) -> torch.Tensor:
            assert theta.shape == (20,)
            asked.append(step)
            return public(theta, step)

        trained(make(recorded), world(1))
        assert asked == list(range(count))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: AdaDps(Constant(1.0), 0.0, public), "clip-norm is 0.0"),
        (lambda: AdaDps(Constant(1.0), 1.0, public, epsilon=0.0), "adadps-epsilon is 0.0"),
        (lambda: AdaDps(Constant(1.0), 1.0, public, beta=1.0), "adadps-beta is 1.0"),
        (lambda: PdaDpmd(Constant(1.0), 0.0, public, 3), "clip-norm is 0.0"),
        (lambda: PdaDpmd(Constant(1.0), 1.0, public, 0), "pda-horizon is 0"),
    ],
)
def test_bad_values_are_named(make: Callable[[], object], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        make()
