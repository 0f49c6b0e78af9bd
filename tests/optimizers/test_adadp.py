"""Koskela & Honkela 2020: straight-line runs of algorithm 2, discards, the decay, and pairs of releases."""

from __future__ import annotations

import math
from dataclasses import replace

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
from fedpriv.optimizers import Adadp as Method
from fedpriv.optimizers import State, adadp, default_tolerance, scaled_error
from fedpriv.rng import Key


def Adadp(*arguments: object, **named: object) -> Method:  # noqa: N802
    """The method as the paper prints it."""
    return Method(*arguments, **{"variant": "paper", **named})  # type: ignore[arg-type]


def test_the_constructor_has_the_commands_defaults() -> None:
    method = adadp(8.0, 1.0)
    assert (method.tolerance, method.variant, method.decay_after) == (1.5, "half-steps", None)


STEPS, D, N, B = 50, 20, 30, 6
C, SIGMA, ETA, LOW, HIGH = 2.0, 0.2, 2.0, 0.9, 1.1
KEY = Key.from_seed(3)
GENERATOR = np.random.Generator(np.random.Philox(14))
CENTRES = 3 * GENERATOR.standard_normal((N, D))
CURVES = 0.5 + 3 * GENERATOR.random((N, D))
NOISE = GENERATOR.standard_normal((2 * STEPS, D))
COHORTS = [GENERATOR.choice(N, B, replace=False) for _ in range(2 * STEPS)]


def private_mean(theta: np.ndarray, release: int) -> np.ndarray:
    """The paper's G: clipped gradients of a cohort, noise of std C sigma, over |B|."""
    total = C * SIGMA * NOISE[release]
    for i in COHORTS[release]:
        g = CURVES[i] * (theta - CENTRES[i])
        total = total + g / max(1.0, np.linalg.norm(g) / C)
    return total / B


def transcription(tau: float, discard: bool, variant: str, adaptive_steps: int) -> tuple[list, list, int]:
    """Algorithm 2 for ``adaptive_steps``, then plain steps by (5.1), epochs of 7 releases."""
    theta, eta, discards = np.zeros(D), ETA, 0
    thetas, etas = [], []
    for step in range(adaptive_steps):
        g1 = private_mean(theta, 2 * step)
        full = theta - eta * g1
        half = theta - eta / 2 * g1
        g2 = private_mean(half, 2 * step + 1)
        hat = half - eta / 2 * g2
        err = 0.0
        for i in range(D):
            err += (abs(full[i] - hat[i]) / max(1.0, abs(full[i]))) ** 2
        if variant == "authors-code":  # the squares of ten equal copies of the weights, in one sum
            err = sum(err for _ in range(10))
            discard = True
        err = err**0.5
        if discard and err > tau:
            discards += 1
        else:
            theta = full if variant == "paper" else hat
        ratio = tau / err if variant == "paper" else (tau / err) ** 0.5
        eta = min(max(ratio, LOW), HIGH) * eta
        thetas.append(theta)
        etas.append(eta)
    for k in range(2 * (STEPS - adaptive_steps)):
        epoch = 1 + k // 7
        theta = theta - eta / (1 + 0.1 * epoch) * private_mean(theta, 2 * adaptive_steps + k)
        thetas.append(theta)
    return thetas, etas, discards


def noisy_answer(query: Query, t: int) -> list[np.ndarray]:
    """The noisy answer on the given cohorts and noise."""
    assert query.noise_stds(SIGMA * query.relative_noise) == (C * SIGMA,)
    return [private_mean(query.points[0].numpy(), t)]


def thetas_and_etas(method: Method) -> tuple[np.ndarray, list[float]]:
    """Parameters after every release and step sizes after every step of two."""
    states = follow(method, noisy_answer, 2 * STEPS)
    return iterates(states), [method.step_size_of(state) for state in states[1::2]]


