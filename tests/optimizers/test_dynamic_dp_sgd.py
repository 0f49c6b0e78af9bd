"""Du et al. 2021: schedules against their equations, and a straight-line run of algorithms 2 and 4."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.optimizers import (
    Adam,
    FirstOrder,
    Sgd,
    dp_sgd,
    dynamic_dp_sgd,
    growing_mu,
    scheduled_dp_sgd,
    sensitivity_decay,
    square_root_noise,
)

T, RHO_C, RHO_MU, C0, MU0, ETA = 50, 4.0, 2.0, 1.5, 0.8, 0.3


def clip_norm(method: FirstOrder, t: int) -> float:
    return method.clip_norm(t)


def test_equations_9_11_12_and_14() -> None:
    both = dynamic_dp_sgd(Sgd(), ETA, C0, T, RHO_C, RHO_MU)
    for t in range(T):
        mu_t = RHO_MU ** (t / T) * MU0  # equation 9
        c_t = RHO_C ** (-t / T) * C0  # equation 12
        sigma_t = C0 / MU0 * (RHO_MU * RHO_C) ** (-t / T)  # algorithm 2, line 4
        assert clip_norm(both, t) == pytest.approx(c_t)
        assert both.relative_noise(t) / MU0 == pytest.approx(1 / mu_t)
        assert both.relative_noise(t) / MU0 * clip_norm(both, t) == pytest.approx(sigma_t)
        growing = growing_mu(Sgd(), ETA, C0, T, RHO_MU)
        assert clip_norm(growing, t) == C0
        assert growing.relative_noise(t) * C0 / MU0 == pytest.approx(C0 / MU0 * RHO_MU ** (-t / T))
        decay = sensitivity_decay(Sgd(), ETA, C0, T, RHO_C)
        assert decay.relative_noise(t) == 1
        assert clip_norm(decay, t) / MU0 == pytest.approx(C0 / MU0 * RHO_C ** (-t / T))


def test_theory_noise_is_the_square_root_of_the_clip_norm() -> None:
    method = square_root_noise(Sgd(), ETA, C0, T, RHO_C)
    sigmas = [method.relative_noise(t) * clip_norm(method, t) for t in range(T)]
    for t in range(T):
        assert sigmas[t] / sigmas[0] == pytest.approx(math.sqrt(clip_norm(method, t) / C0))


def test_theory_noise_minimises_equation_17() -> None:
    """sum sigma_t^2 * sum C_t^2 / sigma_t^2 is least at sigma_t ~ sqrt(C_t), not at sigma_t ~ C_t or 1."""
    method = square_root_noise(Sgd(), ETA, C0, T, RHO_C)
    clips = np.array([clip_norm(method, t) for t in range(T)])

    def bound(sigma: np.ndarray) -> float:
        return float((sigma**2).sum() * (clips**2 / sigma**2).sum())

    theory = np.array([method.relative_noise(t) for t in range(T)]) * clips
    assert bound(theory) < min(bound(clips), bound(np.ones(T)))


def straight_line(rule: str, gradients: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Algorithm 2 (and lines 7 to 12 of algorithm 4) over one unit a step, in plain numpy."""
    theta = np.zeros(20)
    m = np.zeros(20)
    u = np.zeros(20)
    for t in range(T):
        c_t = RHO_C ** (-t / T) * C0
        sigma_t = C0 / MU0 * (RHO_MU * RHO_C) ** (-t / T)
        g = gradients[t] * min(1.0, c_t / np.linalg.norm(gradients[t]))
        y = g + sigma_t * noise[t]
        if rule == "sgd":
            theta = theta - ETA * y
            continue
        m = 0.9 * m + 0.1 * y
        u = 0.999 * u + 0.001 * y * y
        m_hat = m / (1 - 0.9 ** (t + 1))
        u_hat = u / (1 - 0.999 ** (t + 1))
        theta = theta - ETA * m_hat / (np.sqrt(u_hat) + 1e-8)
    return theta


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_trajectory_equals_a_transcription(rule: str) -> None:
    generator = np.random.Generator(np.random.Philox(5))
    gradients, noise = generator.standard_normal((2, T, 20))
    method = dynamic_dp_sgd(Sgd() if rule == "sgd" else Adam(), ETA, C0, T, RHO_C, RHO_MU)
    state = method.init(torch.zeros(20, dtype=torch.float64))
    for t in range(T):
        query = method.query(state)
        std = query.noise_stds(query.relative_noise / MU0)[0]
        bound = query.blocks[0].sensitivity
        g = gradients[t] * min(1.0, bound / np.linalg.norm(gradients[t]))
        state = method.update(state, (torch.as_tensor(g + std * noise[t]),))
    np.testing.assert_allclose(state.params.numpy(), straight_line(rule, gradients, noise), rtol=1e-9)


