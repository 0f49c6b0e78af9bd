"""Private selection: every claim is compared with the winner's exact distribution."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.problems import START, Holder, accuracy, examples
from helpers.toys import CountingGate
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, BudgetExceeded, Event, UnsupportedEvent, epsilon, tally
from fedpriv.accounting.methods.rdp import ORDERS
from fedpriv.contrib.private_selection import Selection, Winner, calibrate, select, selected_divergences
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers import dp_sgd
from fedpriv.rng import Key

KEY = Key.from_seed(4)
Law = np.ndarray
FREE, BUDGET = Selection((), 0.2), Budget(1.0, 1e-5)


def winner(law: Law, gamma: float) -> Law:
    """The law of the best of K draws of ``law``, whose outcomes are in order of score; K is geometric.

    By brute force over K: P[best <= y] = sum_k gamma (1-gamma)^(k-1) F(y)^k.
    """
    below = np.minimum(np.cumsum(law), 1.0)
    k = np.arange(1, math.ceil(40 / gamma))[:, None]
    cumulative = (gamma * (1 - gamma) ** (k - 1) * below**k).sum(0)
    return np.diff(cumulative, prepend=0.0)


def hockey_stick(one: Law, other: Law, log_ratio: float) -> float:
    """delta at epsilon ``log_ratio``, the larger of both directions."""
    factor = math.exp(log_ratio)
    return max(np.maximum(a - factor * b, 0).sum() for a, b in ((one, other), (other, one)))


laws = st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4).map(lambda w: np.array(w) / sum(w))
gammas = st.floats(0.05, 1.0)


@settings(max_examples=80)
@given(laws, laws, gammas)
def test_pure_runs_make_a_winner_of_three_epsilon(one: Law, other: Law, gamma: float) -> None:
    once = float(np.abs(np.log(one / other)).max())
    chosen = float(np.abs(np.log(winner(one, gamma) / winner(other, gamma))).max())
    assert chosen <= 3 * once + 1e-6


def test_three_epsilon_is_tight() -> None:
    """An outcome that is rarer by e, where the better ones are more likely by e."""
    e, top, middle, gamma = 0.5, 0.05, 1e-4, 2e-4
    one = np.array([0.0, middle * math.exp(e), top * math.exp(-e)])
    other = np.array([0.0, middle, top])
    for law in (one, other):
        law[0] = 1 - law.sum()
    ratio = math.log(winner(one, gamma)[1] / winner(other, gamma)[1])
    assert 2.9 * e < ratio <= 3 * e


@settings(max_examples=80)
@given(laws, laws, gammas, st.floats(0.0, 1.5))
def test_approximate_runs_make_a_winner_of_the_stated_delta(
    one: Law, other: Law, gamma: float, e: float
) -> None:
    d = hockey_stick(one, other, e)
    claimed = d / (gamma + d * (1 - gamma))
    assert hockey_stick(winner(one, gamma), winner(other, gamma), 3 * e) <= claimed + 1e-9


@pytest.mark.parametrize("gamma", [0.05, 0.5, 1.0])
def test_the_stated_delta_is_tight(gamma: float) -> None:
    """A run that fails with probability d, and whose failure is the best of all scores."""
    d = 1e-3
    found = hockey_stick(winner(np.array([1 - d, d]), gamma), winner(np.array([1.0, 0.0]), gamma), 50.0)
    assert found == pytest.approx(d / (gamma + d * (1 - gamma)), rel=1e-9)


@settings(max_examples=60)
@given(laws, laws, gammas)
def test_divergences_of_the_winner(one: Law, other: Law, gamma: float) -> None:
    orders = np.array(ORDERS)

    def divergences(p: Law, q: Law) -> np.ndarray:
        logs = [[a * math.log(x) + (1 - a) * math.log(y) for x, y in zip(p, q, strict=True)] for a in orders]
        both = [np.logaddexp.reduce(row) / (a - 1) for a, row in zip(orders, logs, strict=True)]
        return np.maximum(both, 0)

    once = np.maximum(divergences(one, other), divergences(other, one))
    claimed = selected_divergences(once, gamma)
    chosen = winner(one, gamma), winner(other, gamma)
    assert (divergences(*chosen) <= claimed + 1e-6).all()
    assert (divergences(*reversed(chosen)) <= claimed + 1e-6).all()


@pytest.mark.parametrize("gamma", [0.1, 0.5])
@pytest.mark.parametrize("z", [2.0, 10.0])
def test_gaussian_runs_chosen_by_their_output(z: float, gamma: float) -> None:
    """The run adds noise to 0 or 1 and hands out, as its score, the answer: the winner's density is
    f'(F) times the run's. Integrated finely, its epsilon is below the claim and above one run's."""
    delta, run = 1e-5, (Event(z, "none", "add-remove"),)
    x = np.linspace(-12 * z, 12 * z + 1, 400_001)
    step = x[1] - x[0]
    densities = []
    for mean in (0.0, 1.0):
        law = stats.norm(mean, z)
        densities.append(law.pdf(x) * gamma / (1 - (1 - gamma) * law.cdf(x)) ** 2 * step)
        assert densities[-1].sum() == pytest.approx(1, abs=1e-9)
    selection = Selection(run, gamma)
    for answer in (selection.approximate(delta), selection.renyi(delta), selection.epsilon(delta)):
        assert hockey_stick(densities[0], densities[1], answer.epsilon) <= delta
        assert answer.kind == "bound"
    assert hockey_stick(densities[0], densities[1], epsilon(run, delta, "pld").epsilon) > delta