@pytest.mark.parametrize("variant", ["paper", "half-steps", "authors-code"])
@pytest.mark.parametrize("discard", [False, True])
def test_trajectory_equals_a_transcription(discard: bool, variant: str) -> None:
    """50 steps; step sizes rise and fall, and where steps may be discarded some are and some are not."""
    discards_steps = discard or variant == "authors-code"
    tau = 1.5 * 10**0.5 if variant == "authors-code" else 1.5
    method = Adadp(ETA, C, tau, LOW, HIGH, discard, variant=variant)
    expected, etas, discards = transcription(tau, discard, variant, STEPS)
    mine, my_etas = thetas_and_etas(method)
    np.testing.assert_allclose(mine[1::2], expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(my_etas, etas, rtol=1e-6)
    factors = np.array(etas[1:]) / np.array(etas[:-1])
    assert factors.max() > 1 > factors.min()
    assert ((factors > LOW + 1e-9) & (factors < HIGH - 1e-9)).any()
    assert 0 < discards < STEPS if discards_steps else discards == 0


def test_the_decaying_phase_equals_a_transcription() -> None:
    """Twenty steps of two releases, then 60 plain ones by equation 5.1."""
    method = Adadp(ETA, C, 1.5, alpha_max=HIGH, decay_after=40, epoch=7)
    expected, etas, _ = transcription(1.5, False, "paper", 20)
    mine, my_etas = thetas_and_etas(method)
    np.testing.assert_allclose(mine[1:40:2], expected[:20], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(mine[40:], expected[20:], rtol=1e-6, atol=1e-9)
    assert my_etas[20:] == [my_etas[19]] * 30  # the decay divides eta_50
    np.testing.assert_allclose(my_etas[:20], etas, rtol=1e-6)


def test_between_two_releases_the_parameters_stay() -> None:
    mine, _ = thetas_and_etas(Adadp(ETA, C, 1.5, alpha_max=HIGH))
    for first, last in zip(mine[2::2], mine[1::2], strict=False):
        np.testing.assert_array_equal(first, last)


def test_without_noise_and_clipping_it_is_algorithm_1_on_gradient_descent() -> None:
    """g(theta) = norm(theta - mean)^2 / 2: the full step is plain gradient descent with eta_l."""
    rows = world(1)
    method = Adadp(0.01, math.inf, tolerance=0.05, alpha_max=1.1)
    start = torch.zeros(20, dtype=torch.float64)
    mechanism = noise_free(method, 60)
    cohorts = CohortSampler(mechanism.sampler, KEY, 100)
    end = run(mechanism, start, RowsEngine(rows), CountingGate(), KEY, cohorts).state.params
    theta, eta = start, 0.01
    for _ in range(30):
        gradient = theta - rows.mean(0)
        full = theta - eta * gradient
        # On a quadratic the difference is eta^2/4 times the gradient (equation 2.4).
        err = float((eta**2 / 4 * gradient / full.abs().clamp(min=1)).norm())
        theta, eta = full, eta * min(max(0.05 / err, 0.9), 1.1)
    torch.testing.assert_close(end, theta, rtol=1e-9, atol=1e-12)


def test_both_releases_of_a_step_have_cohorts_and_noise_of_their_own() -> None:
    mechanism = Mechanism(Adadp(0.5, 1.0), Poisson(40, 0.3), Central(), 0.7, 6)
    engine, budget_gate = RowsEngine(world(1)), CountingGate()
    cohorts = CohortSampler(mechanism.sampler, KEY, 100)
    start = torch.zeros(20, dtype=torch.float64)
    run(mechanism, start, engine, budget_gate, KEY, cohorts)
    drawn = [tuple(request.shards[0].ids) for request in engine.asks]
    assert len(set(drawn)) == 6
    assert budget_gate.charged == [mechanism.sampler.event(0.7)] * 6
    assert [request.query.releases for request in engine.asks] == [2, 1] * 3


@pytest.mark.parametrize(
    ("rounds", "decay_after", "releases"),
    [(6, None, 6), (7, None, 6), (1, None, 0), (7, 4, 7), (3, 4, 2), (4, 4, 4), (0, 4, 0)],
)
def test_planned_releases_equal_the_made_ones(rounds: int, decay_after: int | None, releases: int) -> None:
    method = Adadp(0.1, 1.0, decay_after=decay_after)
    mechanism = Mechanism(method, Poisson(40, 0.3), Central(), 0.7, rounds)
    budget_gate = CountingGate()
    start, cohorts = torch.zeros(20, dtype=torch.float64), CohortSampler(mechanism.sampler, KEY, 100)
    outcome = run(mechanism, start, RowsEngine(world(1)), budget_gate, KEY, cohorts)
    assert len(method.planned(rounds)) == releases == outcome.releases
    assert tuple(budget_gate.charged) == mechanism.planned_events()


def test_an_error_of_nothing_or_of_overflow() -> None:
    """err = 0 gives alpha_max; an err that is not finite gives alpha_min, and the step is discarded."""
    method = Adadp(1.0, 1.0, alpha_max=1.1, discard=True)
    start = torch.full((3,), 5.0)
    for gradients, factor in (((0.0, 0.0), 1.1), ((1e30, -1e38), 0.9), ((3e38, 3e38), 0.9)):
        state = method.init(start)
        for gradient in gradients:
            state = method.update(state, (torch.full((3,), gradient) * 2,))
        assert method.step_size_of(state) == pytest.approx(factor)
        if factor < 1:
            assert torch.equal(state.params, start)


def test_the_error_is_scaled_by_the_full_step() -> None:
    full, halves = torch.tensor([10.0, 0.5, -4.0]), torch.tensor([11.0, 0.7, -2.0])
    expected = math.sqrt(0.1**2 + 0.2**2 + 0.5**2)
    assert scaled_error(full, halves) == pytest.approx(expected)
    assert scaled_error(halves, full) != pytest.approx(expected)


def test_default_tolerance_keeps_the_accumulated_noise_at_variance_one() -> None:
    """With eta at err = tau, T steps add 2 tau^2 / d each (section 4.2)."""
    tau = default_tolerance(1000, 25)
    assert 25 * 2 * tau**2 / 1000 == pytest.approx(1.0)


def test_the_authors_tau_of_1_is_0_316_with_discards_in_equation_4_1() -> None:
    """The authors sum the error over ten copies of the weights and discard by default."""
    theirs = thetas_and_etas(Adadp(ETA, C, 1.0, LOW, HIGH, variant="authors-code"))
    ours = thetas_and_etas(Adadp(ETA, C, 0.1**0.5, LOW, HIGH, discard=True, variant="half-steps"))
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(theirs[1], ours[1], rtol=1e-5)


@pytest.mark.parametrize("variant", ["paper", "half-steps"])
def test_without_a_tolerance_noise_grows_to_the_scale_of_the_starting_weights(variant: str) -> None:
    """On noise alone, whatever its size, T steps move each weight by a std of max |theta_0|, or by half of
    the variance where two half steps are kept."""
    d, steps, scale = 40_000, 50, 0.03
    generator = torch.Generator().manual_seed(5)
    start = scale * (2 * torch.rand(d, generator=generator) - 1)
    method = Adadp(1e-6, 1.0, None, alpha_max=1.1, variant=variant, steps=steps)
    for sigma in (0.01, 3.0):
        state = method.init(start)
        for _ in range(2 * 150):  # until the step size has settled
            state = method.update(state, (sigma * torch.randn(d, generator=generator),))
        state = replace(state, params=start)
        for _ in range(2 * steps):
            state = method.update(state, (sigma * torch.randn(d, generator=generator),))
        moved = float((state.params - start).std())
        assert moved == pytest.approx(scale * (1 if variant == "paper" else 0.5**0.5), rel=0.05)


def test_the_tolerance_is_the_papers_where_weights_start_at_zero_and_travels_with_the_state() -> None:
    method = Adadp(1.0, 1.0, None, steps=7)
    assert method.tolerance_of(method.init(torch.zeros(50))) == default_tolerance(50, 7)
    state = method.init(torch.tensor([0.1, -0.4]))
    assert method.tolerance_of(state) == pytest.approx(default_tolerance(2, 7, 0.4))
    later = method.update(method.update(state, (torch.ones(2),)), (torch.ones(2),))
    again = State.from_tensors(later.tensors(), later.step)
    assert method.tolerance_of(again) == method.tolerance_of(state)


def test_state_round_trips_in_mid_step() -> None:
    method = Adadp(0.5, 1.0)
    state = method.update(method.init(torch.zeros(3)), (torch.ones(3),))
    again = State.from_tensors(state.tensors(), state.step)
    assert torch.equal(method.query(again).points[0], torch.full((3,), -0.25))
    last = (torch.tensor([0.5, 1.0, 2.0]),)
    assert torch.equal(method.update(again, last).params, method.update(state, last).params)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"step_size": 0.0}, "learning-rate"),
        ({"clip_norm": 0.0}, "clip-norm"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": None}, "steps"),
        ({"steps": 0}, "steps"),
        ({"alpha_min": 0.0}, "alpha-min"),
        ({"alpha_min": 1.1}, "alpha-min"),
        ({"alpha_max": 0.9}, "alpha-max"),
        ({"decay_after": 3}, "adadp-decay-after"),
        ({"decay_after": 0}, "adadp-decay-after"),
        ({"epoch": 0}, "epoch"),
        ({"decay": -0.1}, "decay"),
        ({"decay": math.inf}, "decay"),
        ({"variant": "authors"}, "variant"),
    ],
)
def test_bad_values_are_named(change: dict[str, object], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        Adadp(**{"step_size": 0.1, "clip_norm": 1.0, **change})  # type: ignore[arg-type]


def test_bad_tolerance_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="dimension"):
        default_tolerance(0, 1)
    with pytest.raises(ArgumentError, match="steps"):
        default_tolerance(1, 0)
    with pytest.raises(ArgumentError, match="scale"):
        default_tolerance(1, 1, 0.0)
