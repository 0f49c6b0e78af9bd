"""AdaCliP (Pichapati et al. 2019): straight-line runs, the sensitivity of centred units, public estimates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from helpers.problems import START as ZEROS
from helpers.problems import TASK, examples, logistic
from helpers.toys import CountingGate, RowsEngine, world

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.events import Event
from fedpriv.clipping import sum_rows
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.mechanism.release import SERVER
from fedpriv.mechanism.sampling import Everyone
from fedpriv.optimizers import AdaClip, FirstOrder, PrivateOptimizer, Sgd, State, dp_adam, dp_sgd
from fedpriv.optimizers import dynamic_dp_sgd as dynamic
from fedpriv.optimizers.base import OptimizerWrapper
from fedpriv.rng import Key

KEY, ROUNDS, N, D, ETA, Z = Key.from_seed(4), 15, 40, 20, 0.3, 0.5
H_1, H_2, BETA_1, BETA_2 = 1e-3, 0.3, 0.8, 0.7
START = torch.zeros(D, dtype=torch.float64)
SCHEDULED = dynamic(Sgd(), ETA, 1.2, ROUNDS, rho_c=3.0, rho_mu=2.0)


def adaclip(inner: FirstOrder = SCHEDULED) -> AdaClip:
    return AdaClip(inner, H_1, H_2, BETA_1, BETA_2, noise_std=Z / N, cohort=N)


def mechanism(optimizer: PrivateOptimizer) -> Mechanism:
    return Mechanism(optimizer, Everyone(N), Central(), Z, ROUNDS)


def trained(optimizer: PrivateOptimizer, rows: torch.Tensor, gate: CountingGate | None = None) -> State:
    cohorts = CohortSampler(Everyone(N), KEY, N)
    given = mechanism(optimizer), START, RowsEngine(rows), gate or CountingGate(), KEY, cohorts
    return run(*given).state


def straight_line(rows: np.ndarray, clips: list[float], noise: list[float]) -> tuple[np.ndarray, ...]:
    """The algorithm, one unit after the other."""
    theta, a, variance = np.zeros(D), np.zeros(D), np.full(D, math.sqrt(H_1 * H_2))
    for t in range(ROUNDS):
        s = np.sqrt(variance)
        b = np.sqrt(s) * np.sqrt(s.sum())
        sigma = noise[t] * clips[t]  # of the sum of the clipped w
        total = sigma * Normals(KEY, (SERVER, t), [START]).take()[0].numpy()
        for row in rows:
            w = ((theta - row) - a) / b
            total = total + w / max(1.0, np.linalg.norm(w) / clips[t])
        private = b * (total / N) + a
        v = N * ((private - a) ** 2 - (b * sigma / N) ** 2)
        variance = BETA_2 * variance + (1 - BETA_2) * np.minimum(np.maximum(v, H_1), H_2)
        a = BETA_1 * a + (1 - BETA_1) * private
        theta = theta - ETA * private
    return theta, a, variance


def test_it_is_its_algorithm_under_schedules() -> None:
    """Clip norms and noise multipliers that change, and variances at both bounds and between."""
    rows = world(1)
    end = trained(adaclip(), rows)
    clips = [SCHEDULED.clip_norm(t) for t in range(ROUNDS)]
    noise = [Z * SCHEDULED.relative_noise(t) for t in range(ROUNDS)]
    theta, mean, variance = straight_line(rows.numpy(), clips, noise)
    assert end.params.numpy() == pytest.approx(theta, rel=1e-9)
    assert end.slots["adaclip_mean"].numpy() == pytest.approx(mean, rel=1e-9)
    assert end.slots["adaclip_variance"].numpy() == pytest.approx(variance, rel=1e-9)
    assert len(set(np.round(variance, 6))) > 3


def reached() -> list[State]:
    """The states of a run of some steps, whose estimates are no longer those of the start."""
    method = adaclip()
    generator = np.random.Generator(np.random.Philox(8))
    states = [method.init(START)]
    for _ in range(6):
        answer = torch.as_tensor(generator.standard_normal(D) * np.geomspace(1e-3, 1, D))
        states.append(method.update(states[-1], (answer,)))
    return states


@pytest.mark.parametrize("state", reached()[::3], ids=["start", "third step", "sixth step"])
def test_a_unit_adds_a_vector_of_norm_at_most_c_and_an_absent_unit_adds_nothing(state: State) -> None:
    """The sensitivity in the space of w, next to a plain loop; gradients far above the scale reach it."""
    query = adaclip().query(state)
    (block,) = query.blocks
    bound = SCHEDULED.clip_norm(state.step)
    assert block.sensitivity == bound
    s = np.sqrt(state.slots["adaclip_variance"].numpy())
    a, b = state.slots["adaclip_mean"].numpy(), np.sqrt(s * s.sum())
    generator = np.random.Generator(np.random.Philox(9))
    norms = []
    for size in (0.0, 1e-3, 1.0, 1e3, 1e9):
        g = size * generator.standard_normal(D)
        w = (g - a) / b
        want = w * min(1.0, bound / np.linalg.norm(w)) if w.any() else w
        (got,) = sum_rows([torch.as_tensor(g)[None]], query.blocks)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-12)
        norms.append(float(got.norm()))
    assert max(norms) == pytest.approx(bound)
    (nobody,) = sum_rows([torch.zeros(0, D, dtype=torch.float64)], query.blocks)
    assert not nobody.any()
    (broken,) = sum_rows([torch.full((1, D), math.nan, dtype=torch.float64)], query.blocks)
    assert not broken.any()


def test_gradients_of_a_model_are_centred_before_they_are_clipped() -> None:
    """Ghost clipping would take such a model, but cannot centre: the sums equal those of a plain loop."""
    (x, y), d = examples(3, 50), len(ZEROS)
    generator = np.random.Generator(np.random.Philox(2))
    offset = torch.as_tensor(0.3 * generator.standard_normal(d))
    divisor = torch.as_tensor(generator.uniform(0.5, 2, d))
    query = Query((ZEROS + 0.1,), (SumBlock((Term(0.5, divisor=divisor, offset=offset),)),))
    (got,) = clipped_sum(OneGradient(), TASK, query, x, y)
    _, gradients = logistic(ZEROS.numpy() + 0.1, x.numpy(), y.numpy())
    want = np.zeros(d)
    for g in gradients:
        w = (g - offset.numpy()) / divisor.numpy()
        want += w * min(1.0, 0.5 / np.linalg.norm(w))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-6)


def test_each_step_is_charged_as_one_release_of_sensitivity_c() -> None:
    """The events are those of the inner method, whatever the data; the noise on w's sum is z r_t C_t."""
    charged = []
    for seed in (1, 2):
        gate = CountingGate()
        trained(adaclip(), 10.0**seed * world(seed), gate)
        charged.append(tuple(gate.charged))
    events = [Event(Z * SCHEDULED.relative_noise(t), "none", "replace-one") for t in range(ROUNDS)]
    multipliers = [event.noise_multiplier for event in events]
    assert charged[0] == charged[1] == mechanism(SCHEDULED).planned_events()
    assert [event.noise_multiplier for event in charged[0]] == pytest.approx(multipliers)
    for state in reached():
        stds = adaclip().query(state).noise_stds(Z)
        assert stds == pytest.approx((Z * SCHEDULED.clip_norm(state.step),))


