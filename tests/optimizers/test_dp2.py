"""Li et al. 2023: straight-line runs of algorithm 1 with every rule, and of both ablations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import CountingGate, RowsEngine, noise_free, world
from helpers.trajectories import follow, iterates

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import Query
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers import Dp2, ExtraQuery, dp_sgd
from fedpriv.optimizers.schedules import Constant, Given
from fedpriv.rng import Key

T, D, N, B, SIGMA = 50, 20, 30, 6, 0.3
C_1, C_2, S_1, S_2 = 1.5, 2.5, 4, 3
BETA, BETA_1, EPSILON = 0.7, 0.6, 1e-2
SGD_RATE, RATE = 0.2, 0.05
KEY = Key.from_seed(3)
GENERATOR = np.random.Generator(np.random.Philox(6))
CENTRES = GENERATOR.standard_normal((N, D)) + 1.0
CURVES = np.geomspace(0.05, 2.0, D) * (0.5 + GENERATOR.random((N, D)))  # coordinates of unlike scales
NOISE = GENERATOR.standard_normal((T, 2, D))
COHORTS = [GENERATOR.choice(N, B, replace=False) for _ in range(T)]
RULES = ["rmsprop", "adagrad", "yogi", "adam"]


def private_mean(theta: np.ndarray, t: int, bound: float, over: Any = 1.0, block: int = 0) -> np.ndarray:
    """Line 9: (1/b) (sum of clip(g / D, C) + N(0, sigma^2 C^2))."""
    total = SIGMA * bound * NOISE[t, block]
    for i in COHORTS[t]:
        g = CURVES[i] * (theta - CENTRES[i]) / over
        total = total + g * min(1.0, bound / np.linalg.norm(g))
    return total / B


def next_v(rule: str, v: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Line 5 and appendix D."""
    if rule == "adagrad":
        return np.maximum(v + h, 0)
    if rule == "yogi":
        h = np.maximum(h, 0)
        return np.where(h > v, v + (1 - BETA) * h, v - (1 - BETA) * h)
    return np.maximum(BETA * v + (1 - BETA) * h, 0)


def transcription(rule: str, noise_std: float, noise_first: bool) -> list[np.ndarray]:
    """Algorithm 1, in its own order."""
    theta, total, v, m = np.zeros((4, D))
    moves, iterates = 0, []
    for t in range(T):
        place = t % (S_1 + S_2)
        if place == 0:  # lines 2 and 3
            total = np.zeros(D)
        if place == S_1:  # lines 4 to 6
            v = next_v(rule, v, (total / S_1) ** 2 - noise_std**2 / S_1)
            total = np.zeros(D)
            moves += 1
        if place < S_1:
            g = private_mean(theta, t, C_1)
            total = total + g  # line 10
            theta = theta - SGD_RATE * g  # line 11
        else:
            v_hat = v / (1 - BETA**moves) if rule == "adam" else v
            over = np.sqrt(v_hat) + EPSILON
            g = private_mean(theta, t, C_1) / over if noise_first else private_mean(theta, t, C_2, over)
            if rule == "adam":
                j = place - S_1
                m = (1 - BETA_1) * g + (BETA_1 * m if j else 0)
                g = m / (1 - BETA_1 ** (j + 1))
            theta = theta - RATE * g
        iterates.append(theta)
    return iterates


def noisy_answer(query: Query, t: int) -> list[torch.Tensor]:
    """The noisy answer on the given cohorts and noise."""
    rows = torch.as_tensor(CURVES[COHORTS[t]] * (query.points[0].numpy() - CENTRES[COHORTS[t]]))
    sums = sum_rows([rows], query.blocks)
    stds = query.noise_stds(SIGMA * query.relative_noise)
    noises = [std * torch.as_tensor(NOISE[t, j]) for j, std in enumerate(stds)]
    return [(s + e) / B for s, e in zip(sums, noises, strict=True)]


def test_the_world_moves_v_both_ways_and_to_the_floor() -> None:
    """So the transcriptions below cover Yogi's two signs and the clamp at 0."""
    seconds = {}
    for std in (0.0, SIGMA * C_1 / B):
        method = dp2("yogi" if std == 0 else "rmsprop", noise_std=std, beta=BETA if std == 0 else 0.0)
        state = method.init(torch.zeros(D, dtype=torch.float64))
        seen = []
        for t in range(T):
            point = method.query(state).points[0].numpy()
            divisor = method.query(state).blocks[0].terms[0].divisor
            over = 1.0 if divisor is None else divisor.numpy()
            y = private_mean(point, t, C_1 if divisor is None else C_2, over)
            state = method.update(state, (torch.as_tensor(y),))
            seen.append(state.slots["second"].numpy())
        seconds[std] = np.array(seen)
    steps = np.diff(seconds[0.0], axis=0)
    assert (steps > 0).any()
    assert (steps < 0).any()
    assert (seconds[SIGMA * C_1 / B][S_1:] == 0).any()


