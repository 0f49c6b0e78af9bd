"""float32 rounding adds far less to the sensitivity of a sum than the allowance of exact noise."""

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
    [all_of_them] = sum_gradients(task, query, x, y)
    for left_out in (0, count // 2, count - 1):
        others = torch.arange(count) != left_out
        [rest] = sum_gradients(task, query, x[others], y[others])
        moved = float((all_of_them.double() - rest.double()).norm()) / clip_norm
        assert 0.99 < moved < 1 + MARGIN / 10


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