@dataclass(frozen=True)
class Recording(OptimizerWrapper):
    """Keeps the answers."""

    answers: list[NoisyAnswer] = field(default_factory=list)

    def update(self, state: State, answer: NoisyAnswer) -> State:
        self.answers.append(answer)
        return self.inner.update(state, answer)


@pytest.mark.parametrize("inner", [SCHEDULED, dp_adam(ETA, 1.0)], ids=["sgd", "adam"])
def test_the_state_follows_from_released_answers_alone(inner: FirstOrder) -> None:
    """A new optimizer that is fed the released answers of a run, without any data, ends in the same state."""
    recording = Recording(adaclip(inner))
    end = trained(recording, world(1))
    method = adaclip(inner)
    state = method.init(START)
    for answer in recording.answers:
        state = method.update(state, tuple(part.clone() for part in answer))
    assert state.tensors().keys() == end.tensors().keys()
    assert all(torch.equal(state.tensors()[key], end.tensors()[key]) for key in end.tensors())


def test_the_variance_is_that_of_one_units_gradient() -> None:
    """From four times the truth it comes within 20 % of it, and so does the mean. The mean of m units has a
    standard deviation that is 7 times smaller. Hardly a unit is clipped; the seed is fixed.
    """
    generator = np.random.Generator(np.random.Philox(3))
    m, d, sigma, clip = 50, 40, 0.2, 100.0
    stds = torch.as_tensor(np.repeat([0.01, 0.1], d // 2))
    method = AdaClip(dp_sgd(1e-9, clip), 1e-12, 1e2, 0.9, 0.98, noise_std=sigma / clip / m, cohort=m)
    state = method.init(torch.zeros(d, dtype=torch.float64))
    state = replace(state, slots={**state.slots, "adaclip_variance": (4 * stds) ** 2})
    means, variances = [], []
    for _ in range(500):
        rows = 2.0 * stds + stds * torch.as_tensor(generator.standard_normal((m, d)))
        (total,) = sum_rows([rows], method.query(state).blocks)
        noisy = total + sigma * torch.as_tensor(generator.standard_normal(d))
        state = method.update(state, (noisy / m,))
        means.append(state.slots["adaclip_mean"])
        variances.append(state.slots["adaclip_variance"])
    mean, std = torch.stack(means[300:]).mean(0), torch.stack(variances[300:]).mean(0).sqrt()
    assert mean.numpy() == pytest.approx(2 * stds.numpy(), rel=0.2)
    for part, want in zip(std.split(d // 2), (0.01, 0.1), strict=True):
        assert float(part.mean()) == pytest.approx(want, rel=0.2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AdaClip(SCHEDULED, min_variance=0.0), "adaclip-min-variance is 0.0"),
        (lambda: AdaClip(SCHEDULED, max_variance=math.inf), "adaclip-max-variance is inf"),
        (lambda: AdaClip(SCHEDULED, min_variance=2.0), "at most adaclip-max-variance, 0.001"),
        (lambda: AdaClip(SCHEDULED, mean_decay=1.0), "adaclip-mean-decay is 1.0"),
        (lambda: AdaClip(SCHEDULED, variance_decay=-0.1), "adaclip-variance-decay is -0.1"),
        (lambda: AdaClip(SCHEDULED, noise_std=-1.0), "noise-std is -1.0"),
        (lambda: AdaClip(SCHEDULED, cohort=0.0), "cohort is 0.0"),
    ],
)
def test_bad_values_are_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make()


def test_settings_build_it_with_the_noise_and_the_cohort_of_the_run() -> None:
    plans = []
    for name in ("dynamic-adaclip", "dynamic-dp-sgd"):
        given = {"optimizer": name, "rho-c": 2.0, "rho-mu": 3.0, "rounds": 9, "clients": 2000}
        plans.append(make_plan(Config.parse(given)))
    plan, like = plans
    method, size = plan.mechanism.optimizer, plan.mechanism.sampler.expected_size
    assert isinstance(method, AdaClip)
    assert (method.cohort, method.noise_std) == pytest.approx((size, plan.mechanism.scale / size))
    assert method.inner.clip_norm == like.mechanism.optimizer.clip_norm  # type: ignore[attr-defined]
    assert plan.mechanism.planned_events() == like.mechanism.planned_events()
    assert plan.mechanism.scale == like.mechanism.scale


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"adaptive-quantile": 0.5}, "its scale adapts to the gradients by itself"),
        ({"adaclip-min-variance": 1.0}, "be at most adaclip-max-variance"),
        ({"noise-bands": 2, "sampler": "cyclic-poisson"}, "adaclip"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make_plan(Config.parse({"optimizer": "adaclip", **changes}))
