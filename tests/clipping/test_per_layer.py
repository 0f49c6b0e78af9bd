"""Clipping layer by layer: rows, book-keeping, clients and the plain loop agree, and S stays |w| C."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.clipping_paths import assert_all_ways_agree, noise, two_point_query
from helpers.plain_loop import clipped_sum_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_gradients, sum_rows, sum_rows_loop
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.client_update import LocalSteps, clipped_sum
from fedpriv.federated.worker import to_device
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.parameters import layout_of
from fedpriv.tasks.task import Task


def network():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3), nn.Linear(3, 3))


@st.composite
def layered_rows(draw):
    """Rows (n, d) whose layers have norms of any size, or are not finite; and the layers' sizes."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    n = draw(st.integers(1, 4))
    scales = [draw(st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e25, math.nan])) for _ in range(n * len(sizes))]
    scale = torch.tensor(scales).view(n, -1).repeat_interleave(torch.tensor(sizes), 1)
    return noise(n, sum(sizes), seed=draw(st.integers(0, 9))).float() * scale, sizes


@settings(max_examples=100)
@given(layered_rows(), st.sampled_from([0.1, 2.0, math.inf]))
def test_rows_equal_the_plain_loop(made, clip_norm):
    rows, sizes = made
    clips = SumBlock((Term(clip_norm, 0.5, per_layer=True), Term(1.0, -0.25)))
    want = sum_rows_loop([rows], [clips], sizes)
    for got, one in zip(sum_rows([rows], [clips], sizes), want, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-5, atol=1e-6)


@settings(max_examples=100)
@given(layered_rows(), st.sampled_from([0.1, 2.0]), st.sampled_from([1.0, -3.0]))
def test_one_unit_adds_at_most_the_sensitivity_and_each_layer_its_part(made, clip_norm, weight):
    rows, sizes = made
    block = SumBlock((Term(clip_norm, weight, per_layer=True),))
    assert block.sensitivity == pytest.approx(abs(weight) * clip_norm)
    for unit in rows:
        (added,) = sum_rows([unit[None]], [block], sizes)
        assert float(added.double().norm()) <= block.sensitivity * (1 + 1e-6)
        for part, own in zip(added.split(sizes), unit.split(sizes), strict=True):
            bound = clip_norm / math.sqrt(len(sizes))
            want = min(float(own.double().norm()), bound) if bool(unit.isfinite().all()) else 0.0
            assert float(part.double().norm()) == pytest.approx(abs(weight) * want, rel=1e-5, abs=1e-12)


def test_a_layer_is_a_module_with_its_weight_and_bias():
    layout = layout_of(network())
    assert layout.layers == (("0.weight", "0.bias"), ("3.weight", "3.bias"), ("4.weight", "4.bias"))
    assert layout.layer_sizes == (10, 57, 12)


def per_layer(query, factor=1.0):
    """The query with its terms clipped by layers, to ``factor`` times their norms."""
    blocks = [
        SumBlock(
            tuple(
                Term(factor * t.clip_norm, t.weight, t.at, t.divisor, per_layer=i % 2 == 0)
                for i, t in enumerate(block.terms)
            ),
            block.share,
        )
        for block in query.blocks
    ]
    return Query(query.points, tuple(blocks))


@pytest.mark.parametrize("factor", [0.3, 1.5])
def test_all_ways_of_summing_gradients_agree(factor):
    task = Task(network())
    x, y = noise(6, 1, 4, 4, seed=1), torch.arange(6) % 3
    query = per_layer(two_point_query(task, x, y), factor)
    flat = Query(query.points, two_point_query(task, x, y).blocks)
    assert not torch.allclose(sum_gradients(task, query, x, y)[0], sum_gradients(task, flat, x, y)[0])
    assert_all_ways_agree(task, query, x, y, 1e-9)


def test_local_steps_are_clipped_by_layers_too():
    task = Task(network())
    x, y, owner = noise(6, 1, 4, 4, seed=1), torch.arange(6) % 3, torch.tensor([0, 0, 1, 1, 1, 2])
    query = Query((0.3 * noise(task.dimension),), (SumBlock((Term(0.05, per_layer=True),)),))
    got = clipped_sum(LocalSteps(2, 0.1), task, query, x, y, owner)
    want = clipped_sum_loop(LocalSteps(2, 0.1), task, query, x, y, owner)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_query_on_another_device_still_clips_by_layers():
    term = Term(2.0, 0.5, (1.0, -1.0), torch.ones(3), per_layer=True, offset=torch.ones(3))
    query = Query((torch.zeros(3),) * 2, (SumBlock((term,)),), 1.5, 0.5, 2)
    there = to_device(query, torch.device("meta"))
    assert there.points[1].device.type == there.blocks[0].terms[0].divisor.device.type == "meta"
    assert there.blocks[0].terms[0].offset.device.type == "meta"
    same = replace(there.blocks[0].terms[0], divisor=term.divisor, offset=term.offset)
    assert replace(there, points=query.points, blocks=(SumBlock((same,)),)) == query


def test_layers_of_other_sizes_and_indicators_of_layers_are_refused():
    block = SumBlock((Term(1.0, per_layer=True),))
    for summed in (sum_rows, sum_rows_loop):
        with pytest.raises(ArgumentError, match="layers"):
            summed([torch.ones(2, 3)], [block])
    with pytest.raises(ArgumentError, match="bit"):
        IndicatorBlock(Term(1.0, per_layer=True), 1.0, 0.5)


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp2-rmsprop", "dp-srm"])
def test_a_run_is_configured_to_clip_by_layers_at_the_same_noise(optimizer):
    keys = {"optimizer": optimizer, "rounds": 6}
    plan = make_plan(Config.parse({**keys, "clipping": "per-layer"}))
    flat = make_plan(Config.parse(keys))
    state = plan.mechanism.optimizer.init(torch.zeros(4))
    query = plan.mechanism.optimizer.query(state)
    assert all(term.per_layer for block in query.blocks for term in block.terms)
    assert plan.events == flat.events
    assert query.noise_stds(1.0) == flat.mechanism.optimizer.query(state).noise_stds(1.0)


def test_an_adaptive_clip_norm_is_refused():
    with pytest.raises(ArgumentError, match="clipping"):
        make_plan(Config.parse({"optimizer": "dp-sgd", "adaptive-quantile": 0.5, "clipping": "per-layer"}))
