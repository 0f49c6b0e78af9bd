"""One example a client, silos, and the factory over all populations."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Arrays, OneExample, Silos, load, population
from fedpriv.data.partitioning.partition import Implicit, Partition
from fedpriv.data.partitioning.populations import KINDS


@given(clients=st.integers(1, 10**12), first=st.integers(0, 10**5), data=st.data())
def test_one_example(clients, first, data):
    ids = data.draw(st.lists(st.integers(0, clients - 1), max_size=20))
    index, owner = OneExample(clients, first).examples(np.array(ids, np.int64))
    assert index.tolist() == [i + first for i in ids]
    assert owner.tolist() == list(range(len(ids)))


def test_a_trillion_clients_cost_nothing():
    tracemalloc.start()
    people = OneExample(10**12, 10_000)
    index, _ = people.examples(np.linspace(0, 10**12 - 1, 250).astype(np.int64))
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert index[-1] == 10**12 + 9_999


@given(silos=st.integers(1, 6), each=st.integers(1, 9), first=st.integers(0, 50))
def test_silos_are_contiguous_and_exhaustive(silos, each, first):
    population = Silos(silos, each, first)
    index, owner = population.examples(np.arange(silos))
    assert index.tolist() == list(range(first, first + silos * each))
    assert owner.tolist() == np.repeat(np.arange(silos), each).tolist()
    assert population.units().clients == silos * each
    units, _ = population.units().examples(np.arange(silos * each))
    assert units.tolist() == index.tolist()
    for s in range(silos):
        low, high = population.bounds(s)
        assert owner[low:high].tolist() == [s] * each
    back, who = population.examples(np.array([silos - 1, 0]))
    assert back[0] == first + (silos - 1) * each
    assert who.tolist() == [0] * each + [1] * each


def test_every_client_id_is_checked():
    for people in (OneExample(5), Silos(5, 2)):
        for bad in (-1, 5):
            with pytest.raises(ArgumentError, match=f"client_ids is {bad}"):
                people.examples(np.array([0, bad]))
    with pytest.raises(ArgumentError, match="silo is 5"):
        Silos(5, 2).bounds(5)
    with pytest.raises(ArgumentError, match="clients is 0"):
        OneExample(0)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"natural"}))
def test_factory_over_both_kinds_of_source(kind):
    endless, finite = load("infinite-digits"), load("digits")
    options = {"clients": 100, "examples_per_client": 10, "sizes": "lognormal", "seed": 3}
    for source in (endless, finite):
        people = population(kind, source, **options)
        assert people.clients == 100
        index, owner = people.examples(np.arange(100))
        assert len(np.unique(index)) == len(index) == len(owner)
        assert index.min() >= source.first
        assert len(source.labels(index)) == len(index)
        if source is finite and kind in ("iid", "dirichlet", "shards"):
            assert isinstance(people, Partition)
            assert len(index) == source.size
        elif kind in ("iid", "dirichlet", "shards"):
            assert isinstance(people, Implicit)


def test_labels_of_the_population_are_those_of_the_source():
    """The implicit population and the source must agree on which image an index shows."""
    source = load("infinite-digits")
    people = population("shards", source, clients=10**10, examples_per_client=40, labels_per_client=3)
    index, owner = people.examples(np.arange(10**9, 10**9 + 50))
    labels = source.batch(index).y.numpy()
    assert {len(np.unique(labels[owner == k])) for k in range(50)} == {3}


def test_factory_refuses_impossible_populations():
    digits = load("digits")
    with pytest.raises(ArgumentError, match="partition is 'odd'"):
        population("odd", digits, clients=1)
    with pytest.raises(ArgumentError, match=r"at most 1437: .*infinite data set"):
        population("one-example", digits, clients=1438)
    with pytest.raises(ArgumentError, match="at most 14 with 100 examples each"):
        population("silos", digits, clients=15, examples_per_client=100)
    with pytest.raises(ArgumentError, match="examples-per-client is 100000; it must be at most 143 for 10 "):
        population("silos", digits, clients=10, examples_per_client=100_000)
    for source in (digits, load("infinite-digits")):
        with pytest.raises(ArgumentError, match=f"per-client is 11; .*10, the labels of {source.name}"):
            population("shards", source, clients=50, labels_per_client=11)
        assert population("shards", source, clients=50, labels_per_client=10).clients == 50
    with pytest.raises(ArgumentError, match="at most 1437"):
        population("iid", digits, clients=1438)
    with pytest.raises(ArgumentError, match="dirichlet-alpha"):
        population("dirichlet", digits, clients=2, alpha=0)


def rated(owners, target="value"):
    """A source of ratings, without labels, whose examples come from ``owners``."""
    n, y = len(owners), {"value": np.ones(len(owners)), "tags": np.ones((len(owners), 3))}[target]
    ids = np.zeros((n, 2), np.int16)
    options = {"tokens": (5, 5), "target": target, "classes": y[:1].size}
    return Arrays("rated", ids, y, ids, y, **options, owners=np.array(owners))


def test_a_natural_client_owns_its_examples():
    people = population("natural", rated([2, 0, 2, 3, 0]), clients=4)
    index, owner = people.examples(np.array([3, 1, 2, 0]))
    assert index.tolist() == [3, 0, 2, 1, 4]
    assert owner.tolist() == [0, 2, 2, 3, 3]  # client 1 has nothing
    assert people.clients == 4


@given(owners=st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_natural_partitions_are_the_plain_loop(owners):
    people = population("natural", rated(owners), clients=max(owners) + 1)
    for client in range(people.clients):
        index, _ = people.examples(np.array([client]))
        assert index.tolist() == [i for i, owner in enumerate(owners) if owner == client]


def test_natural_partition_needs_natural_clients():
    for name in ("digits", "infinite-digits"):
        with pytest.raises(
            ArgumentError, match=f"partition=natural needs examples that belong to clients.*{name} has none"
        ):
            population("natural", load(name), clients=10)
    with pytest.raises(ArgumentError, match="clients is 3; it must be 4 with partition=natural"):
        population("natural", rated([0, 3]), clients=3)


@pytest.mark.parametrize("target", ["value", "tags"])
def test_a_source_without_labels_allows_only_partitions_without_labels(target):
    source = rated([0] * 12, target)
    index, owner = population("iid", source, clients=3).examples(np.arange(3))
    assert sorted(index.tolist()) == list(range(12))
    assert np.bincount(owner).tolist() == [4, 4, 4]
    for kind in ("one-example", "silos"):
        assert population(kind, source, clients=3, examples_per_client=4).clients == 3
    for kind in ("dirichlet", "shards"):
        with pytest.raises(ArgumentError, match=f"partition={kind} assigns .* is {target}"):
            population(kind, source, clients=3)
    with pytest.raises(ArgumentError, match="have labels"):
        source.labels(np.array([0]))
