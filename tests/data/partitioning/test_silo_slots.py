"""Silos with a public number of slots: no example in two, none of another silo, and none moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import SiloSlots, load, population
from fedpriv.data.partitioning import silo_slots
from fedpriv.data.partitioning.client_sizes import Sizes
from fedpriv.data.partitioning.partition import Partition

OWNERS = st.lists(st.integers(0, 4), min_size=1, max_size=40)


def held(slots: SiloSlots) -> dict[int, int]:
    """The example in each slot that is not empty."""
    indices, owner = slots.examples(np.arange(slots.clients))
    return dict(zip(owner.tolist(), indices.tolist(), strict=True))


@given(owners=OWNERS, sizes=st.lists(st.integers(1, 6), min_size=5, max_size=5), at_once=st.integers(1, 50))
def test_each_slot_holds_an_example_of_its_silo_and_no_example_has_two(
    owners: list[int], sizes: list[int], at_once: int
) -> None:
    parts = Partition.natural(np.array([*owners, 4]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silo_slots, "_AT_ONCE", at_once)
        found = held(SiloSlots(parts, np.array(sizes)))
    assert len(set(found.values())) == len(found)
    bounds = np.cumsum([0, *sizes])
    for silo, size in enumerate(sizes):
        own = [i for i, owner in enumerate([*owners, 4]) if owner == silo]
        there = [found[slot] for slot in range(bounds[silo], bounds[silo + 1]) if slot in found]
        assert there == own[:size]  # the first examples, and nothing in place of those that are missing


@given(owners=OWNERS, silo=st.integers(0, 3))
def test_one_more_example_changes_one_slot(owners: list[int], silo: int) -> None:
    sizes = np.full(5, 4)
    before = held(SiloSlots(Partition.natural(np.array([*owners, 4])), sizes))
    after = held(SiloSlots(Partition.natural(np.array([*owners, 4, silo])), sizes))
    assert len(before.items() ^ after.items()) == (owners.count(silo) < 4)


@pytest.mark.parametrize(
    ("kind", "sizes"), [("dirichlet", "lognormal"), ("shards", "equal"), ("iid", "uniform")]
)
def test_an_infinite_source_fills_every_slot(kind: str, sizes: str) -> None:
    source, law = load("infinite-digits"), Sizes(sizes, 30)
    parts = population(kind, source, clients=7, examples_per_client=30, sizes=sizes, alpha=0.1, seed=3)
    slots = SiloSlots(parts, law.of(3, np.arange(7)))
    assert len(set(held(slots).values())) == slots.clients == int(law.of(3, np.arange(7)).sum())
    some = np.array([slots.clients - 1, 0])
    assert slots.examples(some)[0].tolist() == [held(slots)[slot] for slot in some.tolist()]


def test_labels_of_silos_are_skewed() -> None:
    source = load("infinite-digits")
    parts = population("shards", source, clients=10, examples_per_client=40, labels_per_client=1)
    indices, owner = SiloSlots(parts, np.full(10, 40)).examples(np.arange(400))
    assert all(len(set(source.labels(indices[owner // 40 == silo]))) == 1 for silo in range(10))


def test_sizes_that_do_not_suit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Partition.natural(np.array([0, 1]))
    with pytest.raises(ArgumentError, match="sizes is 3; it must be 2, one for each silo"):
        SiloSlots(parts, np.array([1, 1, 1]))
    with pytest.raises(ArgumentError, match="sizes is 0; it must be at least 1"):
        SiloSlots(parts, np.array([1, 0]))
    with pytest.raises(ArgumentError, match="must be below 2"):
        SiloSlots(parts, np.array([1, 1])).examples(np.array([2]))
    monkeypatch.setattr(silo_slots, "_MOST", 3)
    with pytest.raises(ArgumentError, match="have at most 3 examples in all"):
        SiloSlots(parts, np.array([2, 2]))
