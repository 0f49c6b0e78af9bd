"""Tensors without a layer rule: only their gradients are formed, and all ways of summing agree."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers.clipping_paths import assert_all_ways_agree, noise, one_point_query, two_point_query
from helpers.plain_loop import clipped_sum_loop
from numpy.random import default_rng
from torch import nn

from fedpriv.clipping import per_example, sum_gradients, sum_gradients_loop, sum_rows
from fedpriv.clipping.dropout import example_seeds
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.federated.client_update import OneGradient, _cost, clipped_sum
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop.*linear")  # as rows have it


def head(width=8):
    return nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, 4))


class Positions(nn.Module):
    """Position embeddings and a class token as raw parameters."""

    def __init__(self):
        super().__init__()
        self.table, self.mark = nn.Parameter(noise(3, 2).float()), nn.Parameter(noise(1, 1, 2).float())
        self.body = head(8)

    def forward(self, x):
        places = torch.cat([self.mark.expand(len(x), -1, -1), x.view(-1, 3, 2) + self.table], 1)
        return self.body(places.flatten(1))


class Numbered(nn.Module):
    """Position embeddings that are looked up once for all examples."""

    def __init__(self, places=3):
        super().__init__()
        self.table, self.body = nn.Embedding(places, 2), head(2 * places)

    def forward(self, x):
        places = self.table(torch.arange(self.table.num_embeddings, device=x.device))
        return self.body((x.view(len(x), -1, 2) + places).flatten(1))


class Warm(nn.Module):
    """A temperature of shape (), and a list of factors."""

    def __init__(self):
        super().__init__()
        self.heat, self.factors = nn.Parameter(torch.tensor(0.7)), nn.ParameterList([torch.ones(6)] * 2)
        self.body = head(6)

    def forward(self, x):
        return self.body(x * self.factors[0] + self.factors[1]) * self.heat.exp()


class Pair(nn.Module):
    """A small layer without a rule, one whose weight torch recomputes, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.first, self.body = nn.Bilinear(2, 2, 3), head(6)
        self.normal = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        self.spare = nn.Linear(2, 1)

    def forward(self, x):
        pair = self.first(x[:, :2], x[:, 2:4])
        return self.body(torch.cat([pair, self.normal(x[:, 3:])], 1))


class Slope(nn.Module):
    """nn.PReLU as a class without a layer rule."""

    def __init__(self, width=1):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 0.25))

    def forward(self, x):
        return F.prelu(x, self.weight)


def slopes():
    return nn.Sequential(nn.Linear(6, 8), Slope(), nn.Linear(8, 8), Slope(8), nn.Linear(8, 4))


def images():
    convolution = nn.Conv2d(1, 4, 3, padding=1)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), convolution, Slope(4), nn.Flatten(), head(24))


def recalled():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.run = nn.Parameter(torch.ones(2)), nn.GRU(2, 4, batch_first=True)
            self.body = head(4)

        def forward(self, x):
            return self.body(self.run(x.view(-1, 3, 2) + self.start)[0][:, -1])

    return Last()


MODELS = pytest.mark.parametrize(
    "model", [Positions, Numbered, Warm, Pair, slopes, images, recalled], ids=lambda model: model.__name__
)


def made(model, dtype=torch.float64, n=6):
    return Task(model()), noise(n, 6, seed=1).to(dtype), torch.arange(n) % 4


def no_rows(monkeypatch, task):
    monkeypatch.setattr(per_example, "_by_rows", lambda *a, **k: pytest.fail("rows were formed"))


@MODELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.slow
def test_all_ways_agree(model, dtype, monkeypatch):
    task, x, y = made(model, dtype)
    query = one_point_query(task, x, y, dtype)
    no_rows(monkeypatch, task)
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


@MODELS
@pytest.mark.slow
def test_all_ways_agree_at_two_points_and_divided(model, monkeypatch):
    task, x, y = made(model)
    query = two_point_query(task, x, y)
    no_rows(monkeypatch, task)
    assert_all_ways_agree(task, query, x, y, 1e-9)