def dp2(rule: str, **changes: Any) -> Dp2:
    given = {"epsilon": EPSILON, "beta": BETA, "beta1": BETA_1, **changes}
    return Dp2(rule, Constant(SGD_RATE), Constant(RATE), C_1, C_2, S_1, S_2, **given)


@pytest.mark.parametrize("noise_first", [False, True])
@pytest.mark.parametrize("noise_std", [0.0, SIGMA * C_1 / B])
@pytest.mark.parametrize("rule", RULES)
def test_trajectory_equals_a_transcription(rule: str, noise_std: float, noise_first: bool) -> None:
    """Seven phases of each kind, with and without the bias correction, in both orders."""
    mine = iterates(follow(dp2(rule, noise_std=noise_std, noise_first=noise_first), noisy_answer, T))
    np.testing.assert_allclose(mine, transcription(rule, noise_std, noise_first), rtol=1e-6, atol=1e-9)


def test_the_phases_have_step_sizes_by_t() -> None:
    rates = Given.of("rate", [0.5 / (t + 1) for t in range(T)])
    method = Dp2("rmsprop", rates, rates, C_1, C_2, S_1, S_2)
    state = method.init(torch.zeros(D))
    for t in range(12):
        moved = method.update(state, (torch.ones(D),))
        torch.testing.assert_close(state.params - moved.params, torch.full((D,), 0.5 / (t + 1)))
        state = moved


def test_the_correction_takes_the_noise_out_of_v() -> None:
    """Gradients of zero under noise: without it v is the noise's variance over s1, with it much less, never
    below 0. The mean of 4000 squares must lie within 8 standard errors; the seed is fixed.
    """
    generator = np.random.Generator(np.random.Philox(1))
    answers = [0.5 * torch.as_tensor(generator.standard_normal(4000)) for _ in range(8)]
    found = {}
    for std in (0.0, 0.5, 0.75):
        for rule in RULES:
            method = Dp2(rule, Constant(0.1), Constant(0.1), 1.0, 1.0, 8, 1, beta=0.0, noise_std=std)
            state = method.init(torch.zeros(4000, dtype=torch.float64))
            for answer in answers:
                state = method.update(state, (answer,))
            assert float(state.slots["second"].min()) >= 0
            found[rule, std] = float(state.slots["second"].mean())
    for rule in RULES:
        assert found[rule, 0.0] == pytest.approx(0.25 / 8, rel=8 * math.sqrt(2 / 4000))
        assert found[rule, 0.75] < found[rule, 0.5] < 0.5 * found[rule, 0.0]


@pytest.mark.parametrize("rule", RULES)
def test_without_noise_and_clipping_it_is_the_delayed_method(rule: str) -> None:
    """Appendix D's non-private version, on the mean gradient of the units."""
    rows = world(1)
    rates = (Constant(SGD_RATE), Constant(RATE))
    method = Dp2(rule, *rates, math.inf, math.inf, S_1, S_2, EPSILON, BETA, BETA_1)
    mechanism = noise_free(method, 28)
    start, cohorts = torch.zeros(20, dtype=torch.float64), CohortSampler(mechanism.sampler, KEY, 100)
    end = run(mechanism, start, RowsEngine(rows), CountingGate(), KEY, cohorts).state.params
    theta, v = np.zeros(20), np.zeros(20)
    for cycle in range(4):
        gradients = []
        for _ in range(S_1):
            gradients.append(theta - rows.mean(0).numpy())
            theta = theta - SGD_RATE * gradients[-1]
        v = next_v(rule, v, np.mean(gradients, axis=0) ** 2)
        m = np.zeros(20)
        for j in range(S_2):
            correction = 1 - BETA ** (cycle + 1) if rule == "adam" else 1.0
            g = (theta - rows.mean(0).numpy()) / (np.sqrt(v / correction) + EPSILON)
            m = BETA_1 * m + (1 - BETA_1) * g
            theta = theta - RATE * (m / (1 - BETA_1 ** (j + 1)) if rule == "adam" else g)
    np.testing.assert_allclose(end.numpy(), theta, rtol=1e-9)


