"""Arora et al. 2022: a straight-line run of algorithm 1, its sensitivity, its phases and its releases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.quadratics import Quadratics, clip
from helpers.toys import CountingGate, RowsEngine, world
from helpers.trajectories import follow, iterates
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers import PrivateSpiderBoost, dp_sgd
from fedpriv.optimizers.schedules import Constant
from fedpriv.rng import Key

T, D, B_2, B_1, Q = 40, 20, 6, 12, 7
C, CAP, L, RATE, SCALE = 1.5, 0.15, 1.2, 0.2, 0.3
WORLD = Quadratics(T, B_2, lambda t: B_2 if t % Q else B_1, SCALE)
METHOD = PrivateSpiderBoost(Constant(RATE), C, CAP, L, Q, B_1 / B_2)


def transcription() -> tuple[np.ndarray, list[float]]:
    """Algorithm 1 line by line, with means, on given cohorts and noise; and the clip norms of differences."""
    w, old, nabla, found, bounds = np.zeros(D), np.zeros(D), np.zeros(D), [], []
    for t in range(T):
        now = WORLD.gradients(w, t)
        if t % Q == 0:
            nabla = sum(clip(g, C) for g in now) / B_1 + (SCALE * B_1 / B_2) * C / B_1 * WORLD.noise[t]
        else:
            bounds.append(min(CAP, max(L * np.linalg.norm(w - old), CAP / 1000)))
            moved = [g - h for g, h in zip(now, WORLD.gradients(old, t), strict=True)]
            delta = sum(clip(g, bounds[-1]) for g in moved) / B_2
            nabla = nabla + delta + SCALE * bounds[-1] / B_2 * WORLD.noise[t]
        old, w = w, w - RATE * nabla
        found.append(w)
    return np.array(found), bounds


def test_trajectory_equals_a_transcription() -> None:
    expected, bounds = transcription()
    assert min(bounds) < CAP == max(bounds)  # both branches of the clip norm
    np.testing.assert_allclose(
        iterates(follow(METHOD, WORLD.noisy_answer, T)), expected, rtol=1e-6, atol=1e-9
    )


def test_a_phase_of_one_release_is_dp_sgd() -> None:
    start, ends = torch.zeros(20, dtype=torch.float64), []
    for method in (PrivateSpiderBoost(Constant(RATE), C, CAP, phase=1), dp_sgd(RATE, C)):
        mechanism = Mechanism(method, Poisson(40, 0.3), Central(), 0.7, 25)
        cohorts = CohortSampler(mechanism.sampler, Key.from_seed(3), 7)
        engine = RowsEngine(world(1))
        ends.append(run(mechanism, start, engine, CountingGate(), Key.from_seed(3), cohorts).state.params)
        assert {len(request.query.points) for request in engine.asks} == {1}
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-14)


def test_every_release_is_the_planned_one() -> None:
    planned = METHOD.planned(T)
    assert [one.rate_factor for one in planned[: Q + 1]] == [2.0, *[1.0] * (Q - 1), 2.0]
    states = [METHOD.init(torch.zeros(D, dtype=torch.float64)), *follow(METHOD, WORLD.noisy_answer, T)]
    for state, release in zip(states, planned, strict=False):
        query = METHOD.query(state)
        assert (query.rate_factor, query.relative_noise) == (release.rate_factor, release.relative_noise)
    assert METHOD.planned(0) == ()


@settings(max_examples=60)
@given(st.floats(0.01, 5.0), st.floats(0, 10.0), st.floats(-8, 8), st.integers(0, 2**32))
def test_sensitivity_is_the_clip_norm_of_the_difference(
    cap: float, step: float, size: float, seed: int
) -> None:
    """One unit adds at most min(cap, L_1 norm(step)), whatever its gradients; some unit reaches it."""
    method = PrivateSpiderBoost(Constant(1.0), 1.0, cap, L, phase=5)
    along = torch.zeros(D, dtype=torch.float64)
    along[0] = step
    block = method.query(method.update(method.init(torch.zeros(D, dtype=torch.float64)), (along,))).blocks[0]
    assert block.sensitivity == pytest.approx(min(cap, max(L * step, cap / 1000)), rel=1e-12)
    generator = np.random.Generator(np.random.Philox(seed))
    pair = [torch.as_tensor(10.0**size * generator.standard_normal((1, D))) for _ in range(2)]
    assert float(sum_rows(pair, (block,))[0].norm()) <= block.sensitivity * (1 + 1e-9)
    worst = [torch.full((1, D), 1e3, dtype=torch.float64), torch.full((1, D), -1e3, dtype=torch.float64)]
    assert float(sum_rows(worst, (block,))[0].norm()) == pytest.approx(block.sensitivity)


def test_without_clipping_distances_bound_nothing() -> None:
    method = PrivateSpiderBoost(Constant(1.0), math.inf, math.inf)
    state = method.update(method.init(torch.zeros(D)), (torch.zeros(D),))
    assert method.bound(state) == math.inf


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"step_size": Constant(0.0)}, "learning-rate"),
        ({"clip_norm": 0.0}, "clip-norm"),
        ({"difference_clip_norm": -1.0}, "difference-clip-norm"),
        ({"smoothness": 0.0}, "smoothness"),
        ({"smoothness": math.inf}, "smoothness"),
        ({"phase": 0}, "phase"),
        ({"full_cohort": 0.0}, "full-cohort"),
    ],
)
def test_bad_values_are_named(change: dict[str, float], name: str) -> None:
    good = {"step_size": Constant(0.1), "clip_norm": 1.0, "difference_clip_norm": 0.1}
    with pytest.raises(ArgumentError, match=name):
        PrivateSpiderBoost(**{**good, **change})  # type: ignore[arg-type]
