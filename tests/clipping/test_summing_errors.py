"""What float32's rounding adds to the sensitivity of a sum: far less than what exact noise makes up for."""

import pytest
import torch
from ways import noise

from fedpriv.clipping import sum_gradients
from fedpriv.query import Query, SumBlock, Term
from fedpriv.release import MARGIN
from fedpriv.tasks import Task


@pytest.mark.parametrize(("name", "count"), [("logistic", 1000), ("mlp", 1000), ("cnn", 250)])
@pytest.mark.parametrize("clip_norm", [0.01, 1.0])
def test_one_example_moves_the_computed_sum_by_hardly_more_than_the_clip_norm(
    name: str, count: int, clip_norm: float
) -> None:
    """Also through the rounding of all others' parts, which are added in another order without it."""
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
