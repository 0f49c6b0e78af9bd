"""A chunk synchronises with its device once: nothing is read before its end, and the sums are the same.

The test needs no GPU: ``readable`` is replaced by a function that returns False, and a dispatch mode counts
each read of a value that is computed from the device's tensors.
"""

from __future__ import annotations

import pytest
import torch
from helpers.clipping_paths import noise, one_point_query, two_point_query
from helpers.plain_loop import clipped_sum_loop
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fedpriv.clipping import per_example, synchronisation
from fedpriv.federated.client_update import LocalSteps, OneGradient, clipped_sum
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

LOOKS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"}
UNITS = 16


class Looks(TorchDispatchMode):
    """Counts operations that the host must wait for, on tensors computed from the given ones."""

    def __init__(self, device_side):
        super().__init__()
        self.count, self._there = 0, WeakIdKeyDictionary()
        self._note(device_side)

    def _note(self, tensors):
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self._there[tensor] = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        result = function(*args, **(kwargs or {}))
        if any(tensor in self._there for tensor in given):
            name = function._schema.name.removeprefix("aten::")
            masked = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
            self.count += masked or name in LOOKS
            self._note(result)
        return result


def convolutions():
    parts = nn.Conv2d(1, 4, 3, bias=True), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(36, 3)), noise(UNITS, 1, 6, 6, seed=1)


def places():
    """A linear layer on many places, whose norms are computed by Gram matrices."""
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Flatten(), nn.Linear(150, 3)), noise(UNITS, 3, 40)


def words():
    parts = nn.Embedding(30, 4), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 3)
    rows = torch.randint(30, (UNITS, 5), generator=torch.Generator().manual_seed(0))
    return nn.Sequential(*parts), rows


class Reader(nn.Module):
    """An LSTM, and a linear layer on all of its states."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(15, 3)

    def forward(self, x):
        return self.out(self.layer(x)[0].flatten(1))


def sequences():
    return Reader(), noise(UNITS, 3, 4, seed=1)


MODELS = {
    "convolutions": convolutions,
    "linear on places": places,
    "embedding": words,
    "lstm": sequences,
}


def divided(task, x, y):
    point, divisor = noise(task.dimension, seed=5) * 0.3, noise(task.dimension, seed=7).abs() + 0.1
    return Query((point,), (SumBlock((Term(0.5, divisor=divisor),)),))


def hold(query):
    """The query's tensors."""
    return query.points, [term.divisor for block in query.blocks for term in getattr(block, "terms", ())]


@pytest.mark.parametrize("asked", [one_point_query, two_point_query, divided])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow
def test_a_chunk_synchronises_once_and_its_sum_equals_the_loop(name, asked, monkeypatch):
    model, x = MODELS[name]()
    task, y = Task(model), torch.arange(UNITS) % 3
    query = asked(task, x, y)
    want = clipped_sum_loop(OneGradient(), task, query, x, y)
    monkeypatch.setattr(synchronisation, "readable", lambda tensor: False)
    clipped_sum(OneGradient(), task, query, x, y)  # runs the trial, and measures memory
    for chunk, chunks in ((None, 1), (8, 2)):
        monkeypatch.setattr(per_example, "_MIN_ROWS", chunk or 32)
        clipped_sum(OneGradient(), task, query, x, y, torch.arange(UNITS), UNITS, chunk)  # tries this size
        with Looks((x, y, hold(query))) as looks:
            got = clipped_sum(OneGradient(), task, query, x, y, torch.arange(UNITS), UNITS, chunk)
        assert looks.count == chunks
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("work", [OneGradient(), LocalSteps(2, 0.1, batch_size=2)], ids=str)
def test_clients_of_several_examples_synchronise_once_too(work, monkeypatch):
    """Local steps are summed without a read; a chunk reads once whether all clients' norms are known. Clients
    of three sizes are three chunks."""
    owner = torch.arange(4).repeat_interleave(torch.tensor([2, 0, 3, 1]))
    model, x = convolutions()
    task, x, y = Task(model), x[: len(owner)], torch.arange(len(owner)) % 3
    query = divided(task, x, y)
    want = clipped_sum_loop(work, task, query, x, y, owner, 4)
    monkeypatch.setattr(synchronisation, "readable", lambda tensor: False)
    clipped_sum(work, task, query, x, y, owner, 4)
    with Looks((x, y, hold(query))) as looks:
        got = clipped_sum(work, task, query, x, y, owner, 4)
    assert looks.count == (3 if isinstance(work, OneGradient) else 0)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["convolutions", "linear on places"])
def test_divisors_too_wide_for_one_product_are_exact(name, monkeypatch):
    model, x = MODELS[name]()
    task, y = Task(model), torch.arange(UNITS) % 3
    query = divided(task, x, y)
    for block in query.blocks:
        block.terms[0].divisor[::2] *= 1e14
    want = clipped_sum_loop(OneGradient(), task, query, x, y)
    monkeypatch.setattr(synchronisation, "readable", lambda tensor: False)
    for a, b in zip(clipped_sum(OneGradient(), task, query, x, y), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-20)


def test_reads_are_counted():
    x = torch.ones(3)
    with Looks([x]) as looks:
        assert bool((x.exp() > 0).all())
        assert len((x * 2)[x > 0]) == 3
        assert bool((torch.ones(3) > 0).all())  # the host's own
    assert looks.count == 2
