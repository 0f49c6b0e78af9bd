"""Partitions: disjoint, exhaustive where finite, deterministic, cheap at 10^12 clients."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.data.partitioning.client_sizes import KINDS, Sizes
from fedpriv.data.partitioning.label_skew import Dirichlet, Iid, Shards
from fedpriv.data.partitioning.partition import Implicit, Partition, ranges

SKEWS = st.sampled_from([Iid(), Dirichlet(0.1), Dirichlet(5.0), Shards(1), Shards(3)])


@settings(max_examples=80)
@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=150),
    skew=SKEWS,
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**31),
    first=st.integers(0, 10**6),
    data=st.data(),
)
def test_finite_partitions_are_disjoint_and_exhaustive(labels, skew, kind, seed, first, data):
    clients = data.draw(st.integers(1, len(labels)))
    options = {"clients": clients, "skew": skew, "sizes": Sizes(kind), "seed": seed, "first": first}
    parts = Partition.assign(np.array(labels), **options)
    index, owner = parts.examples(np.arange(clients))
    assert sorted((index - first).tolist()) == list(range(len(labels)))
    assert np.bincount(owner, minlength=clients).min() >= 1
    assert (np.diff(owner) >= 0).all()
    again = Partition.assign(np.array(labels), **options)
    assert np.array_equal(again.order, parts.order)


@settings(max_examples=60)
@given(
    base=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    skew=SKEWS,
    sizes=st.builds(Sizes, st.sampled_from(KINDS), st.integers(1, 60)),
    ids=st.lists(st.integers(0, 10**12 - 1), min_size=1, max_size=12, unique=True),
    near=st.integers(0, 10**12 - 20),
    seed=st.integers(0, 2**31),
)
def test_implicit_clients_are_disjoint(base, skew, sizes, ids, near, seed):
    labels = np.array(base) * 3  # some labels in between do not occur
    population = Implicit(labels, 10**12, skew, sizes, seed, first=7)
    wanted = np.unique(np.array([*ids, *range(near, near + 15)]))
    index, owner = population.examples(wanted)
    assert len(np.unique(index)) == len(index)
    assert index.min() >= 7
    assert np.bincount(owner, minlength=len(wanted)).tolist() == sizes.of(seed, wanted).tolist()
    for k in (0, len(wanted) - 1):
        alone, zeros = population.examples(wanted[k : k + 1])
        assert np.array_equal(alone, index[owner == k])
        assert not zeros.any()


def test_implicit_examples_have_the_labels_of_their_skew():
    labels = np.arange(500) % 10
    population = Implicit(labels, 10**9, Shards(2), Sizes("equal", 30), seed=4, first=100)
    index, owner = population.examples(np.arange(0, 10**9, 10**7))
    own = labels[(index - 100) % 500]
    assert {len(np.unique(own[owner == k])) for k in range(100)} == {2}


def test_implicit_choices_cover_the_base_images():
    """30,000 draws of 500 images: each expected 60 times; 6.5 standard deviations, with all images."""
    population = Implicit(np.arange(500) % 10, 10**6, Iid(), Sizes("equal", 30), seed=4)
    seen = np.bincount(population.examples(np.arange(1000))[0] % 500, minlength=500)
    assert abs(seen - 60).max() < 6.5 * np.sqrt(60)


def test_a_client_larger_than_its_label():
    """50 examples of the one label that 3 base images have: 17 deformations of each to choose from."""
    population = Implicit(np.zeros(3, np.int64), 100, Iid(), Sizes("equal", 50))
    assert population.copies == 17
    index, _ = population.examples(np.arange(100))
    assert len(np.unique(index)) == 5000
    assert index.max() < 3 * 17 * 100


def test_cost_does_not_grow_with_the_number_of_clients():
    """Memory of 10^12 clients within three times that of 10^4 (about equal in truth)."""

    def cost(clients):
        population = Implicit(np.arange(1437) % 10, clients, Dirichlet(0.3), Sizes("lognormal", 20))
        ids = np.linspace(0, clients - 1, 250).astype(np.int64)
        tracemalloc.start()
        population.examples(ids)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert cost(10**12) < 3 * cost(10**4)


def test_seeds_and_clients_matter():
    def draw(seed, ids):
        return Implicit(np.arange(90) % 9, 100, Iid(), Sizes("equal", 9), seed).examples(ids)[0]

    assert not np.array_equal(draw(0, np.arange(5)), draw(1, np.arange(5)))
    assert not np.array_equal(draw(0, np.array([1])) % 90, draw(0, np.array([2])) % 90)
    parts = [Partition.assign(np.arange(90) % 9, clients=9, skew=Iid(), seed=s).order for s in (0, 1)]
    assert not np.array_equal(*parts)


def test_order_within_a_client_is_mixed():
    """Local steps take examples in order, which must not be by label."""
    labels = np.arange(2000) % 2
    index, _ = Partition.assign(labels, clients=2, skew=Iid()).examples(np.array([0]))
    changes = np.count_nonzero(np.diff(labels[index]))
    assert abs(changes - 500) < 6 * np.sqrt(250)


def test_ranges():
    numbers, owner = ranges(np.array([5, 0, 9]), np.array([2, 0, 3]))
    assert numbers.tolist() == [5, 6, 9, 10, 11]
    assert owner.tolist() == [0, 0, 2, 2, 2]


def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"client_ids is 3; .* below 3"):
        Partition.assign(np.zeros(9, np.int64), clients=3, skew=Iid()).examples(np.array([3]))
    with pytest.raises(ArgumentError, match="clients is 10; it must be at most 9"):
        Partition.assign(np.zeros(9, np.int64), clients=10, skew=Iid())
    with pytest.raises(ArgumentError, match="be smaller"):
        Implicit(np.zeros(60_000, np.int64), 10**14, Iid())
