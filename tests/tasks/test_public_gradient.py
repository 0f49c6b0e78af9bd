"""Public data: the choice of examples, and the gradient on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.problems import START, TASK, Holder, accuracy, examples, logistic
from helpers.toys import CountingGate

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Pair
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers import AdaDps, PdaDpmd
from fedpriv.optimizers.schedules import Constant
from fedpriv.rng import Key
from fedpriv.tasks.public_gradient import PublicGradient, split


@pytest.mark.parametrize(("size", "count"), [(10, 0), (10, 1), (10, 3), (10, 9), (1797, 18)])
def test_public_examples_are_spread_and_not_evaluated_on(size: int, count: int) -> None:
    test = Pair(torch.arange(float(size)), torch.arange(size))
    public, rest = split(test, count)
    assert len(public.y) == count
    assert sorted([*public.y.tolist(), *rest.y.tolist()]) == list(range(size))
    assert torch.equal(public.x.long(), public.y)
    if count > 1:
        gaps = public.y.diff()
        assert int(gaps.max() - gaps.min()) <= 1


def test_something_is_left_to_evaluate_on() -> None:
    test = Pair(torch.arange(4.0), torch.arange(4))
    with pytest.raises(ArgumentError, match="public-examples is 4; it must be below 4"):
        split(test, 4)


@pytest.mark.parametrize("batch", [0, 7])
def test_the_gradient_is_that_of_the_mean_loss_on_the_steps_batch(batch: int) -> None:
    x, y = examples(5, 18)
    theta = np.linspace(-1, 1, 12)
    gradient = PublicGradient(TASK, Pair(x, y), batch)
    for step in (0, 1, 5):
        rows = [(step * batch + i) % 18 for i in range(batch)] if batch else list(range(18))
        expected = logistic(theta, x.numpy()[rows], y.numpy()[rows])[1].mean(0)
        assert gradient(torch.from_numpy(theta), step).numpy() == pytest.approx(expected, rel=1e-9)
    single = gradient(torch.from_numpy(theta).float(), 0)
    assert single.dtype == torch.float32


def test_sizes_are_checked() -> None:
    x, y = examples(5, 4)
    with pytest.raises(ArgumentError, match="public-batch is 5; it must be at most the 4"):
        PublicGradient(TASK, Pair(x, y), 5)
    with pytest.raises(ArgumentError, match="public-examples is 0"):
        PublicGradient(TASK, Pair(x[:0], y[:0]))


@pytest.mark.parametrize("name", ["adadps", "pda-dpmd"])
def test_they_learn_with_a_few_public_examples(name: str) -> None:
    public = PublicGradient(TASK, Pair(*examples(7, 12)), 6)
    method = (
        AdaDps(Constant(0.05), 3.0, public, epsilon=0.01)
        if name == "adadps"
        else PdaDpmd(Constant(1.0), 1.0, public, 30)
    )
    key = Key.from_seed(1)
    mechanism = Mechanism(method, Poisson(400, 0.2), Central(), 2.0, 30)
    end = run(
        mechanism,
        START,
        Holder(*examples(3)),
        CountingGate(),
        key,
        CohortSampler(mechanism.sampler, key, 1000),
    )
    assert accuracy(end.state.params) > 0.8