@pytest.mark.parametrize("gamma", [0.02, 0.5])
def test_one_run_is_accounted_at_the_delta_of_proof_2(gamma: float) -> None:
    run, wanted = (Event(4.0, "none", "add-remove"),), 1e-3
    found = Selection(run, gamma).approximate(wanted).epsilon
    d = wanted * gamma  # about; then d / (gamma + d (1-gamma)) must come back to what is wanted
    for _ in range(50):
        d = wanted * (gamma + d * (1 - gamma))
    assert found == pytest.approx(3 * epsilon(run, d, "pld").epsilon, rel=1e-9)
    assert found > 1.05 * 3 * epsilon(run, wanted, "pld").epsilon


def test_one_run_costs_one_run() -> None:
    run = (Event(2.0, "none", "add-remove"),)
    assert Selection(run, 1.0).approximate(1e-5).epsilon == epsilon(run, 1e-5, "pld").epsilon
    assert Selection(run, 1.0).renyi(1e-5).epsilon == epsilon(run, 1e-5, "rdp").epsilon


def test_truncation_costs_its_total_variation() -> None:
    run, gamma, delta = (Event(10.0, "poisson", "add-remove", 0.1, count=30),), 0.2, 1e-5
    free = Selection(run, gamma)
    long, short = dataclasses.replace(free, most=120), dataclasses.replace(free, most=5)
    assert long.cut == pytest.approx(0.8**120)
    for way in ("approximate", "renyi"):
        least, most = getattr(free, way)(delta).epsilon, getattr(long, way)(delta).epsilon
        assert least < most < 1.02 * least
        left = delta - (1 + math.exp(most)) * long.cut
        assert getattr(free, way)(left).epsilon <= most
        assert getattr(short, way)(delta).epsilon == math.inf


def test_calibration_spends_the_budget() -> None:
    run = (Event(1.0, "poisson", "add-remove", 0.05, count=40), Event(3.0, "poisson", "add-remove", 0.1))
    made = calibrate(Selection(run, gamma=0.1, most=200), Budget(2.0, 1e-5))
    assert (made.gamma, made.most) == (0.1, 200)
    assert made.run[1].noise_multiplier == pytest.approx(3 * made.run[0].noise_multiplier)
    assert 0.99 * 2.0 < made.epsilon(1e-5).epsilon <= 2.0
    with pytest.raises(ArgumentError, match="epsilon is inf"):
        calibrate(made, Budget(math.inf, 1e-5))


def test_a_selection_is_charged_once_before_any_run(tmp_path: Path) -> None:
    selection, path = Selection((Event(20.0, "none", "add-remove"),), 0.1), tmp_path / "selection.json"
    made: list[int] = []

    def one(candidate: int, key: Key) -> int:
        assert json.loads(path.read_text())["run"] == [selection.run[0].to_json()]
        made.append(1)
        return candidate

    with pytest.raises(BudgetExceeded, match="costs epsilon 0"):
        select(selection, Budget(0.4, 1e-5), one, [1], float, KEY, path)
    assert not path.exists()
    select(selection, Budget(0.5, 1e-5), one, [1], float, KEY, path)
    paid = json.loads(path.read_text())
    assert paid["epsilon"] == selection.epsilon(1e-5).epsilon
    assert (paid["gamma"], paid["most"], paid["delta"]) == (0.1, None, 1e-5)
    count = len(made)
    with pytest.raises(FileExistsError):
        select(selection, Budget(0.5, 1e-5), one, [1], float, KEY, path)
    assert len(made) == count > 0


