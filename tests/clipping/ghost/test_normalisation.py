"""Normalisations and scales: book-keeping, rows, the plain loop and Opacus agree."""

import pytest
import torch
from helpers.clipping_paths import (
    assert_all_ways_agree,
    assert_opacus_agrees,
    noise,
    one_point_query,
    two_point_query,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpriv.clipping.ghost.layers.normalisation import Scale
from fedpriv.tasks.task import Task


def model_of(layer, shape):
    """The layer on inputs (n, *shape) between two others, so that its gradients depend on all inputs."""
    return nn.Sequential(nn.Tanh(), layer, nn.Tanh(), nn.Flatten(), nn.Linear(shape.numel(), 3))


@st.composite
def layers(draw):
    """A normalisation or scale and the shape of one example's input."""
    channels, sides = 2 * draw(st.integers(1, 3)), draw(st.lists(st.integers(2, 4), max_size=2))
    shape = torch.Size([channels, *sides])
    last = shape[draw(st.integers(0, len(sides))) :]
    bias, affine = draw(st.booleans()), draw(st.sampled_from([True, True, True, False]))
    kinds = [
        lambda: nn.LayerNorm(last, bias=bias, elementwise_affine=affine),
        lambda: nn.RMSNorm(last, elementwise_affine=affine, eps=0.1 if bias else None),
        lambda: nn.GroupNorm(1 if bias else channels // 2, channels, eps=0.1, affine=affine),
        lambda: Scale(*last, bias=bias),
        lambda: nn.PReLU(channels if affine else 1),
        lambda: Scale(channels, *[1] * len(sides), bias=bias),
    ]
    if sides:
        kind = (nn.InstanceNorm1d, nn.InstanceNorm2d)[len(sides) - 1]
        kinds.append(lambda: kind(channels, affine=affine))
    return draw(st.sampled_from(kinds))(), shape


@settings(max_examples=15)
@given(layers(), st.integers(2, 7), st.sampled_from([torch.float32, torch.float64]))
def test_random_layers_are_summed_exactly(layer, n, dtype):
    task = Task(model_of(*layer))
    x, y = noise(n, *layer[1], seed=1).to(dtype), torch.arange(n) % 3
    query = one_point_query(task, x, y, dtype)
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


CASES = [
    (nn.LayerNorm(4), (3, 4)),
    (nn.RMSNorm((3, 4)), (2, 3, 4)),
    (nn.GroupNorm(2, 4), (4, 3)),
    (nn.InstanceNorm2d(4, affine=True), (4, 3, 3)),
    (Scale(4, 1, 1), (4, 3, 3)),
    (nn.PReLU(4), (4, 3, 3)),
    (nn.PReLU(), (4,)),
]
each_case = pytest.mark.parametrize(("layer", "shape"), CASES, ids=lambda value: type(value).__name__)


@each_case
def test_two_points_divisors_and_clients_are_summed_exactly(layer, shape):
    task = Task(model_of(layer, torch.Size(shape)))
    x, y = noise(6, *shape), torch.arange(6) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize(("layer", "shape"), CASES[:4], ids=lambda value: type(value).__name__)
def test_norms_are_those_of_opacus(layer, shape):
    assert_opacus_agrees(model_of(layer, torch.Size(shape)), noise(6, *shape), torch.arange(6) % 3)
