"""The view puts sources and populations together."""

import numpy as np
import torch

from fedpriv.data import Silos, View, load, population


def test_one_example_view_equals_the_source():
    source = load("infinite-digits")
    view = View(source, population("one-example", source, clients=10**12))
    assert view.clients == 10**12
    ids = np.array([0, 7, 10**12 - 1])
    x, y, owner = view.batch(ids)
    expected = source.batch(ids + source.first)
    assert torch.equal(x, expected.x)
    assert torch.equal(y, expected.y)
    assert owner.dtype == torch.int64
    assert owner.tolist() == [0, 1, 2]


def test_owners_are_positions_among_the_requested_clients():
    source = load("digits")
    view = View(source, Silos(4, 3))
    x, y, owner = view.batch(np.array([2, 0]))
    assert owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(x[3:], source.batch(np.arange(3)).x)
    assert y[:3].tolist() == source.labels(np.arange(6, 9)).tolist()


def test_an_empty_cohort_is_an_empty_batch():
    for name in ("digits", "infinite-digits"):
        source = load(name)
        for kind in ("one-example", "iid", "dirichlet", "shards", "silos"):
            batch = View(source, population(kind, source, clients=9)).batch(np.array([], np.int64))
            assert batch.x.shape == (0, 1, 28, 28)
            assert batch.y.shape == batch.owner.shape == (0,)


def test_a_clients_examples_do_not_depend_on_the_other_clients():
    source = load("infinite-digits")
    people = population("dirichlet", source, clients=10**6, examples_per_client=5, sizes="uniform")
    together = View(source, people).batch(np.array([5, 900_000, 17]))
    alone = View(source, people).batch(np.array([17]))
    mine = together.owner == 2
    assert torch.equal(together.x[mine], alone.x)
    assert torch.equal(together.y[mine], alone.y)
