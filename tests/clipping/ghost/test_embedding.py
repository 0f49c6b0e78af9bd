"""Embeddings: book-keeping, rows, the plain loop and Opacus agree; no table per example is formed."""

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
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv import models
from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_gradients
from fedpriv.clipping.ghost import sparse
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task


def tokens(n, *shape, below, seed=0):
    return torch.randint(0, below, (n, *shape), generator=torch.Generator().manual_seed(seed))


class Text(nn.Module):
    """Tokens (n, places) -> 3 outputs, by an embedding and a nonlinear mean."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.out = nn.Linear(embedding.embedding_dim, 3)

    def forward(self, x):
        embedded = self.embedding(x)
        return self.out(torch.tanh(embedded).flatten(1, -2).mean(1) if embedded.dim() > 2 else embedded)


class Twice(Text):
    """One table for two kinds of tokens, in one call each."""

    def forward(self, x):
        return self.out(torch.tanh(self.embedding(x[:, 0]) * self.embedding(x[:, 1:]).sum(1)))


class Tied(Text):
    """The table also gives the outputs."""

    def __init__(self, embedding):
        super().__init__(embedding)
        self.out = nn.Linear(embedding.embedding_dim, embedding.num_embeddings, bias=False)
        self.out.weight = self.embedding.weight


@st.composite
def embeddings(draw):
    """An embedding or a bag, and tokens from a small vocabulary, so that most repeat."""
    count, width, places = draw(st.integers(2, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    padding = draw(st.sampled_from([None, 0, count - 1]))
    kind = draw(st.sampled_from(["embedding", "sum", "mean"]))
    sparse = draw(st.booleans())
    shape = (places,)
    if kind == "embedding":
        layer = nn.Embedding(count, width, padding_idx=padding, sparse=sparse)
        shape = draw(st.sampled_from([(places,), (), (2, places)]))
    else:
        layer = nn.EmbeddingBag(count, width, padding_idx=padding, sparse=sparse, mode=kind)
    n = draw(st.integers(2, 7))
    return Text(layer), tokens(n, *shape, below=count, seed=draw(st.integers(0, 99)))


@settings(max_examples=15)
@given(embeddings(), st.sampled_from([torch.float32, torch.float64]))
@pytest.mark.slow
def test_random_embeddings_are_summed_exactly(embedding, dtype):
    model, x = embedding
    task, y = Task(model), torch.arange(len(x)) % 3
    query = one_point_query(task, x, y, dtype)
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("model", [Text, Twice, Tied])
@pytest.mark.parametrize("count", [5, 50])
@pytest.mark.slow
def test_two_points_divisors_and_clients_are_summed_exactly(model, count):
    task = Task(model(nn.Embedding(count, 3)))
    x, y = tokens(6, 8, below=count), torch.arange(6) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


@pytest.mark.parametrize("name", ["lstm", "mlp-text"])
@pytest.mark.slow
def test_the_papers_models_of_text_are_summed_exactly(name):
    task = Task(models.build(name, (7,), 3, (9,)))
    x, y = tokens(6, 7, below=9), torch.arange(6) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


@pytest.mark.parametrize("name", ["factors", "factors-biases"])
def test_the_papers_factorisations_are_summed_exactly(name):
    task = Task(models.build(name, (2,), tokens=(9, 5)), loss="squared-error")
    x, y = torch.stack([tokens(6, below=9), tokens(6, below=5)], 1), noise(6)
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


def test_padding_has_no_gradient():
    task = Task(Text(nn.Embedding(5, 3, padding_idx=2)))
    x, y = tokens(6, 8, below=5), torch.arange(6) % 3
    query = Query((noise(task.dimension),), (SumBlock((Term(0.1),)),))
    (total,) = sum_gradients(task, query, x, y)
    rows = task.layout.split(total)["embedding.weight"].any(1)
    assert rows.tolist() == [True, True, False, True, True]


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_norms_are_those_of_opacus():
    assert_opacus_agrees(Text(nn.Embedding(9, 3)), tokens(6, 8, below=9), torch.arange(6) % 3)


def test_a_large_table_with_other_uses_is_summed_as_rows(monkeypatch):
    """Then a table per example is needed, but only few examples are formed at a time."""
    monkeypatch.setattr(sparse, "_LARGEST_TABLE", 100)
    task = Task(Tied(nn.Embedding(50, 3)))
    x, y = tokens(6, 8, below=50), torch.arange(6) % 3
    query = one_point_query(task, x, y)
    assert not clipper_of(task).coverage(task, query.points[0], x, y)
    assert_all_ways_agree(task, query, x, y, 1e-10, fast=False)


class Largest(TorchDispatchMode):
    """Records the entries of the largest tensor that is created while the mode is active."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


def test_no_table_per_example_is_formed():
    """For every query, no tensor is larger than the sum's table, also in the trial."""
    task = Task(Text(nn.Embedding(10**5, 4)))
    x, y = tokens(50, 8, below=10**5), torch.arange(50) % 3
    points = tuple(0.1 * noise(task.dimension, seed=seed).float() for seed in (0, 1))
    divisor = noise(task.dimension, seed=2).abs().float() + 1
    terms = (Term(0.1), Term(0.1, at=(1.0, -1.0)), Term(0.1, divisor=divisor))
    with Largest() as largest:
        sum_gradients(task, Query(points, (SumBlock(terms),)), x, y)
        sum_gradients(task, Query(points, (SumBlock(terms),)), x, y, weights=None)
    assert largest.entries <= 3 * task.dimension


@pytest.mark.parametrize("wrong", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embedding_options_that_depend_on_the_batch_are_refused(kind, wrong):
    with pytest.raises(ArgumentError, match="embedding"):
        Task(Text(kind(5, 3, **wrong)))


def test_entries_that_cancel_within_a_row_leave_no_rounding():
    added = torch.tensor([[[0.75], [0.0]], [[1e10], [-1e10]]])
    form = sparse.Sparse(torch.zeros(2, 2, dtype=torch.int64), added, (5000, 1))
    assert form.squares().tolist() == [0.5625, 0.0]
    assert form.total(torch.ones(2))[0].tolist() == [0.75]
