"""Streams: distinct by purpose and index, reproducible for a seed, never for none."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.rng import Key


def first(key: Key, *label: object) -> float:
    return float(key.generator(*label).standard_normal())  # type: ignore[arg-type]


def test_a_seed_reproduces_and_says_so() -> None:
    assert first(Key.from_seed(3), "noise", 1) == first(Key.of(3), "noise", 1)
    assert Key.from_seed(3).reproducible
    assert first(Key.from_seed(3), "noise", 1) != first(Key.from_seed(4), "noise", 1)


def test_no_seed_is_os_entropy() -> None:
    assert not Key.of(None).reproducible
    assert first(Key.fresh(), "noise", 1) != first(Key.fresh(), "noise", 1)


def test_every_bit_of_entropy_counts_in_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of fewer random bits can be guessed, and its noise subtracted."""
    given = [bytes(32)] + [(1 << bit).to_bytes(32, "big") for bit in range(256)]
    keys = []
    for entropy in given:
        monkeypatch.setattr(os, "urandom", lambda size, entropy=entropy: entropy[:size])
        keys.append(Key.fresh())
    monkeypatch.undo()
    for draw in (
        lambda key: key.root,
        lambda key: key.secret("noise", 0),
        lambda key: key.child("silo", 0).root,
        lambda key: key.integer("draws", 0),
        lambda key: first(key, "cohort", 0),
        lambda key: float(key.stream("noise", 0).standard_normal()),
    ):
        assert len({draw(key) for key in keys}) == 257
    assert all(len(key.root) == len(key.secret("noise", 0)) == 32 for key in keys)


def test_every_label_has_its_own_stream() -> None:
    key = Key.from_seed(0)
    labels = [("a",), ("b",), ("a", 1), ("a", 11), ("a", 1, 1), ("a", 0), ("a/1", 1)]
    assert len({first(key, *label) for label in labels}) == len(labels)


def test_streams_are_uncorrelated() -> None:
    """4 std of a mean of 1e5 products: flake rate 6e-5 over OS entropy, none for this fixed seed."""
    key = Key.from_seed(0)
    x, y = (key.generator("noise", i).standard_normal(100_000) for i in (0, 1))
    assert abs(np.mean(x * y)) < 4 / np.sqrt(100_000)


def test_the_root_is_never_shown() -> None:
    key = Key.fresh()
    assert key.root.hex() not in repr(key)
    assert repr(key.root) not in repr(key)


def test_seed_must_be_a_whole_number() -> None:
    with pytest.raises(ArgumentError, match="seed"):
        Key.from_seed(-1)


def test_a_child_key_is_another_key_of_the_same_kind() -> None:
    key = Key.from_seed(3)
    child = key.child("silo", 1)
    assert child.reproducible
    assert child == Key.from_seed(3).child("silo", 1)
    roots = {key.root, child.root, key.child("silo", 2).root, key.child("other", 1).root}
    roots |= {child.child("silo", 1).root, Key.from_seed(4).child("silo", 1).root}
    assert len(roots) == 6
    assert not Key.fresh().child("silo", 1).reproducible
    # Not a stream's words: a generator of the parent tells nothing of the child.
    assert child.root[:16] != key._words("silo", (1,)).tobytes()[:16]
