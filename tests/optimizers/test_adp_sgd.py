"""Wu et al. 2021: straight-line runs of algorithm 1, DP-SGD to the bit, and the predicted gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.toys import CountingGate, RowsEngine, noise_free, world
from helpers.trajectories import follow, iterates

from fedpriv._internal.validation import ArgumentError
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import Query
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers import (
    AdaptiveAdpSgd,
    FirstOrder,
    Polynomial,
    PrivateOptimizer,
    Restarting,
    Sgd,
    adaptive_adp_sgd,
    adp_sgd,
    dp_sgd,
    predicted_gain,
)
from fedpriv.optimizers.schedules import Constant, Given
from fedpriv.rng import Key

T, ETA, C, SIGMA, A, GROWTH = 50, 0.3, 1.5, 0.8, 20.0, 2.0
GRADIENTS, NOISE = np.random.Generator(np.random.Philox(11)).standard_normal((2, T, 20))
SIZES = np.where(np.arange(T) % 10 < 3, 1e-4, 1.0)  # some gradients are tiny, so that nu is the larger term
KEY = Key.from_seed(3)


def noisy_answer(query: Query, t: int) -> list[np.ndarray]:
    """The noisy answer of one unit a step."""
    std = query.noise_stds(SIGMA * query.relative_noise)[0]
    g = SIZES[t] * GRADIENTS[t]
    g = g * min(1.0, query.blocks[0].sensitivity / np.linalg.norm(g))
    return [g + std * SIZES[t] * NOISE[t]]


def clipped(t: int) -> np.ndarray:
    g = SIZES[t] * GRADIENTS[t]
    norm = math.sqrt(sum(float(x) ** 2 for x in g))
    return g if norm <= C else g * C / norm


def test_polynomial_steps_equal_a_transcription() -> None:
    """Algorithm 1 with b_t = sqrt(a + c t) and alpha_t^2 = b_t (section 5.1)."""
    theta = np.zeros(20)
    expected = []
    for t in range(T):
        b_next = (A + GROWTH * (t + 1)) ** 0.5  # line 4
        alpha_next = b_next**0.5  # line 5
        c_t = SIGMA * C * SIZES[t] * NOISE[t]  # line 3
        released = ETA / b_next * (clipped(t) + alpha_next * c_t)  # line 6
        theta = theta - released  # line 7
        expected.append(theta)
    mine = iterates(follow(adp_sgd(ETA, C, Polynomial(A, GROWTH)), noisy_answer, T))
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-12)


def test_adaptive_steps_equal_a_transcription() -> None:
    """Algorithm 1 with section 6's b (on the private gradient) and proposition 5.2's alpha."""
    nu, c_alpha, b_0 = 1e-2, 0.5, math.sqrt(20.0)
    theta, b = np.zeros(20), b_0
    expected, floors = [], 0
    for t in range(T):
        alpha_next = (b_0**2 + (t + 1) * c_alpha) ** 0.25
        y = clipped(t) + alpha_next * SIGMA * C * SIZES[t] * NOISE[t]
        beta_t = max(4.0 / ((t % 7) + 1), 1.0)
        square = beta_t * float((y * y).sum())
        floors += square < nu
        b = math.sqrt(b * b + max(square, nu))
        theta = theta - ETA / b * y
        expected.append(theta)
    assert 0 < floors < T
    method = adaptive_adp_sgd(ETA, C, b_0, c_alpha, nu, Restarting(4.0, 7))
    mine = iterates(follow(method, noisy_answer, T))
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-12)


def trained(optimizer: PrivateOptimizer) -> torch.Tensor:
    mechanism = Mechanism(optimizer, Poisson(40, 0.3), Central(), 0.8, 25)
    start = torch.zeros(20, dtype=torch.float64)
    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    return run(mechanism, start, RowsEngine(world(1)), CountingGate(), KEY, cohorts).state.params


def test_alpha_one_is_dp_sgd_to_the_bit() -> None:
    """Same cohorts, same noise: with alpha = 1 and b = 1, and with a step size that decays."""
    plain = adp_sgd(0.2, C, Constant(1.0), alpha=Constant(1.0))
    assert torch.equal(trained(plain), trained(dp_sgd(0.2, C)))
    assert plain.planned(9) == dp_sgd(0.2, C).planned(9)
    rates = Given.of("learning-rate", [0.2 / math.sqrt(20 + t + 1) for t in range(25)])
    decaying = FirstOrder(Sgd(), rates, Constant(C))
    mine = adp_sgd(0.2, C, Polynomial(20.0, 1.0), alpha=Constant(1.0))
    assert torch.equal(trained(mine), trained(decaying))
    assert not torch.equal(trained(adp_sgd(0.2, C, Polynomial(20.0, 1.0))), trained(decaying))


def test_without_noise_and_clipping_it_is_the_adaptive_gradient_method() -> None:
    """Ward et al. 2019: b_{t+1}^2 = b_t^2 + norm(g)^2, theta -= eta / b_{t+1} g."""
    rows = world(1)
    method = AdaptiveAdpSgd(2.0, math.inf, b_0=0.1, relative_noise=Constant(1.0), nu=1e-9)
    mechanism = noise_free(method, 30)
    start = torch.zeros(20, dtype=torch.float64)
    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    end = run(mechanism, start, RowsEngine(rows), CountingGate(), KEY, cohorts).state.params
    theta, square = start.clone(), 0.01
    for _ in range(30):
        g = theta - rows.mean(0)
        square += float(g @ g)
        theta = theta - 2.0 / math.sqrt(square) * g
    torch.testing.assert_close(end, theta, rtol=1e-9, atol=1e-12)


def test_the_noise_is_fixed_before_the_run() -> None:
    """Whatever is answered, step t asks with alpha_{t+1} of proposition 5.2."""
    method = adaptive_adp_sgd(ETA, C, b_0=2.0, c_alpha=0.5)
    expected = [(4.0 + 0.5 * (t + 1)) ** 0.25 for t in range(6)]
    for size in (0.0, 1e6):
        state = method.init(torch.zeros(3))
        asked = []
        for _ in range(6):
            asked.append(method.query(state).relative_noise)
            state = method.update(state, (torch.full((3,), size),))
        assert asked == pytest.approx(expected)
    assert [planned.relative_noise for planned in method.planned(6)] == pytest.approx(expected)


def test_predicted_gain_is_the_ratio_of_remark_4_1() -> None:
    """M({alpha}, {b}) at alpha = 1 and at alpha^2 = b, by theorem 4.2's definition; it grows with T."""
    b = np.sqrt(20.0 + np.arange(1, 11_701))

    def m(alpha: np.ndarray) -> float:
        return float(((alpha / b) ** 2).sum() * (1 / alpha**2).sum())

    gain = predicted_gain(Polynomial(20.0, 1.0), 11_700)
    assert gain == pytest.approx(m(np.ones_like(b)) / m(np.sqrt(b)))
    assert m(np.sqrt(b)) < min(m(np.ones_like(b)), m(b), m(b**0.25))
    assert predicted_gain(Constant(3.0), 100) == pytest.approx(1.0)
    # 60, 120 and 200 epochs of 195 steps, as in table 1.
    gains = [predicted_gain(Polynomial(20.0, 1.0), epochs * 195) for epochs in (60, 120, 200)]
    assert gains == sorted(gains)
    assert all(1.7 <= g <= 2.1 for g in gains)


