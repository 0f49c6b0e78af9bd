"""DP-GD and RRPSGD: lengths, samplers, budgets, and a run of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.problems import START, Holder, accuracy, examples
from helpers.toys import CountingBooks
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, epsilon
from fedpriv.contrib.gradient_descent import Baseline, dp_gd, rrpsgd
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.sampling import Everyone, FixedSize
from fedpriv.optimizers.random_rounds import draw_rounds
from fedpriv.optimizers.schedules import Geometric
from fedpriv.rng import Key

KEY = Key.from_seed(12)


def trained(method: Baseline, mechanism: Mechanism) -> tuple[torch.Tensor, CountingBooks]:
    budget_gate = CountingBooks()
    cohorts = CohortSampler(mechanism.sampler, KEY, 1000)
    outcome = run(mechanism, START, Holder(*examples(3)), budget_gate, KEY, cohorts)
    assert outcome.stopped == "rounds"
    return outcome.state.params, budget_gate


def test_dp_gd_asks_everyone_and_learns() -> None:
    budget = Budget(4.0, 1e-4)
    method = dp_gd(400, learning_rate=2.0, clip_norm=1.0, rounds=20)
    params, budget_gate = trained(method, method.mechanism(budget))
    assert (method.sampler, len(budget_gate.charged)) == (Everyone(400), 20)
    assert 0.98 * 4 < epsilon(budget_gate.charged, 1e-4, "pld").epsilon <= 4
    assert accuracy(params) > 0.85


def test_rrpsgd_samples_and_stops_at_its_round() -> None:
    budget = Budget(60.0, 1e-4, "zcdp")
    method = rrpsgd(400, 0.5, 1.0, most_rounds=120, generator=KEY.generator("r", 4), batch=20)
    assert method.sampler == FixedSize(400, 20)
    assert 1 < method.rounds < method.planned_rounds == 120
    mechanism = method.mechanism(budget)
    params, budget_gate = trained(method, mechanism)
    assert len(budget_gate.charged) == method.rounds
    whole = replace(mechanism, rounds=120).planned_events()  # the noise is that of all planned rounds
    spent = [epsilon(events, 1e-4, "zcdp").epsilon for events in (budget_gate.charged, whole)]
    assert spent[0] < 0.97 * 60 < spent[1] <= 60
    assert accuracy(params) > 0.75


def test_the_number_of_rounds_follows_ghadimi_and_lan() -> None:
    """P[R = k] ~ 2 eta_k - L eta_k^2: chi-square of 5,000 draws, p > 1e-6, seed fixed."""
    eta, smoothness = Geometric(0.9, 0.2, 6), 2.0
    weights = np.array([2 * eta(t) - smoothness * eta(t) ** 2 for t in range(6)])
    generator = KEY.generator("law")
    draws = [draw_rounds(6, generator, eta, smoothness) for _ in range(5000)]
    found = np.bincount(draws, minlength=7)[1:]
    assert stats.chisquare(found, 5000 * weights / weights.sum()).pvalue > 1e-6
    assert stats.chisquare(found, np.full(6, 5000 / 6)).pvalue < 1e-6
    flat = np.bincount([draw_rounds(6, generator) for _ in range(5000)], minlength=7)[1:]
    assert stats.chisquare(flat).pvalue > 1e-6


def test_a_random_iterate_of_dp_gd_has_the_noise_of_all_rounds() -> None:
    chosen = dp_gd(400, 1.0, 1.0, 50, random_iterate=KEY.generator("iterate"))
    assert 1 <= chosen.rounds < chosen.planned_rounds == 50
    budget = Budget(1.0, 1e-5)
    assert chosen.mechanism(budget).scale == dp_gd(400, 1.0, 1.0, 50).mechanism(budget).scale


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dp_gd(400, 0.0, 1.0, 5), "learning-rate is 0.0"),
        (lambda: dp_gd(400, 1.0, 0.0, 5), "clip-norm is 0.0"),
        (lambda: dp_gd(400, 1.0, 1.0, 0), "rounds is 0"),
        (lambda: rrpsgd(400, -1.0, 1.0, 5, KEY.generator("x")), "learning-rate is -1.0"),
        (lambda: rrpsgd(400, 1.0, 1.0, 5, KEY.generator("x"), smoothness=2.0), r"lie in \(0, 2 / 2\)"),
        (lambda: rrpsgd(400, 1.0, 1.0, 5, KEY.generator("x"), smoothness=-1.0), "smoothness is -1.0"),
        (lambda: rrpsgd(400, 1.0, 1.0, 5, KEY.generator("x"), batch=401), "cohort-size is 401"),
        (lambda: draw_rounds(0, KEY.generator("x")), "rounds is 0"),
    ],
)
def test_bad_values_are_named(make: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        make()  # type: ignore[operator]