def test_extremes_and_refusals() -> None:
    assert Selection((Event(0.0, "none", "add-remove"),), 0.5).epsilon(1e-5).epsilon == math.inf
    assert Selection((Event(math.inf, "none", "add-remove"),), 0.5).approximate(1e-5).epsilon == 0
    assert math.isfinite(Selection((Event(5.0, "poisson", "replace-one", 0.1),), 0.5).epsilon(1e-5).epsilon)
    with pytest.raises(UnsupportedEvent, match="poisson sampling under replace-one"):
        Selection((Event(5.0, "poisson", "replace-one", 0.1),), 0.5).renyi(1e-5)
    with pytest.raises(ArgumentError, match="truncation"):
        Selection((Event(5.0, "poisson", "add-remove", 0.1, truncation=1e-9),), 0.5).renyi(1e-5)
    for gamma, text in ((0.0, "gamma is 0.0"), (1.5, "gamma is 1.5")):
        with pytest.raises(ArgumentError, match=text):
            Selection((), gamma)
    with pytest.raises(ArgumentError, match="most is 0"):
        Selection((), 0.5, most=0)
    with pytest.raises(ArgumentError, match="candidates"):
        select(FREE, BUDGET, lambda c, key: c, [], float, KEY)


def test_the_winner_has_the_accounted_distribution() -> None:
    """Three equally likely results, 4,000 selections: chi-square with p > 1e-6, seed fixed. One run alone, or
    a geometric number that counts from 0 runs more, would fail by far."""
    gamma, count = 0.3, 4000
    found = [
        select(Selection((), gamma), BUDGET, lambda c, key: c, [0, 1, 2], float, KEY.child("law", i)).result
        for i in range(count)
    ]
    expected = winner(np.full(3, 1 / 3), gamma) * count
    assert stats.chisquare(np.bincount(found), expected).pvalue > 1e-6
    for wrong in (0.2, 0.4):
        assert stats.chisquare(np.bincount(found), winner(np.full(3, 1 / 3), wrong) * count).pvalue < 1e-6


def test_only_the_winner_is_returned_and_runs_have_separate_keys() -> None:
    assert {field.name for field in dataclasses.fields(Winner)} == {"candidate", "result", "score"}
    roots: list[bytes] = []

    def one(candidate: float, key: Key) -> float:
        roots.append(key.root)
        return candidate

    for i in range(20):
        best = select(FREE, BUDGET, one, [1.0, math.nan], lambda r: r, KEY.child("keys", i))
        assert best.score == (1.0 if best.candidate == 1.0 else -math.inf)
    assert len(set(roots)) == len(roots) > 40


def test_a_truncated_selection_makes_at_most_t_runs() -> None:
    made: list[int] = []
    seven = Selection((), 1e-6, most=7)
    select(seven, Budget(math.inf, 1e-5), lambda c, key: made.append(1), [0], lambda r: 0.0, KEY)
    assert len(made) == 7


def test_it_finds_a_step_size_for_dp_sgd() -> None:
    """As Koskela & Honkela 2020, section 5.3, do: eta_i = 10^(-i/2), scored on public data."""
    budget, sampler, rounds = Budget(8.0, 1e-4), Poisson(400, 0.2), 12
    event = replace(sampler.event(1.0), count=rounds)
    selection = calibrate(Selection((event,), gamma=0.2), budget)
    z = selection.run[0].noise_multiplier

    def train(rate: float, key: Key) -> torch.Tensor:
        mechanism = Mechanism(dp_sgd(rate, 1.0), sampler, Central(), z, rounds)
        budget_gate = CountingGate()
        end = run(mechanism, START, Holder(*examples(3)), budget_gate, key, CohortSampler(sampler, key, 1000))
        assert tally(budget_gate.charged) == tally(selection.run)
        return end.state.params

    rates = [10 ** (1 - i / 2) for i in range(8)]
    won = select(selection, budget, train, rates, lambda theta: accuracy(theta, seed=50), KEY.child("eta"))
    assert won.score == accuracy(won.result, seed=50)
    assert accuracy(won.result) > 0.8