def test_a_silo_that_missed_the_end_of_a_phase_begins_the_next_one_anew() -> None:
    method = Dp2("rmsprop", Constant(1.0), Constant(1.0), 1.0, 1.0, sgd_steps=2, adaptive_steps=2, beta=0.0)
    state = method.init(torch.zeros(1))
    for step in (0, 4, 5):  # the step number follows from the server's round
        state = method.update(replace(state, step=step), (torch.tensor([1.0]),))
    assert float(state.slots["second"]) == 1.0


def test_the_sgd_phase_is_dp_sgd() -> None:
    """With s1 as long as the run, to the bit."""
    start, ends = torch.zeros(20, dtype=torch.float64), []
    for method in (Dp2("rmsprop", Constant(0.2), Constant(0.1), C_1, C_2, 25, 1), dp_sgd(0.2, C_1)):
        mechanism = Mechanism(method, Poisson(40, 0.3), Central(), 0.7, 25)
        cohorts = CohortSampler(mechanism.sampler, KEY, 7)
        ends.append(run(mechanism, start, RowsEngine(world(1)), CountingGate(), KEY, cohorts).state.params)
    assert torch.equal(*ends)


def algorithm_2(rule: str, delay: int) -> list[np.ndarray]:
    """Appendix D, algorithm 2, with its t = 1..T."""
    theta, total, v = np.zeros((3, D))
    iterates = []
    for t in range(1, T + 1):
        g = private_mean(theta, t - 1, C_1)  # line 5
        total = total + g
        if (t - 1) % delay == 0:  # lines 6 to 9
            v = next_v(rule, v, (total / delay) ** 2)
            total = np.zeros(D)
            theta = theta - SGD_RATE * g
        else:  # line 11
            theta = theta - RATE * private_mean(theta, t - 1, C_2, np.sqrt(v) + EPSILON, block=1)
        iterates.append(theta)
    return iterates


def extra_query(rule: str = "rmsprop", delay: int = 6) -> ExtraQuery:
    return ExtraQuery(rule, Constant(SGD_RATE), Constant(RATE), C_1, C_2, delay, EPSILON, BETA)


@pytest.mark.parametrize("rule", RULES[:3])
def test_the_extra_query_equals_a_transcription(rule: str) -> None:
    mine = iterates(follow(extra_query(rule), noisy_answer, T))
    np.testing.assert_allclose(mine, algorithm_2(rule, 6), rtol=1e-6, atol=1e-9)


def test_the_extra_querys_two_blocks_are_one_event() -> None:
    """Each block has the noise sigma C of algorithm 2; together they cost sigma / sqrt(2)."""
    method = extra_query(delay=3)
    state = method.init(torch.zeros(D))
    for t in range(7):
        query = method.query(state)
        sizes = [C_1] if t % 3 == 0 else [C_1, C_2]
        stds = query.noise_stds(SIGMA * query.relative_noise)
        assert stds == pytest.approx([SIGMA * size for size in sizes])
        assert [block.sensitivity for block in query.blocks] == sizes
        together = sum((size / std) ** 2 for size, std in zip(sizes, stds, strict=True)) ** -0.5
        assert together == pytest.approx(SIGMA * query.relative_noise)
        assert method.planned(7)[t].relative_noise == query.relative_noise
        state = method.update(state, tuple(torch.ones(D) for _ in sizes))


DP2: dict[str, Any] = {
    "rule": "rmsprop",
    "learning_rate": Constant(0.1),
    "adaptive_learning_rate": Constant(0.1),
    "clip_norm": 1.0,
    "adaptive_clip_norm": 1.0,
}
SHARED = [
    ({"rule": "sgd"}, "dp2-rule"),
    ({"learning_rate": Constant(0.0)}, "learning-rate"),
    ({"adaptive_learning_rate": Constant(-1.0)}, "adaptive-learning-rate"),
    ({"clip_norm": 0.0}, "clip-norm"),
    ({"adaptive_clip_norm": math.nan}, "adaptive-clip-norm"),
    ({"epsilon": 0.0}, "adam-epsilon"),
    ({"beta": 1.0}, "beta"),
]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        *SHARED,
        ({"sgd_steps": 0}, "sgd-steps"),
        ({"adaptive_steps": 0}, "adaptive-steps"),
        ({"beta1": -0.1}, "beta1"),
        ({"noise_std": -1.0}, "noise-std"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        Dp2(**{**DP2, "sgd_steps": 2, "adaptive_steps": 2, **change})


@pytest.mark.parametrize(
    ("change", "name"), [*SHARED, ({"rule": "adam"}, "dp2-rule"), ({"delay": 1}, "delay")]
)
def test_bad_values_of_the_ablation_are_named(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        ExtraQuery(**{**DP2, "delay": 3, **change})
