"""Layers that receive places of examples as if they were examples.

Where each example is passed alone, all places of a call are its own: layers that add a product for each place
count them all. Others, such as convolutions, are found, and their gradients are formed.
"""

import pytest
import torch
from helpers.clipping_paths import noise, one_point_query
from torch import nn

from fedpriv.clipping import sum_gradients, sum_gradients_loop
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers.normalisation import Scale
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task


class Folded(nn.Module):
    """A linear layer and a convolution with 4 places of each example folded into the first axis."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.seen, self.last = nn.Conv1d(1, 2, 3), nn.Linear(32, 3)

    def forward(self, x):
        rows = self.norm(torch.tanh(self.first(x.reshape(-1, 4))))
        images = torch.tanh(self.seen(rows[:, None]))
        return self.last(images.reshape(len(x), -1))


class Looked(nn.Module):
    """Embeddings, bags and a recurrent layer over parts of an example."""

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
def test_models_that_fold_places_into_examples_are_summed_exactly(model, dtype):
    """A convolution and a recurrent layer are formed: their places are not products that add up."""
    task, x, y = Task(model()), noise(6, 16, seed=1).to(dtype), torch.arange(6) % 3
    query = one_point_query(task, x, y, dtype)
    plan = clipper_of(task).coverage(task, query.points[0], x, y)
    assert plan is None or not {"seen", "run"} & set(plan.layers)
    error = 1e-10 if dtype == torch.float64 else 1e-5
    pairs = zip(sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y), strict=True)
    assert all((got - want).norm() <= error * want.norm() for got, want in pairs)


@pytest.mark.parametrize("model", [Late, LateSteps, lambda: Late(5), lambda: Late(30)])
def test_inputs_without_examples_first_are_summed_exactly(model):
    """Also for large batches only: a batch of three examples does not show it."""
    task = Task(model())
    x = noise(40, 16, seed=1) * torch.logspace(-1, 1, 40)[:, None]
    y = torch.arange(40) % 3
    query = Query((0.3 * noise(task.dimension),), (SumBlock((Term(0.1),)),))
    assert "layer" in clipper_of(task).coverage(task, query.points[0], x, y).layers
    (got,), (want,) = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(got, want)
    (less,) = sum_gradients(task, query, x[1:], y[1:])
    assert (got - less).norm() <= 0.1 * (1 + 1e-6)


class Gated(Late):
    """Places first, behind a gate that is closed at the initial point."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        places = x.unflatten(1, (4, 4))
        found = torch.tanh(self.layer(places.transpose(0, 1).flatten(0, 1))).unflatten(0, (4, -1))
        return self.last(torch.tanh((places + self.gate(found.transpose(0, 1))).flatten(1)))


def shut(layer):
    nn.init.zeros_(layer.weight)
    return layer


class Middle(nn.Module):
    """Reads the middle of a table of 33 places, as many as the trial has examples."""

    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 1e-6))
        self.last, self.places = nn.Linear(16, 3), torch.nn.Parameter(torch.randn(33, 4), requires_grad=False)

    def forward(self, x):
        return self.last(x) + (self.gate * torch.tanh(self.layer(self.places))[16]).sum()


MODELS = {
    "scale": lambda: Gated(shut(Scale(4))),
    "norm": lambda: Gated(shut(nn.LayerNorm(4))),
    "middle": Middle,
    "squeezed": lambda: nn.Sequential(nn.Unflatten(1, (1, 16)), Squeezed(), nn.Linear(16, 3)),
}


class Squeezed(nn.Module):
    """Loses the examples' axis for a batch of one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 1)

    def forward(self, x):
        return self.layer(x).reshape(-1, 16) if len(x) > 1 else self.layer(x[0]).reshape(1, 16)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_mixing_that_a_trial_misses_changes_no_sum_by_more_than_its_bound(name, scale):
    torch.manual_seed(0)
    task = Task(MODELS[name]())
    x = noise(12, 16, seed=1) * torch.logspace(-1, 1, 12)[:, None]
    y = torch.arange(12) % 3
    query = Query((scale * noise(task.dimension),), (SumBlock((Term(0.1),)),))
    (got,), (want,) = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(got, want)
    for one in range(12):
        kept = torch.arange(12) != one
        (less,) = sum_gradients(task, query, x[kept], y[kept])
        assert (got - less).norm() <= 0.1 * (1 + 1e-6)
    (alone,) = sum_gradients(task, query, x[:1], y[:1])
    torch.testing.assert_close(alone, sum_gradients_loop(task, query, x[:1], y[:1])[0])
