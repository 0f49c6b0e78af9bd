"""User code that mixes examples only for some values is found when it does, and summed as rows."""

import math
import warnings

import pytest
import torch
from helpers.clipping_paths import assert_all_ways_agree, noise, one_point_query, two_point_query
from helpers.places import balanced
from torch import nn

from fedpriv.clipping import sum_gradients, sum_gradients_loop
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.independence import runs_user_code
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.losses import cross_entropy
from fedpriv.tasks.task import Task

UNKNOWN = -9.0


class Filled(nn.Module):
    """Replaces unknown values by the mean of the known ones."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        known = x != UNKNOWN
        mean = torch.where(known, x, 0.0).sum(0) / known.sum(0).clamp(min=1)
        return self.out(torch.where(known, x, mean))


class FilledWithin(Filled):
    """Replaces unknown values by the mean of another layer's outputs, with gradients."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        inner = torch.tanh(self.inner(x))
        return self.out(torch.where(x == UNKNOWN, inner.mean(0), inner))


class Apart(FilledWithin):
    """User code that mixes nothing."""

    def forward(self, x):
        return self.out(torch.tanh(self.inner(torch.where(x == UNKNOWN, 0.0, x))))


def unknown_ones(n=40):
    x = noise(n, 5, seed=1).float()
    x[1::2, 2] = UNKNOWN
    x[0, 2] = 1000.0
    return x, (torch.arange(n) % 3 > 0).long()


def balanced_by_script(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weight = torch.ones([])
    if y.size(0) > 4:
        weight = (y == 0).sum().clamp(min=1) / (y == 1).sum().clamp(min=1)
    losses = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
    return losses * torch.where(y == 1, weight, torch.ones([]))


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's, and yet it is used
    compiled = torch.jit.script(balanced_by_script)

LINEAR = nn.Linear(5, 2)
MIXING = [
    (Filled(), cross_entropy),
    (FilledWithin(), cross_entropy),
    (LINEAR, balanced),
    (LINEAR, compiled),
]
KINDS_OF_MIXING = ["inputs", "within", "labels", "labels, compiled"]


@pytest.mark.parametrize(("model", "loss"), MIXING, ids=KINDS_OF_MIXING)
def test_another_example_changes_the_sum_by_at_most_the_clip_norm(model, loss):
    task, (x, y) = Task(model, loss), unknown_ones()
    params = noise(task.dimension, seed=2).float()
    query = Query((params,), (SumBlock((Term(1.0),)),))
    assert clipper_of(task).coverage(task, params, x, y)  # the trial does not find it
    for each in (1, 2):  # examples, and clients of two

        def total(who, each=each):
            units = x.unflatten(0, (-1, each))[who], y.unflatten(0, (-1, each))[who]
            if each == 1:
                return sum_gradients(task, query, units[0][:, 0], units[1][:, 0])[0].double()
            weights = torch.full((len(units[0]), each), 1 / each)
            return sum_gradients(task, query, *units, weights=weights)[0].double()

        everyone = torch.arange(len(x) // each)
        for gone in everyone:
            moved = total(everyone) - total(everyone[everyone != gone])
            assert float(moved.norm()) <= 1 + 1e-5


@pytest.mark.parametrize(("model", "loss"), MIXING, ids=KINDS_OF_MIXING)
@pytest.mark.parametrize("asked", [one_point_query, two_point_query])
def test_mixed_examples_are_summed_as_if_each_were_alone(model, loss, asked):
    task, (x, y) = Task(model, loss), unknown_ones(12)
    query = asked(task, x.double(), y)
    for got, want in zip(
        sum_gradients(task, query, x.double(), y),
        sum_gradients_loop(task, query, x.double(), y),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_code_that_would_mix_examples_keeps_book_keeping():
    """Each example is alone in its pass, so none is mixed and no gradient is formed."""
    task, (x, y) = Task(Filled()), unknown_ones()
    query = Query((noise(task.dimension, seed=2).float(),), (SumBlock((Term(1.0),)),))
    sum_gradients(task, query, x, y)
    formed, gradients = [], task.gradients
    task.gradients = lambda params, x, y: formed.append(len(x)) or gradients(params, x, y)
    [got] = sum_gradients(task, query, x, y)
    assert formed == []
    torch.testing.assert_close(got.float(), sum_gradients_loop(task, query, x, y)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [one_point_query, two_point_query])
def test_user_code_that_mixes_nothing_forms_no_rows(asked):
    task, (x, y) = Task(Apart(), lambda *given: cross_entropy(*given)), unknown_ones(12)
    assert_all_ways_agree(task, asked(task, x.double(), y), x.double(), y, 1e-9)


def test_user_code_with_dropout_has_the_same_masks_alone():
    model = Apart()
    model.inner = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))
    task, (x, y) = Task(model), unknown_ones(12)
    query = Query((noise(task.dimension, seed=2).float(),), (SumBlock((Term(1.0),)),))
    seeds = torch.arange(12)
    [want] = sum_gradients_loop(task, query, x, y, seeds)
    sum_gradients(task, query, x, y, seeds=seeds)
    task.gradients = None
    torch.testing.assert_close(sum_gradients(task, query, x, y, seeds=seeds)[0], want, rtol=1e-5, atol=1e-6)


def test_an_example_that_is_not_finite_alone_is_no_sign_of_mixing():
    task, (x, y) = Task(Apart()), unknown_ones(12)
    x[3, 1] = math.nan
    query = Query((noise(task.dimension, seed=2).float(),), (SumBlock((Term(1.0),)),))
    others = torch.arange(12) != 3
    got, want = (sum_gradients(task, query, *given)[0] for given in ((x, y), (x[others], y[others])))
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-6)