def test_rho_one_is_dp_sgd() -> None:
    mine, plain = dynamic_dp_sgd(Sgd(), ETA, C0, T, 1.0, 1.0), dp_sgd(ETA, C0)
    for t in range(T):
        assert (mine.clip_norm(t), mine.relative_noise(t)) == (plain.clip_norm(t), 1.0)


def test_given_sequences_are_used_as_they_are() -> None:
    method = scheduled_dp_sgd(Sgd(), ETA, [2.0, 1.0], [1.0, 3.0])
    state = method.init(torch.zeros(2))
    state = method.update(state, (torch.zeros(2),))
    query = method.query(state)
    assert (query.relative_noise, query.blocks[0].sensitivity) == (3.0, 1.0)
    assert [p.relative_noise for p in method.planned(2)] == [1.0, 3.0]


def test_what_is_read_at_its_last_step_may_reach_the_bounds() -> None:
    last = dynamic_dp_sgd(Sgd(), ETA, 1.0, 2, rho_c=1e24, rho_mu=1e12)
    assert (last.clip_norm(1), last.relative_noise(1)) == (pytest.approx(1e-12), pytest.approx(1e-6))


def test_theory_noise_without_clipping_is_plain() -> None:
    method = square_root_noise(Sgd(), ETA, math.inf, T, RHO_C)
    assert [p.relative_noise for p in method.planned(3)] == [1.0] * 3


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: dynamic_dp_sgd(Sgd(), ETA, C0, T, rho_c=0.5), "rho-c"),
        (lambda: dynamic_dp_sgd(Sgd(), ETA, C0, T, rho_mu=0.5), "rho-mu"),
        (lambda: dynamic_dp_sgd(Sgd(), ETA, C0, 0), "steps"),
        (
            lambda: dynamic_dp_sgd(Sgd(), ETA, C0, T, rho_c=1e13),
            "rho-c is 10{13}.0; it must leave clip norms",
        ),
        (lambda: dynamic_dp_sgd(Sgd(), ETA, C0, T, rho_mu=1e7), "rho-mu is 10{7}.0; it must keep noise"),
        (lambda: dynamic_dp_sgd(Sgd(), ETA, 1e-13, T), "clip-norm is 1e-13"),
        (lambda: square_root_noise(Sgd(), ETA, 1e6, T, rho_c=1e14), "rho-c is 10{14}.0; it must keep noise"),
        (lambda: scheduled_dp_sgd(Sgd(), ETA, [1.0, 1e-13], [1.0, 1.0]), r"clip-norm\[1\] is 1e-13"),
        (lambda: scheduled_dp_sgd(Sgd(), ETA, [1.0, 1.0], [1.0, 1e-7]), "relative-noise is '2 values'"),
        (lambda: scheduled_dp_sgd(Sgd(), ETA, [1.0], [1.0, 2.0]), "relative-noise"),
    ],
)
def test_bad_values_are_named(call: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        call()  # type: ignore[operator]
