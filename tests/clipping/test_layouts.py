"""Layers that are given places of examples as if they were examples: summed exactly, or found out."""

import pytest
import torch
from torch import nn
from ways import assert_all_ways_agree, noise, one_point_question, two_point_question

from fedpriv.clipping import gradients, sum_gradients, sum_gradients_loop
from fedpriv.query import Query, SumBlock, Term
from fedpriv.tasks import Task


class Folded(nn.Module):
    """A layer and a convolution that take 4 places of an example for as many examples."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.seen, self.last = nn.Conv1d(1, 2, 3), nn.Linear(32, 3)

    def forward(self, x):
        rows = self.norm(torch.tanh(self.first(x.reshape(-1, 4))))
        images = torch.tanh(self.seen(rows[:, None]))
        return self.last(images.reshape(len(x), -1))


class Looked(nn.Module):
    """Tables, bags and a run over lines of an example."""

    def __init__(self):
        super().__init__()
        self.table, self.run = nn.Embedding(9, 3), nn.GRU(3, 4, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        tokens = (x.abs() * 3).long().clamp(0, 8).reshape(-1, 4)
        return self.last(self.run(self.table(tokens))[0][:, -1].reshape(len(x), -1))


class Several(nn.Module):
    """The same layer for examples and for places."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        places = torch.tanh(self.layer(x.reshape(-1, 4))).unflatten(0, (len(x), -1))
        return self.last(torch.tanh(self.layer(places.mean(1))))


class Late(nn.Module):
    """Places first: the layer sees the first places of all examples, then the second."""

    def __init__(self, least=0):
        super().__init__()
        self.layer, self.last, self.least = nn.Linear(4, 4), nn.Linear(16, 3), least

    def forward(self, x):
        places = x.unflatten(1, (4, 4))
        if len(x) < self.least:
            places = torch.tanh(self.layer(places.flatten(0, 1))).unflatten(0, (-1, 4))
        else:
            places = torch.tanh(self.layer(places.transpose(0, 1).flatten(0, 1)))
            places = places.unflatten(0, (4, -1)).transpose(0, 1)
        return self.last(places.flatten(1))


class LateSteps(Late):
    """As a recurrent model that is not batch_first has it: (steps, n, width)."""

    def forward(self, x):
        steps = torch.tanh(self.layer(x.unflatten(1, (4, 4)).transpose(0, 1)))
        return self.last(steps.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("model", [Folded, Looked, Several])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_places_given_as_examples_are_summed_exactly(model, dtype, monkeypatch):
    task, x, y = Task(model()), noise(6, 16, seed=1).to(dtype), torch.arange(6) % 3
    query = one_point_question(task, x, y, dtype)
    monkeypatch.setattr(gradients, "_sum_by_rows", lambda *a: pytest.fail("rows were formed"))
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("model", [Folded, Looked, Several])
def test_places_given_as_examples_are_summed_exactly_at_two_points(model, monkeypatch):
    task, x, y = Task(model()), noise(6, 16, seed=1), torch.arange(6) % 3
    query = two_point_question(task, x, y)
    monkeypatch.setattr(gradients, "_sum_by_rows", lambda *a: pytest.fail("rows were formed"))
    assert_all_ways_agree(task, query, x, y, 1e-9)


@pytest.mark.parametrize("model", [Late, LateSteps, lambda: Late(5), lambda: Late(30)])
def test_places_that_do_not_lie_with_their_example_are_told(model):
    """Large batches too: what holds for three examples need not for all of them."""
    task = Task(model())
    x = noise(40, 16, seed=1) * torch.logspace(-1, 1, 40)[:, None]
    y = torch.arange(40) % 3
    query = Query((0.3 * noise(task.dimension),), (SumBlock((Term(0.1),)),))
    assert task.book.layers
    plan = task.book.suits(task, query.points[0], x, y)
    assert plan is None or "layer" not in plan.layers
    (got,), (want,) = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(got, want)
    (less,) = sum_gradients(task, query, x[1:], y[1:])
    assert (got - less).norm() <= 0.1 * (1 + 1e-6)