def test_only_user_code_is_watched():
    """The layers of torch and fedpriv do not depend on values of the batch."""
    assert not any(runs_user_code(Task(name).module, cross_entropy) for name in ("logistic", "mlp", "cnn"))
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    assert not runs_user_code(nn.Sequential(encoder, nn.Dropout(0.1), nn.PReLU()), cross_entropy)
    assert runs_user_code(nn.Sequential(nn.Linear(2, 2), Filled()), cross_entropy)
    assert runs_user_code(nn.Linear(2, 2), balanced)
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, given, out: out - out.mean(0))
    assert runs_user_code(hooked, cross_entropy)


class Softened(nn.Module):
    """Clips the norm of the whole batch's gradient in the backward pass."""

    def __init__(self, soften):
        super().__init__()
        self.inner, self.out, self.soften = nn.Linear(5, 8), nn.Linear(8, 1), soften

    def forward(self, x):
        return self.out(self.soften(torch.relu(self.inner(x))))


def softer(gradient):
    return gradient * (20 / (gradient.norm() + 1e-12)).clamp(max=1.0)


class Soften(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return softer(gradient)


def by_hook(x):
    if x.requires_grad:
        x.register_hook(softer)
    return x


@pytest.mark.parametrize("soften", [by_hook, Soften.apply], ids=["hook", "function"])
def test_gradients_that_depend_on_the_batch_are_formed_one_by_one(soften):
    """The losses are the same; the gradients of the trial's examples are too small to be clipped."""
    task, n = Task(Softened(soften), "squared-error"), 200
    params, query_of = noise(task.dimension, seed=2).float(), lambda p: Query((p,), (SumBlock((Term(0.1),)),))
    x, y = noise(n, 5, seed=1).float(), noise(n, 1, seed=3).float()
    x[0] = 1e5
    [with_it], [without] = (sum_gradients(task, query_of(params), x[first:], y[first:]) for first in (0, 1))
    assert float((with_it.double() - without.double()).norm()) <= 0.1 * (1 + 1e-5)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5])
def test_losses_of_any_scale_are_watched(size):
    """A model with outputs of this size and squared losses."""
    model = Filled()
    model.out = nn.Linear(5, 1)
    task, n = Task(model, "squared-error"), 100
    params = torch.zeros(task.dimension)
    params[0] = size
    x, y = 0.1 * noise(n + 1, 5, seed=1).float(), torch.zeros(n + 1)
    x[3:, 0], x[1:3, 0], x[0, 0] = UNKNOWN, -2.0, 10.0
    query = Query((params,), (SumBlock((Term(size / 2),)),))
    [with_it], [without] = (sum_gradients(task, query, x[first:], y[first:]) for first in (0, 1))
    assert float((with_it.double() - without.double()).norm()) <= size / 2 * (1 + 1e-5)