def test_restarting_weights_fall_in_each_epoch_and_start_anew() -> None:
    beta = Restarting(512.0, 195)
    assert [beta(t) for t in (0, 1, 194, 195, 196)] == [512, 256, 512 / 195, 512, 256]
    assert Restarting(2.0, 195)(3) == 1.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: adp_sgd(0.0, C, Polynomial(A)), "learning-rate"),
        (lambda: adp_sgd(ETA, 0.0, Polynomial(A)), "clip-norm"),
        (lambda: adp_sgd(ETA, C, Constant(0.0)), "b is"),
        (lambda: Polynomial(0.0), "a is"),
        (lambda: Polynomial(1.0, -1.0), "c is"),
        (lambda: Polynomial(1.0, math.inf), "c is"),
        (lambda: Restarting(0.0, 195), "beta"),
        (lambda: Restarting(1.0, 0), "period"),
        (lambda: adaptive_adp_sgd(ETA, C, 0.0, 0.5), "b-0"),
        (lambda: adaptive_adp_sgd(ETA, C, 1.0, 0.5, nu=0.0), "nu"),
        (lambda: adaptive_adp_sgd(ETA, C, 1.0, C**2 + 0.1), "c-alpha"),
        (lambda: adaptive_adp_sgd(ETA, C, 1.0, 1e-6), "c-alpha"),
        (lambda: predicted_gain(Constant(1.0), 0), "steps"),
    ],
)
def test_bad_values_are_named(call: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        call()  # type: ignore[operator]
