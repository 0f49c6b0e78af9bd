"""Wang et al. 2023: straight-line runs of algorithm 1, its sensitivity, first cohort and output."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.quadratics import Quadratics, clip
from helpers.toys import CountingGate, RowsEngine, noise_free, world
from helpers.trajectories import follow, iterates
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import FixedSize, Poisson
from fedpriv.optimizers import DpSrm, NormalisedStep, dp_sgd, draw_output_step
from fedpriv.optimizers.schedules import Constant, Schedule
from fedpriv.rng import Key

T, D, B, B_0 = 50, 20, 6, 12
C_1, C_2, GAMMA, SCALE = 1.5, 0.3, 0.4, 0.3
ZETA, L, N_0 = 0.25, 1.2, 2.0
KEY = Key.from_seed(3)
WORLD = Quadratics(T, B, lambda t: B if t else B_0, SCALE)


def transcription(adaptive: bool) -> tuple[np.ndarray, int]:
    """Algorithm 1 line by line, with means, on given cohorts and noise; and how often line 5 was capped."""
    theta, iterates, capped = np.zeros(D), [], 0
    v_p = np.zeros(D)
    old = theta
    for t in range(T):
        if t == 0:  # lines 1 to 3
            v = sum(clip(g, C_1) for g in WORLD.gradients(theta, 0)) / B_0
            v_p = v + (SCALE * B_0 / B) * C_1 / B_0 * WORLD.noise[0]
        else:  # lines 6 to 8
            now, before = WORLD.gradients(theta, t), WORLD.gradients(old, t)
            fresh = sum(clip(g, C_1) for g in now) / B
            moved = sum(clip(g - h, C_2) for g, h in zip(now, before, strict=True)) / B
            v = (1 - GAMMA) * (v_p + moved) + GAMMA * fresh
            v_p = v + SCALE * (GAMMA * C_1 + (1 - GAMMA) * C_2) / B * WORLD.noise[t]
        eta = 0.2  # line 5
        if adaptive:
            eta = min(ZETA / (N_0 * L * np.linalg.norm(v_p)), 1 / (2 * N_0 * L))
            capped += eta == 1 / (2 * N_0 * L)
        old, theta = theta, theta - eta * v_p
        iterates.append(theta)
    return np.array(iterates), capped


@pytest.mark.parametrize("adaptive", [False, True])
def test_trajectory_equals_a_transcription(adaptive: bool) -> None:
    rule: Schedule | NormalisedStep = NormalisedStep(ZETA, L, N_0) if adaptive else Constant(0.2)
    method = DpSrm(rule, C_1, C_2, GAMMA, first_cohort=B_0 / B)
    expected, capped = transcription(adaptive)
    np.testing.assert_allclose(
        iterates(follow(method, WORLD.noisy_answer, T)), expected, rtol=1e-6, atol=1e-9
    )
    if adaptive:
        assert 0 < capped < T  # both branches of line 5


def test_without_noise_and_clipping_it_is_storm() -> None:
    """Cutkosky & Orabona 2019: v_t = g_t + (1 - gamma) (v_{t-1} - g_{t-1} on the same sample)."""
    rows = world(1)
    method = DpSrm(Constant(0.3), math.inf, math.inf, 0.25, first_cohort=2.0)
    mechanism = noise_free(method, 25, FixedSize(40, 8))
    start = torch.zeros(20, dtype=torch.float64)
    engine, cohorts = RowsEngine(rows), CohortSampler(mechanism.sampler, KEY, 100)
    end = run(mechanism, start, engine, CountingGate(), KEY, cohorts).state.params
    theta, old, v = start, start, start
    for t in range(25):
        sample = rows[mechanism.sampler.resized(2.0 if t == 0 else 1.0).draw(KEY.generator("cohort", t))]
        g, h = theta - sample.mean(0), old - sample.mean(0)
        v = g if t == 0 else g + 0.75 * (v - h)
        old, theta = theta, theta - 0.3 * v
    torch.testing.assert_close(end, theta, rtol=1e-9, atol=1e-12)
    assert engine.asks[0].query.points[0].shape == (20,)
    assert [len(request.query.points) for request in engine.asks[:3]] == [1, 2, 2]


def test_gamma_one_is_dp_sgd() -> None:
    start, ends = torch.zeros(20, dtype=torch.float64), []
    for method in (DpSrm(Constant(0.2), C_1, C_2, 1.0), dp_sgd(0.2, C_1)):
        mechanism = Mechanism(method, Poisson(40, 0.3), Central(), 0.7, 25)
        cohorts = CohortSampler(mechanism.sampler, KEY, 7)
        engine = RowsEngine(world(1))
        ends.append(run(mechanism, start, engine, CountingGate(), KEY, cohorts).state.params)
        assert {len(request.query.points) for request in engine.asks} == {1}
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-14)


def test_gamma_one_may_begin_with_another_cohort() -> None:
    method = DpSrm(Constant(0.2), C_1, C_2, 1.0, first_cohort=2.0)
    state = method.init(torch.zeros(D))
    first = method.query(state)
    later = method.query(method.update(state, (torch.ones(D),)))
    assert (first.rate_factor, first.relative_noise) == (2.0, 2.0)
    assert (later.rate_factor, later.relative_noise, later.blocks) == (1.0, 1.0, first.blocks)


@settings(max_examples=60)
@given(
    st.floats(0.01, 1.0), st.floats(0.01, 5.0), st.floats(0.01, 5.0), st.floats(-8, 8), st.integers(0, 2**32)
)
def test_sensitivity_is_the_theorems(gamma: float, c_1: float, c_2: float, size: float, seed: int) -> None:
    """(6.1): one unit adds at most gamma C_1 + (1 - gamma) C_2, and a unit that reaches it exists."""
    method = DpSrm(Constant(0.1), c_1, c_2, gamma)
    state = method.update(method.init(torch.zeros(D, dtype=torch.float64)), (torch.ones(D),))
    block = method.query(state).blocks[0]
    assert block.sensitivity == pytest.approx(gamma * c_1 + (1 - gamma) * c_2)
    generator = np.random.Generator(np.random.Philox(seed))
    pair = [torch.as_tensor(10.0**size * generator.standard_normal((1, D))) for _ in range(2)]
    assert float(sum_rows(pair, (block,))[0].norm()) <= block.sensitivity * (1 + 1e-9)
    worst = [torch.full((1, D), 1e3, dtype=torch.float64), torch.full((1, D), -1e3, dtype=torch.float64)]
    assert float(sum_rows(worst, (block,))[0].norm()) == pytest.approx(block.sensitivity)


def test_a_chosen_iterate_is_handed_out() -> None:
    rule = Constant(0.2)
    for chosen in (0, 1, 17, T - 1):
        method = DpSrm(rule, C_1, C_2, GAMMA, first_cohort=B_0 / B, output_step=chosen)
        states = follow(method, WORLD.noisy_answer, T)
        expected = torch.zeros(D) if chosen == 0 else states[chosen - 1].params
        for state in states[max(chosen - 1, 0) :]:
            np.testing.assert_array_equal(state.output, expected)
    last = follow(DpSrm(rule, C_1, C_2, GAMMA, first_cohort=B_0 / B), WORLD.noisy_answer, T)[-1]
    np.testing.assert_array_equal(last.output, last.params)


def test_the_choice_is_uniform() -> None:
    """Chi-square over 7 steps and 7000 draws at p > 1e-6, seed fixed; leaving one step out fails it."""
    generator = np.random.Generator(np.random.Philox(9))
    counts = np.bincount([draw_output_step(7, generator) for _ in range(7000)], minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-6
    lopsided = np.bincount([draw_output_step(6, generator) for _ in range(7000)], minlength=7)
    assert stats.chisquare(lopsided).pvalue < 1e-6


def test_a_zero_estimate_takes_a_step_of_nothing() -> None:
    assert NormalisedStep(ZETA, L, N_0).of(torch.zeros(3)) == 1 / (2 * N_0 * L)
    long = torch.tensor([1e3, 0.0, 0.0])
    assert NormalisedStep(ZETA, L, N_0).of(long) * 1e3 == pytest.approx(ZETA / (N_0 * L))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"step_size": Constant(0.0)}, "learning-rate"),
        ({"clip_norm": 0.0}, "clip-norm"),
        ({"difference_clip_norm": -1.0}, "difference-clip-norm"),
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": 1.1}, "gamma"),
        ({"first_cohort": 0.0}, "first-cohort"),
        ({"first_cohort": math.inf}, "first-cohort"),
        ({"output_step": -1}, "output-step"),
    ],
)
def test_bad_values_are_named(change: dict[str, float], name: str) -> None:
    good = {"step_size": Constant(0.1), "clip_norm": 1.0, "difference_clip_norm": 0.1, "gamma": 0.5}
    with pytest.raises(ArgumentError, match=name):
        DpSrm(**{**good, **change})  # type: ignore[arg-type]


def test_bad_step_sizes_and_rounds_are_named() -> None:
    for name in ("zeta", "smoothness", "n_0"):
        values = {"zeta": 1.0, name: 0.0}
        with pytest.raises(ArgumentError, match=name.replace("_", "-")):
            NormalisedStep(**values)
    with pytest.raises(ArgumentError, match="rounds"):
        draw_output_step(0, np.random.Generator(np.random.Philox(4)))
