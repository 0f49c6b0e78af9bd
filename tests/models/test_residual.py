"""Residual networks: filters are standardised, examples stay apart, sums are those of the plain loop."""

import numpy as np
import pytest
import torch

from fedpriv import models
from fedpriv.clipping.per_example import sum_gradients, sum_gradients_loop
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.models.layers import StandardisedConv2d
from fedpriv.parameters import layout_of
from fedpriv.tasks.task import Task


def test_filters_have_mean_zero_and_norm_one_and_scales_of_weights_do_not_matter():
    layer, seen = StandardisedConv2d(2, 3, 3, bias=False), []
    layer._conv_forward = lambda x, weight, bias: seen.append(weight) or x
    for scale in (1.0, 10.0):
        layer.weight.data *= scale
        layer(torch.zeros(1, 2, 5, 5))
        filters = seen[-1].flatten(1)
        torch.testing.assert_close(filters.mean(1), torch.zeros(3), atol=1e-6, rtol=0)
        torch.testing.assert_close(filters.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize("name", ["resnet-20", "wrn-16-4"])
def test_scales_start_at_one_and_outputs_of_an_example_stay_its_own(name):
    task = Task(models.build(name, (3, 8, 8), 10))
    point = task.initial(np.random.default_rng(0))
    parts = layout_of(task.module.requires_grad_(True)).split(point)
    assert all(
        bool((part == (1 if slot.endswith("weight") else 0)).all())
        for slot, part in parts.items()
        if "norm" in slot
    )
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    outputs = task.outputs(point, x)
    assert 0.05 < float(outputs.std()) < 5
    x[0], x[2] = torch.nan, 100.0
    torch.testing.assert_close(task.outputs(point, x)[1], outputs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_clipped_sums_are_those_of_the_plain_loop():
    task = Task(models.build("resnet-20", (1, 8, 8), 4))
    point = task.initial(np.random.default_rng(0))
    x, y = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(3)
    query = Query((point,), (SumBlock((Term(float(task.gradients(point, x, y).norm(dim=1).median())),)),))
    found, wanted = (way(task, query, x, y)[0] for way in (sum_gradients, sum_gradients_loop))
    assert float((found - wanted).norm()) <= 1e-5 * float(wanted.norm())
