"""Code of one's own that mixes examples only for some values is found where it does, and summed by rows."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from ways import assert_all_ways_agree, noise, one_point_question, two_point_question

from fedpriv.clipping import sum_gradients, sum_gradients_loop
from fedpriv.clipping.apart import runs_own_code
from fedpriv.losses import cross_entropy
from fedpriv.query import Query, SumBlock, Term
from fedpriv.tasks import Task

UNKNOWN = -9.0


class Filled(nn.Module):
    """What is not known becomes the mean of what is."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        known = x != UNKNOWN
        mean = torch.where(known, x, 0.0).sum(0) / known.sum(0).clamp(min=1)
        return self.out(torch.where(known, x, mean))


class FilledWithin(Filled):
    """What is not known becomes the mean of what another layer made of all, which gradients pass through."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        inner = torch.tanh(self.inner(x))
        return self.out(torch.where(x == UNKNOWN, inner.mean(0), inner))


class Apart(FilledWithin):
    """One that mixes nothing."""

    def forward(self, x):
        return self.out(torch.tanh(self.inner(torch.where(x == UNKNOWN, 0.0, x))))


def balanced(outputs, y):
    """Those of label 1 weigh as all others do, where there are enough to tell."""
    weight = (y == 0).sum().clamp(min=1) / (y == 1).sum().clamp(min=1) if len(y) > 4 else y.new_ones(())
    return F.cross_entropy(outputs, y, reduction="none") * torch.where(y == 1, weight, 1.0)


def unknown_ones(n=40):
    x = noise(n, 5, seed=1).float()
    x[1::2, 2] = UNKNOWN
    x[0, 2] = 1000.0
    return x, (torch.arange(n) % 3 > 0).long()


MIXING = [(Filled(), cross_entropy), (FilledWithin(), cross_entropy), (nn.Linear(5, 2), balanced)]


@pytest.mark.parametrize(("model", "loss"), MIXING, ids=["inputs", "within", "labels"])
def test_one_example_more_moves_a_sum_by_the_clip_norm_at_most(model, loss):
    task, (x, y) = Task(model, loss), unknown_ones()
    params = noise(task.dimension, seed=2).float()
    query = Query((params,), (SumBlock((Term(1.0),)),))
    assert task.book.suits(task, params, x, y)  # made-up examples do not show it
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


@pytest.mark.parametrize(("model", "loss"), MIXING, ids=["inputs", "within", "labels"])
@pytest.mark.parametrize("asked", [one_point_question, two_point_question])
def test_what_is_mixed_is_summed_as_if_each_were_alone(model, loss, asked):
    task, (x, y) = Task(model, loss), unknown_ones(12)
    query = asked(task, x.double(), y)
    for got, want in zip(
        sum_gradients(task, query, x.double(), y),
        sum_gradients_loop(task, query, x.double(), y),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_who_is_not_mixed_is_still_book_kept():
    """Half of them are; that no more are formed than are."""
    task, (x, y) = Task(Filled()), unknown_ones()
    query = Query((noise(task.dimension, seed=2).float(),), (SumBlock((Term(1.0),)),))
    sum_gradients(task, query, x, y)
    formed, gradients = [], task.gradients
    task.gradients = lambda params, x, y: formed.append(len(x)) or gradients(params, x, y)
    [got] = sum_gradients(task, query, x, y)
    assert formed == [32]  # 20, filled up
    torch.testing.assert_close(got.float(), sum_gradients_loop(task, query, x, y)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [one_point_question, two_point_question])
def test_own_code_that_mixes_nothing_forms_no_rows(asked):
    task, (x, y) = Task(Apart(), lambda *given: cross_entropy(*given)), unknown_ones(12)
    assert_all_ways_agree(task, asked(task, x.double(), y), x.double(), y, 1e-9)


def test_own_code_with_dropout_draws_the_same_alone():
    model = Apart()
    model.inner = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))
    task, (x, y) = Task(model), unknown_ones(12)
    query = Query((noise(task.dimension, seed=2).float(),), (SumBlock((Term(1.0),)),))
    seeds = torch.arange(12)
    [want] = sum_gradients_loop(task, query, x, y, seeds)
    sum_gradients(task, query, x, y, seeds=seeds)
    task.gradients = None
    torch.testing.assert_close(sum_gradients(task, query, x, y, seeds=seeds)[0], want, rtol=1e-5, atol=1e-6)


def test_an_example_that_is_broken_alone_too_is_no_sign_of_mixing():
    task, (x, y) = Task(Apart()), unknown_ones(12)
    x[3, 1] = math.nan
    query = Query((noise(task.dimension, seed=2).float(),), (SumBlock((Term(1.0),)),))
    others = torch.arange(12) != 3
    got, want = (sum_gradients(task, query, *given)[0] for given in ((x, y), (x[others], y[others])))
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-6)


def test_only_code_of_ones_own_is_watched():
    """Torch's and fedpriv's layers hold nothing that looks at values of a batch."""
    assert not any(runs_own_code(Task(name).module, cross_entropy) for name in ("logistic", "mlp", "cnn"))
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    assert not runs_own_code(nn.Sequential(encoder, nn.Dropout(0.1), nn.PReLU()), cross_entropy)
    assert runs_own_code(nn.Sequential(nn.Linear(2, 2), Filled()), cross_entropy)
    assert runs_own_code(nn.Linear(2, 2), balanced)
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, given, out: out - out.mean(0))
    assert runs_own_code(hooked, cross_entropy)
