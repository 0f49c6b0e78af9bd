"""Reshuffled epochs: the worst unit by brute force, the algorithm in plain numpy, the noise that follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.problems import START, TASK, accuracy, examples, logistic
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, Filter, epsilon
from fedpriv.contrib import reshuffling
from fedpriv.contrib.reshuffling import Stalling, event, follow, planned_multipliers, train
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.release import SERVER
from fedpriv.optimizers import Adadp, dp_sgd, noise_decay
from fedpriv.optimizers.first_order import Sgd
from fedpriv.optimizers.schedules import ExponentialDecay, TimeDecay
from fedpriv.rng import Key

KEY = Key.from_seed(6)


def budget_gate(total: float) -> Filter:
    return Filter(Budget(total, 1e-5, "zcdp"))


def test_every_unit_is_in_one_batch_of_an_epoch() -> None:
    for epoch in range(3):
        batches = list(reshuffling._batches(10, 3, KEY, epoch))
        assert [len(b) for b in batches] == [3, 3, 3, 1]
        assert sorted(torch.cat(batches).tolist()) == list(range(10))
    orders = {tuple(torch.cat(list(reshuffling._batches(10, 3, KEY, e))).tolist()) for e in range(20)}
    assert len(orders) == 20


@pytest.mark.parametrize(("units", "size"), [(4, 2), (6, 2), (6, 3)])
def test_the_worst_unit_of_an_epoch_loses_what_its_event_says(units: int, size: int) -> None:
    """Sums of numbers clipped to [-1, 1], a unit replaced by its worst opposite, all else at its worst too.

    The exact privacy loss over all permutations: the answers are a mixture, over which batch the unit is in,
    of Gaussians that differ by 2 in one coordinate. delta by Monte Carlo over the answers, at epsilons where
    the event's exact delta is 0.3 to 0.02: it may exceed that by 5 standard errors of 100,000 draws (flake
    rate below 1e-6). Against an observer who knows the permutation the event is exact.
    """
    z, draws, batches = 1.5, 100_000, units // size
    generator = np.random.Generator(np.random.Philox(units))
    where = generator.integers(batches, size=draws)
    answers = z * generator.standard_normal((draws, batches))
    answers[np.arange(draws), where] += 1  # data with +1 there; the neighbour's has -1
    known = 2 * answers[np.arange(draws), where] / z**2
    up = stats.norm.logpdf(answers, 1, z) - stats.norm.logpdf(answers, 0, z)
    down = stats.norm.logpdf(answers, -1, z) - stats.norm.logpdf(answers, 0, z)
    hidden = np.logaddexp.reduce(up, axis=1) - np.logaddexp.reduce(down, axis=1)
    for delta in (0.3, 0.1, 0.02):
        claimed = epsilon([event(z)], delta, "pld").epsilon
        for loss, exact in ((known, True), (hidden, False)):
            terms = np.maximum(-np.expm1(claimed - loss), 0)
            error = 5 * terms.std() / math.sqrt(draws)
            assert terms.mean() <= delta + error
            assert not exact or terms.mean() >= delta - error
        less = np.maximum(-np.expm1(0.8 * claimed - known), 0)
        assert less.mean() > delta + 5 * less.std() / math.sqrt(draws)  # a smaller claim fails


def test_it_is_sgd_over_permutations_in_plain_numpy() -> None:
    x, y = examples(1, 50)
    zs, rate, clip, batch = [3.0, 2.0, 1.0], 0.4, 0.6, 20
    end = train(dp_sgd(rate, clip), follow(zs), TASK, x, y, START, batch, budget_gate(50.0), KEY)
    theta, index = np.zeros(12), 0
    for epoch, z in enumerate(zs):
        order = KEY.generator("reshuffle", epoch).permutation(50)
        for start in range(0, 50, batch):
            rows = order[start : start + batch]
            gradients = logistic(theta, x.numpy()[rows], y.numpy()[rows])[1]
            gradients *= np.minimum(1, clip / np.linalg.norm(gradients, axis=1))[:, None]
            noise = Normals(KEY, (SERVER, index), [START]).take()[0].numpy()
            theta = theta - rate * (gradients.sum(0) + z * clip * noise) / batch
            index += 1
    assert end.state.params.numpy() == pytest.approx(theta, rel=1e-9)
    assert (end.epochs, end.stopped) == (3, "epochs")


def test_planned_noise_spends_the_budget_and_the_filter_loses_nothing() -> None:
    budget = Budget(2.0, 1e-5, "zcdp")
    zs = planned_multipliers(ExponentialDecay(0.05), 12, budget)
    assert [z / zs[0] for z in zs] == pytest.approx([math.exp(-0.05 * t) for t in range(12)])
    spent = epsilon([event(z) for z in zs], 1e-5, "zcdp").epsilon
    assert 0.99 * 2 < spent <= 2
    x, y = examples(1, 40)
    held = Filter(budget)
    end = train(dp_sgd(0.1, 1.0), follow(zs), TASK, x, y, START, 10, held, KEY)
    assert (end.epochs, end.stopped, held.used > 0.97) == (12, "epochs", True)
    assert end.state.step == 48
    more = train(dp_sgd(0.1, 1.0), follow(zs), TASK, x, y, START, 10, held, KEY)
    assert (more.epochs, more.stopped) == (0, "budget")
    assert torch.equal(more.state.params, START)


def test_noise_falls_where_the_public_accuracy_stalls() -> None:
    scores = iter([0.1, 0.5, 0.505, 0.5, 0.9])
    rule = Stalling(lambda params: next(scores), start=4.0, factor=0.5, period=2, least=0.01, epochs=10)
    zs = [rule(epoch, START) for epoch in range(11)]
    assert zs == [4.0, 4.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, None]


def test_stalling_noise_ends_at_the_budget() -> None:
    x, y = examples(1, 40)
    rule = Stalling(lambda params: 0.0, start=30.0, factor=0.5, period=1, least=0.01, epochs=100)
    held = budget_gate(1.0)
    end = train(dp_sgd(0.1, 1.0), rule, TASK, x, y, START, 10, held, KEY)
    charged = [30.0 * 0.5**t for t in range(end.epochs)]
    assert end.stopped == "budget"
    assert held.used * held.limit == pytest.approx(sum(2 / z**2 for z in charged))  # 2 C over z C


def test_it_learns() -> None:
    x, y = examples(3)
    zs = planned_multipliers(TimeDecay(0.05), 8, Budget(10.0, 1e-4, "zcdp"))
    held = Filter(Budget(10.0, 1e-4, "zcdp"))
    end = train(dp_sgd(1.0, 1.0), follow(zs), TASK, x, y, START, 100, held, KEY)
    assert accuracy(end.state.params) > 0.85


def test_what_is_refused_is_refused_before_any_charge() -> None:
    x, y = examples(1, 20)
    held = budget_gate(1.0)
    decaying = noise_decay(Sgd(), 0.1, 1.0, TimeDecay(1.0))
    for optimizer, batch, text in (
        (dp_sgd(0.1, 1.0), 21, "batch is 21; it must be at most 20"),
        (dp_sgd(0.1, 1.0), 0, "batch is 0"),
        (Adadp(0.1, 1.0, 1.0), 5, "optimizer is 'Adadp'"),
    ):
        with pytest.raises(ArgumentError, match=text):
            train(optimizer, follow([9.0]), TASK, x, y, START, batch, held, KEY)  # type: ignore[arg-type]
    assert held.used == 0
    with pytest.raises(ArgumentError, match="FirstOrder"):  # its noise belongs to the epochs
        train(decaying, follow([30.0]), TASK, x, y, START, 5, held, KEY)


def test_a_key_that_another_run_has_used_is_refused() -> None:
    """The loop's noise and this one's are of the same labels."""
    x, y = examples(1, 12)
    key, paid = Key.fresh(), budget_gate(50.0)
    for release in (0, 3):
        used = Key.fresh()
        used.once("release", release)
        with pytest.raises(ArgumentError, match=f"'release {release}' was already made"):
            train(dp_sgd(0.1, 1.0), follow([2.0]), TASK, x, y, START, 3, budget_gate(50.0), used)
    train(dp_sgd(0.1, 1.0), follow([2.0]), TASK, x, y, START, 3, paid, key)
    with pytest.raises(ArgumentError, match="The key was used before"):
        key.once("release", 3)
