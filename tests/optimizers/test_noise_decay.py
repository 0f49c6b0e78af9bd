"""Yu et al. 2019's forms of decay, as a straight-line run of them, and budgets enforced by zCDP and tCDP."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.toys import CountingGate, RowsEngine, world

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, calibrate, epsilon
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.release import SERVER
from fedpriv.mechanism.sampling import Everyone, Poisson, Sampler
from fedpriv.optimizers import Sgd, noise_decay
from fedpriv.optimizers.schedules import (
    ExponentialDecay,
    PerEpoch,
    PolynomialDecay,
    Schedule,
    StepDecay,
    TimeDecay,
)
from fedpriv.rng import Key

K, PERIOD, END, ROUNDS, EPOCH = 0.3, 4, 0.25, 18, 3
FORMS = {
    "time": (TimeDecay(K), lambda t: 1 / (1 + K * t)),
    "exponential": (ExponentialDecay(K), lambda t: math.exp(-K * t)),
    "step": (StepDecay(K, PERIOD), lambda t: K ** math.floor(t / PERIOD)),
    "polynomial": (
        PolynomialDecay(END, 3.0, PERIOD),
        lambda t: (1 - END) * (1 - min(t, PERIOD) / PERIOD) ** 3 + END,
    ),
}
every = pytest.mark.parametrize("form", FORMS)


@every
def test_the_forms_are_the_papers(form: str) -> None:
    schedule, formula = FORMS[form]
    values = [schedule(t) for t in range(40)]
    assert values == pytest.approx([formula(t) for t in range(40)], rel=1e-13)
    assert values[0] == 1
    assert all(a >= b > 0 for a, b in itertools.pairwise(values))
    assert [PerEpoch(schedule, 3)(t) for t in range(9)] == [schedule(t // 3) for t in range(9)]


@every
def test_a_run_is_noise_of_that_size_and_nothing_else(form: str) -> None:
    """In plain numpy: theta -= eta (sum of clipped gradients + z_t C noise) / N, with the run's own key."""
    schedule, formula = FORMS[form]
    key, rows, rate, clip, z = Key.from_seed(5), world(3), 0.3, 0.8, 2.0
    optimizer = noise_decay(Sgd(), rate, clip, schedule, epoch=EPOCH)
    mechanism = Mechanism(optimizer, Everyone(40), Central(), z, ROUNDS)
    start = torch.zeros(20, dtype=torch.float64)
    cohorts = CohortSampler(mechanism.sampler, key, 40)
    end = run(mechanism, start, RowsEngine(rows), CountingGate(), key, cohorts).state.params
    theta = np.zeros(20)
    for t in range(ROUNDS):
        gradients = theta - rows.numpy()
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients * np.minimum(1, clip / norms)).sum(0)
        noise = Normals(key, (SERVER, t), [start]).take()[0].numpy()
        theta = theta - rate * (total + z * formula(t // EPOCH) * clip * noise) / 40
    assert end.numpy() == pytest.approx(theta, rel=1e-9)


@pytest.mark.parametrize("method", ["zcdp", "tcdp"])
@pytest.mark.parametrize("sampler", [Everyone(1000), Poisson(1000, 0.02)])
@every
def test_their_accountants_hold_the_budget(form: str, sampler: Sampler, method: str) -> None:
    schedule: Schedule = FORMS[form][0]
    optimizer = noise_decay(Sgd(), 0.1, 1.0, schedule)
    events = [sampler.event(p.relative_noise) for p in optimizer.planned(ROUNDS)]
    scale = calibrate(events, Budget(1.2, 1e-5, method))
    charged = Mechanism(optimizer, sampler, Central(), scale, ROUNDS).planned_events()
    assert 0.98 * 1.2 < epsilon(charged, 1e-5, method).epsilon <= 1.2
    assert epsilon(charged, 1e-5, "pld").epsilon <= 1.2
    if method == "zcdp":  # in closed form: no credit for sampling
        rho = sum(0.5 / event.noise_multiplier**2 for event in charged)
        assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(1.2, rel=0.01)


def test_tcdp_credits_sampling_and_zcdp_does_not() -> None:
    """Why Du's Table 1 has zCDP at chance level where tCDP learns."""
    optimizer = noise_decay(Sgd(), 0.1, 1.0, ExponentialDecay(0.01), epoch=5)
    events = [Poisson(60_000, 0.004).event(p.relative_noise) for p in optimizer.planned(500)]
    scales = {m: calibrate(events, Budget(1.2, 1 / 600_000, m)) for m in ("zcdp", "tcdp", "pld")}
    assert scales["pld"] < scales["tcdp"] < scales["zcdp"] / 5


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: TimeDecay(0.0), "decay rate is 0.0"),
        (lambda: ExponentialDecay(math.inf), "decay rate is inf"),
        (lambda: StepDecay(1.0, 3), "decay factor is 1.0"),
        (lambda: StepDecay(0.5, 0), "decay period is 0"),
        (lambda: PolynomialDecay(0.0, 1.0, 5), "decay end is 0.0"),
        (lambda: PolynomialDecay(0.5, -1.0, 5), "decay power is -1.0"),
        (lambda: PerEpoch(TimeDecay(1.0), 0), "epoch length is 0"),
        (lambda: noise_decay(Sgd(), 0.0, 1.0, TimeDecay(1.0)), "learning-rate is 0.0"),
        (lambda: noise_decay(Sgd(), 0.1, 0.0, TimeDecay(1.0)), "clip-norm is 0.0"),
        (lambda: noise_decay(Sgd(), 0.1, 1.0, lambda t: 0.0), "noise decay at 0 is 0.0"),
    ],
)
def test_bad_values_are_named(make: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        make()  # type: ignore[operator]
