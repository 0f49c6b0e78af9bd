"""Noisy AdaGrad (Kairouz et al. 2021; Li et al. 2023, appendix C.6): two blocks, one event, a subspace."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.problems import START as ZEROS
from helpers.problems import TASK, examples, logistic
from helpers.toys import CountingGate, RowsEngine, world

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Pair
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.release import SERVER
from fedpriv.mechanism.sampling import Everyone
from fedpriv.optimizers import NoisyAdaGrad, dp_sgd
from fedpriv.optimizers.noisy_adagrad import projected
from fedpriv.optimizers.schedules import Constant
from fedpriv.rng import Key
from fedpriv.tasks.public_gradient import PublicGradient

KEY, ROUNDS, N, D, ETA, Z = Key.from_seed(6), 10, 40, 20, 0.3, 0.5
C_1, C_2, RANK, EPSILON = 1.5, 0.8, 3, 0.2
START = torch.zeros(D, dtype=torch.float64)
PUBLIC = np.random.Generator(np.random.Philox(1)).uniform(0, 1, (5, D))


def public(theta: torch.Tensor, step: int) -> torch.Tensor:
    return torch.as_tensor(PUBLIC) * (1 + 0.1 * step) + 0.1 * theta


def method(clip_norm: float = C_1, square: float = C_2) -> NoisyAdaGrad:
    return NoisyAdaGrad(Constant(ETA), clip_norm, square, public, RANK, EPSILON)


def trained(rows: torch.Tensor, gate: CountingGate) -> torch.Tensor:
    mechanism = Mechanism(method(), Everyone(N), Central(), Z, ROUNDS)
    cohorts = CohortSampler(mechanism.sampler, KEY, N)
    return run(mechanism, START, RowsEngine(rows), gate, KEY, cohorts).state.params


def clipped(vector: np.ndarray, bound: float) -> np.ndarray:
    return np.asarray(vector * min(1.0, bound / np.linalg.norm(vector)))


def test_it_is_its_algorithm() -> None:
    """Appendix C.6, one unit after the other; the subspace is that of the d x d matrix M_t."""
    rows = world(1)
    theta, accumulated = np.zeros(D), np.zeros(D)
    for t in range(ROUNDS):
        gradients = [theta - row for row in rows.numpy()]
        noise = [part.numpy() for part in Normals(KEY, (SERVER, t), [START, START]).take()]
        y = sum(clipped(g, C_1) for g in gradients) + math.sqrt(2) * Z * C_1 * noise[0]
        h = sum(clipped(g**2, C_2) for g in gradients) + math.sqrt(2) * Z * C_2 * noise[1]
        accumulated = accumulated + h / N
        there = public(torch.as_tensor(theta), t).numpy()
        _, vectors = np.linalg.eigh(sum(np.outer(g, g) for g in there) / len(there))
        v = vectors[:, -RANK:]
        divisor = np.sqrt(np.maximum(v @ v.T @ accumulated, 0)) + EPSILON
        theta = theta - ETA * (y / N) / divisor
    found = trained(rows, CountingGate())
    assert found.numpy() == pytest.approx(theta, rel=1e-6)


def test_two_blocks_are_one_event_of_their_common_multiplier() -> None:
    """sum_j (S_j / sigma_j)^2 is z^-2, and each release is charged once, as of DP-SGD, whatever the data."""
    query = method().query(method().init(START))
    assert [block.sensitivity for block in query.blocks] == [C_1, C_2]
    stds = query.noise_stds(Z)
    assert stds == pytest.approx((math.sqrt(2) * Z * C_1, math.sqrt(2) * Z * C_2))
    assert (C_1 / stds[0]) ** 2 + (C_2 / stds[1]) ** 2 == pytest.approx(Z**-2)
    charged = []
    for seed in (1, 2):
        gate = CountingGate()
        trained(10.0**seed * world(seed), gate)
        charged.append(tuple(gate.charged))
    like = Mechanism(dp_sgd(ETA, C_1), Everyone(N), Central(), Z, ROUNDS)
    assert charged[0] == charged[1] == like.planned_events()


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e3, 1e9, math.nan])
def test_a_unit_adds_at_most_c_to_either_block(size: float) -> None:
    g = size * np.random.Generator(np.random.Philox(3)).standard_normal(D)
    query = method().query(method().init(START))
    sums = sum_rows([torch.as_tensor(g)[None]], query.blocks)
    for got, whole, bound in zip(sums, (g, g**2), (C_1, C_2), strict=True):
        want = clipped(whole, bound) if np.isfinite(whole).all() and whole.any() else np.zeros(D)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-15)
        assert float(got.norm()) <= bound * (1 + 1e-9)


def test_the_gradients_of_a_model_are_squared_before_they_are_clipped() -> None:
    """Ghost clipping would take such a model, but has no norm of squares. A plain loop gives the same."""
    x, y = examples(3, 50)
    query = Query((ZEROS + 0.1,), (SumBlock((Term(0.05, squared=True),)),))
    (got,) = clipped_sum(OneGradient(), TASK, query, x, y)
    _, gradients = logistic(ZEROS.numpy() + 0.1, x.numpy(), y.numpy())
    want = sum(clipped(g**2, 0.05) for g in gradients)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-9)


def test_the_projection_keeps_the_subspace_and_drops_the_rest() -> None:
    generator = np.random.Generator(np.random.Philox(4))
    rows = torch.as_tensor(generator.standard_normal((2, 7)))
    inside = 2 * rows[0] - 3 * rows[1]
    torch.testing.assert_close(projected(inside, rows, 5), inside)
    twice = torch.stack([rows[0], rows[0], rows[0]])  # of rank 1: no direction is made up
    outside = rows[1] - rows[0] * (rows[0] @ rows[1]) / (rows[0] @ rows[0])
    torch.testing.assert_close(projected(outside, twice, 3), torch.zeros(7, dtype=torch.float64))
    assert not projected(inside, torch.zeros(3, 7, dtype=torch.float64), 2).any()


def test_public_rows_are_the_gradients_whose_mean_is_the_public_gradient() -> None:
    x, y = examples(5, 9)
    gradient = PublicGradient(TASK, Pair(x, y), 4)
    for step in range(3):
        rows = gradient.rows(ZEROS + 0.1, step)
        own = [(4 * step + i) % 9 for i in range(4)]
        _, want = logistic(ZEROS.numpy() + 0.1, x.numpy()[own], y.numpy()[own])
        np.testing.assert_allclose(rows.numpy(), want, atol=1e-9)
        torch.testing.assert_close(rows.mean(0), gradient(ZEROS + 0.1, step))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: method(clip_norm=0.0), "clip-norm is 0.0"),
        (lambda: method(square=-1.0), "noisy-adagrad-clip-norm is -1.0"),
        (lambda: NoisyAdaGrad(Constant(1.0), 1.0, 1.0, public, rank=0), "noisy-adagrad-rank is 0"),
        (lambda: NoisyAdaGrad(Constant(1.0), 1.0, 1.0, public, epsilon=0.0), "noisy-adagrad-epsilon is 0.0"),
    ],
)
def test_bad_values_are_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make()


def test_the_second_clip_norm_is_the_square_of_the_first() -> None:
    given = {"optimizer": "noisy-adagrad", "public-examples": 7, "clip-norm": 0.5, "averaging": 0.0}
    made = make_plan(Config.parse({**given, "clients": 2000, "rounds": 5})).mechanism.optimizer
    assert isinstance(made, NoisyAdaGrad)
    assert (made.clip_norm, made.square_clip_norm, made.rank) == (0.5, 0.25, 7)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"public-examples": 0}, "public-examples"),
        ({"public-examples": 5, "noisy-adagrad-rank": 6}, "noisy-adagrad-rank"),
        ({"public-examples": 20, "public-batch": 5, "noisy-adagrad-rank": 6}, "noisy-adagrad-rank"),
        ({"public-examples": 20, "adaptive-quantile": 0.5}, "it has two clip norms"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make_plan(Config.parse({"optimizer": "noisy-adagrad", **changes}))