@MODELS
@pytest.mark.slow
def test_all_ways_agree_layer_by_layer(model, monkeypatch):
    task, x, y = made(model)
    query = two_point_query(task, x, y)
    blocks = tuple(
        replace(block, terms=tuple(replace(term, per_layer=True) for term in block.terms))
        for block in query.blocks
    )
    no_rows(monkeypatch, task)
    assert_all_ways_agree(task, Query(query.points, blocks), x, y, 1e-9)


@MODELS
@pytest.mark.slow
def test_clients_of_different_sizes_equal_the_plain_loop(model):
    task, x, y = made(model, n=11)
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor([3, 1, 5, 2]))
    query = two_point_query(task, x, y)
    asked = OneGradient(), task, query, x, y, owner, 5
    for got, want in zip(clipped_sum(*asked), clipped_sum_loop(*asked), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_dropout_masks_are_the_same_in_both_parts_and_points(weighted, monkeypatch):
    class Dropped(Warm):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dropout(0.4), nn.Dropout(0.3)

        def forward(self, x):
            hidden = self.first(x * self.factors[0]) + self.factors[1]
            return self.body(self.second(hidden) * self.heat)

    task, x, y = made(Dropped, n=8)
    seeds = example_seeds(3, torch.arange(8))
    term = Term(0.4, 0.5), Term(0.1, 0.5, (1.0, -1.0))
    points = tuple(0.3 * noise(task.dimension, seed=seed) for seed in (5, 6))
    query = Query(points, (SumBlock(term),))
    clipper_of(task).coverage(task, points[0], x, y, with_dropout=True)
    no_rows(monkeypatch, task)
    if not weighted:
        (got,), (want,) = (s(task, query, x, y, seeds=seeds) for s in (sum_gradients, sum_gradients_loop))
    else:
        owner = torch.arange(8) // 2
        asked = OneGradient(), task, query, x, y, owner, 4
        (got,), (want,) = (s(*asked, seeds=seeds) for s in (clipped_sum, clipped_sum_loop))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    (other,) = sum_gradients(task, query, x, y, seeds=seeds + 1)
    assert (other - got).norm() > 0.01


@pytest.mark.parametrize("weighted", [False, True])
def test_passes_of_reduced_precision_are_close_and_bounded(weighted, monkeypatch):
    exact, x, y = made(slopes, torch.float32, n=8)
    task = Task(slopes())
    query = one_point_query(exact, x, y, torch.float32)
    weights = torch.full((4, 2), 0.5) if weighted else None
    if weighted:
        x, y = x.unflatten(0, (4, 2)), y.unflatten(0, (4, 2))
    want = sum_gradients(exact, query, x, y, weights=weights)[0]
    flat = (x.flatten(0, 1), y.flatten(0, 1)) if weighted else (x, y)
    assert clipper_of(task, "bf16").coverage(task, query.points[0], *flat)
    no_rows(monkeypatch, task)
    (got, *_) = sum_gradients(task, query, x, y, weights=weights, precision="bf16")
    assert got.dtype == torch.float32
    assert 1e-5 < float((got - want).norm() / want.norm()) < 0.1
    tight = Query(query.points, (SumBlock((Term(1e-3),)),))
    one = None if weights is None else weights[:1]
    (alone,) = sum_gradients(task, tight, x[:1], y[:1], weights=one, precision="bf16")
    assert float(alone.double().norm()) == pytest.approx(1e-3, rel=2e-6)


# Obstacles that only the trial finds.


class Beside(nn.Module):
    """A linear layer's weight is also used outside it, beside a temperature, whose gradient is formed."""

    def __init__(self, share):
        super().__init__()
        self.layer, self.heat, self.share = nn.Linear(6, 6), nn.Parameter(torch.tensor(1.0)), share

    def forward(self, x):
        return (self.layer(x) + self.share * F.linear(x, self.layer.weight.T)) * self.heat


class Held(nn.Module):
    """A layer without a rule that shares its weight with a linear layer: both uses are formed."""

    class Other(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return torch.sin(x @ self.weight.T)

    def __init__(self):
        super().__init__()
        self.layer, self.body = nn.Linear(6, 3), head(6)
        self.other = Held.Other(self.layer.weight)

    def forward(self, x):
        return self.body(torch.cat([self.layer(x), self.other(x)], 1))


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_layers_weight_that_is_used_elsewhere_is_summed_as_rows(share):
    task = Task(Beside(share))
    x, y = noise(6, 6, seed=1), torch.arange(6) % 4
    assert clipper_of(task).layers
    for asked in (one_point_query, two_point_query):
        query = asked(task, x, y)
        assert not clipper_of(task).coverage(task, query.points[0], x, y)
        assert_all_ways_agree(Task(Beside(share)), query, x, y, 1e-9, fast=False)


def test_such_a_use_is_found_beside_large_gradients():
    class Loud(Beside):
        def forward(self, x):
            return 1e-4 * super().forward(x) / self.heat + 1e3 * self.heat * x

    task = Task(Loud(1.0))
    x, y = noise(6, 6, seed=1), torch.arange(6) % 4
    assert not clipper_of(task).coverage(task, 0.3 * noise(task.dimension), x, y)


def test_a_weight_shared_with_a_layer_without_a_rule_is_formed(monkeypatch):
    task = Task(Held())
    x, y = noise(6, 6, seed=1), torch.arange(6) % 4
    query = two_point_query(task, x, y)
    plan = clipper_of(task).coverage(task, query.points[0], x, y)
    assert plan.remaining == ("layer.weight",)
    assert plan.slots["layer"] == {"bias": "layer.bias"}
    no_rows(monkeypatch, task)
    assert_all_ways_agree(task, query, x, y, 1e-9)


def test_tables_that_all_examples_share_are_summed_exactly_for_every_length(monkeypatch):
    """Where the length is a multiple of the trial's batch, rows look like several places of each example."""
    for places in (1, 2, 3, 4, 6, 12, 33):
        task = Task(Numbered(places))
        x, y = noise(7, 2 * places, seed=1), torch.arange(7) % 4
        query = one_point_query(task, x, y)
        plan = clipper_of(task).coverage(task, query.points[0], x, y)
        assert plan.remaining == ()  # each example is passed alone, so that all rows of a call are its own
        with monkeypatch.context() as patch:
            no_rows(patch, task)
            assert_all_ways_agree(task, query, x, y, 1e-10)


class Sorted(nn.Module):
    """Reorders a large batch before a layer, and restores the order after it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        order = torch.arange(len(x)).roll(1) if len(x) > 5 else torch.arange(len(x))
        return self.last(torch.tanh(self.first(x[order])[order.argsort()]))


def test_layers_that_reorder_large_batches_are_summed_exactly():
    task = Task(Sorted())
    x, y = noise(40, 6, seed=1) * torch.logspace(-1, 1, 40)[:, None], torch.arange(40) % 4
    query = Query((0.3 * noise(task.dimension),), (SumBlock((Term(0.1),)),))
    (got,), (want,) = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(got, want)


def test_a_large_remaining_part_is_summed_as_rows():
    assert not clipper_of(Task(nn.Sequential(nn.Linear(2, 4), Slope(5)))).layers  # 5 of 17
    assert clipper_of(Task(nn.Sequential(nn.Linear(2, 4), Slope(4)))).layers  # 4 of 16


class Gated(nn.Module):
    """Mixes examples, or reorders them, once a parameter has crossed a threshold."""

    def __init__(self, mixes, up):
        super().__init__()
        self.gate, self.mixes, self.up = nn.Parameter(torch.zeros(1)), mixes, up
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        shut = (self.gate < 0.5) if self.up else (self.gate > -0.5)
        shut = shut | (self.gate != self.gate)
        if self.mixes:
            return self.last(torch.tanh(self.first(torch.where(shut, x, x - x.mean(0)))))
        hidden = torch.tanh(self.first(torch.where(shut, x, x.roll(1, 0))))
        return self.last(torch.where(shut, hidden, hidden.roll(-1, 0)))


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("up", [True, False])
def test_mixing_at_other_parameters_moves_no_sum(mixes, up):
    task = Task(Gated(mixes, up))
    x = noise(40, 6, seed=1) * torch.logspace(-1, 1, 40)[:, None]
    y, point = torch.arange(40) % 4, 0.5 * noise(task.dimension)
    point[0] = 1.0 if up else -1.0
    query = Query((point,), (SumBlock((Term(0.1),)),))
    assert task.layout.names[0] == "gate"
    assert clipper_of(task).layers
    (got,), (want,) = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(got, want)
    (less,) = sum_gradients(task, query, x[1:], y[1:])
    assert (got - less).norm() <= 0.1 * (1 + 1e-6)


# Formed gradients: their sums are bounded, and so is their memory.


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e30, 1e19])
@MODELS
@pytest.mark.slow
def test_an_example_that_is_not_finite_spoils_no_other(model, broken):
    task, x, y = made(model, torch.float32)
    query = one_point_query(task, x[:2], y[:2], torch.float32)
    x[2, 3] = broken
    block = Query(query.points, (replace(query.blocks[0], share=1.0),))
    rows = sum_rows([task.gradients(query.points[0], x, y)], block.blocks)
    (got,) = sum_gradients(task, block, x, y)
    assert bool(got.isfinite().all())
    torch.testing.assert_close(got.float(), rows[0], rtol=1e-4, atol=1e-6)


@MODELS
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_one_example_never_adds_more_than_the_clip_norm(model, scale):
    task, _, y = made(model)
    for seed in range(4):
        params = task.initial(default_rng(seed)) + 0.3 * noise(task.dimension, seed=seed).float()
        x = scale * noise(1, 6, seed=seed).float()
        for clip_norm in (1e-6, 0.1):
            (total,) = sum_gradients(task, Query((params,), (SumBlock((Term(clip_norm),)),)), x, y[:1])
            assert float(total.double().norm()) <= clip_norm * (1 + 2e-6)


def test_as_many_units_are_formed_at_once_as_for_rows(monkeypatch):
    task, x, y = made(Positions, n=20)
    query = one_point_query(task, x, y)
    plan = clipper_of(task).coverage(task, query.points[0], x, y)
    sizes = []
    sum_gradients(task, query, x, y)  # runs the trials
    bookkeeping = clipper_of(task).bookkeeping
    summed = bookkeeping.sum
    monkeypatch.setattr(
        bookkeeping,
        "sum",
        lambda plan, task, points, blocks, x, *rest, **counted: (
            sizes.append(len(x)) or summed(plan, task, points, blocks, x, *rest, **counted)
        ),
    )
    monkeypatch.setattr(per_example, "_ROW_ENTRIES", 7 * plan.formed)
    sum_gradients(task, query, x, y)
    assert sizes == [32]  # padded: in a smaller batch, rounding would depend on the batch size
    monkeypatch.setattr(per_example, "_MAX_ROW_ENTRIES", 7 * plan.formed)
    sum_gradients(task, query, x, y)
    assert sizes[-3:] == [7, 7, 7]  # the last one is padded


def test_a_clients_memory_counts_formed_gradients():
    class Wide(nn.Module):
        def __init__(self, wide):
            super().__init__()
            self.body, self.table = nn.Linear(40, 1000), nn.Parameter(torch.zeros(wide))

        def forward(self, x):
            return self.body(x) + (self.table * x[:, :1]).square().sum(1, keepdim=True)

    x, y = torch.zeros(4, 40), torch.zeros(4).long()
    costs = []
    for wide in (10, 10_010):
        task = Task(Wide(wide))
        query = Query((torch.zeros(task.dimension),), (SumBlock((Term(1.0),)),))
        costs.append(sum(_cost(OneGradient(), task, query, x, y)))
        assert clipper_of(task).coverage(task, query.points[0], x, y)
    assert costs[1] - costs[0] >= 4 * 10_000
