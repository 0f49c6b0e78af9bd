"""Rounding adds less to the sensitivity of a sum than the margin of exact noise, part by part."""

import numpy as np
import pytest
import torch
from helpers.clipping_paths import noise

from fedpriv import models
from fedpriv.clipping import sum_gradients
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.release import MARGIN
from fedpriv.tasks.task import Task


@pytest.mark.parametrize(("name", "count"), [("logistic", 1000), ("mlp", 1000), ("cnn", 250)])
@pytest.mark.parametrize("clip_norm", [0.01, 1.0])
def test_one_example_changes_the_computed_sum_by_the_clip_norm_up_to_rounding(
    name: str, count: int, clip_norm: float
) -> None:
    """Including the rounding of the other examples, which are added in another order without it."""
    task = Task(name)
    params = 0.1 * noise(task.dimension, seed=5).float()
    x, y = noise(count, 1, 28, 28, seed=1).abs().float(), torch.arange(count) % 10
    query = Query((params,), (SumBlock((Term(clip_norm),)),))
    [all_of_them] = sum_gradients(task, query, x, y, exact=True)
    for left_out in (0, count // 2, count - 1):
        others = torch.arange(count) != left_out
        [rest] = sum_gradients(task, query, x[others], y[others], exact=True)
        moved = float((all_of_them - rest).norm()) / clip_norm
        assert 0.99 < moved < 1 + MARGIN / 100


@pytest.mark.parametrize("chunk", [None, 1, 6])
@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_the_rounding_of_a_difference_does_not_depend_on_the_rest_of_the_batch(
    name: str, chunk: int | None
) -> None:
    """Between two almost equal points a difference is mostly rounding, which can reach a small clip norm. It
    must not depend on the other examples, for any chunk size."""
    generator = np.random.default_rng(5)
    lstm = models.build("lstm", (12,), 3, (30,), 0)
    task, n = Task(lstm if name == "lstm" else name), 41
    shape = (n, 12) if name == "lstm" else (n, 1, 28, 28)
    x = torch.as_tensor(generator.integers(0, 30, shape))
    x = x if name == "lstm" else x.float() / 30
    y = torch.as_tensor(generator.integers(0, 3, n))
    for _ in range(6):
        params = task.initial(generator) * 10 ** generator.uniform(-1, 1)
        points = params, torch.nextafter(params, 2 * params)
        query = Query(points, (SumBlock((Term(1e-10, 1.0, (1.0, -1.0)),)),))
        [everyone] = sum_gradients(task, query, x, y, chunk)
        for left_out in (0, n - 1):
            others = torch.arange(n) != left_out
            [rest] = sum_gradients(task, query, x[others], y[others], chunk)
            assert float((everyone.double() - rest.double()).norm()) <= 1e-10 * (1 + 1e-5)


VECTOR_SHARE, SUM_SHARE = 2.0**-14, 2.0**-12  # the parts of MARGIN, as fedpriv.mechanism.release has them


def even(task: Task, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Equal examples of equal entries, whose rounding has one direction."""
    return torch.full((count, 1, 28, 28), 0.7), torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0])
@pytest.mark.parametrize("divided", [False, True])
def test_a_vector_is_longer_than_its_clip_norm_by_less_than_its_share(
    name: str, clip_norm: float, divided: bool
) -> None:
    task = Task(name)
    params = 0.1 * noise(task.dimension, seed=5).float()
    divisor = torch.full((task.dimension,), 0.3) if divided else None
    query = Query((params,), (SumBlock((Term(clip_norm, divisor=divisor),)),))
    steep = noise(1, 1, 28, 28, seed=3).float() * 30, torch.zeros(1, dtype=torch.int64)
    for x, y in (even(task, 1), steep):
        [total] = sum_gradients(task, query, x, y, exact=True)
        assert total.dtype == torch.float64
        assert float(total.norm()) <= clip_norm * (1 + VECTOR_SHARE)


def test_exact_sums_of_examples_that_round_in_one_direction_are_accurate() -> None:
    task, count = Task("logistic"), 5000
    params = 0.1 * noise(task.dimension, seed=5).float()
    query = Query((params,), (SumBlock((Term(1.0),)),))
    [one] = sum_gradients(task, query, *even(task, 1), exact=True)
    lost = {
        exact: float((sum_gradients(task, query, *even(task, count), exact=exact)[0] - count * one).norm())
        for exact in (True, False)
    }
    assert lost[True] <= SUM_SHARE / 2  # each of two sums
    assert lost[False] > SUM_SHARE  # a float32 sum has no margin that would do


def test_the_shares_are_within_the_margin() -> None:
    assert VECTOR_SHARE + SUM_SHARE < MARGIN
