"""Keyed hashes and permutations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv.data.keyed import hashed, permuted, uniform


@settings(max_examples=60)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64), column=st.integers(0, 2**60))
def test_permuted_is_a_permutation(size, seed, column):
    image = permuted(seed, np.arange(size), np.full(size, size), np.full(size, column))
    assert np.array_equal(np.sort(image), np.arange(size))


def test_mixed_sizes_in_one_call_are_each_within_range():
    size = np.array([1, 2, 3, 5, 1000, 10**12, 2**60])
    image = permuted(0, size - 1, size, np.arange(7))
    assert (image >= 0).all()
    assert (image < size).all()
    alone = [permuted(0, size[k : k + 1] - 1, size[k : k + 1], np.array([k]))[0] for k in range(7)]
    assert image.tolist() == alone


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 12, 20])
def test_small_permutations_are_uniform(size):
    """Where 200,000 clients send the first two positions: chi-square over the pairs; false alarm 1e-9.

    Four Feistel rounds instead of twelve fail for most of the sizes.
    """
    clients = np.arange(200_000)
    full = np.full_like(clients, size)
    pair = [permuted(5, np.full_like(clients, p), full, clients) for p in (0, 1)]
    counts = np.bincount(pair[0] * size + pair[1], minlength=size * size).reshape(size, size)
    assert not counts.diagonal().any()
    seen = counts[~np.eye(size, dtype=bool)]
    assert stats.chisquare(seen).pvalue > 1e-9
    serial = np.bincount(pair[0][:-1] * size + pair[0][1:], minlength=size * size)
    assert stats.chisquare(serial).pvalue > 1e-9


def test_uniform_is_uniform_along_every_column():
    """Kolmogorov-Smirnov, false alarm 1e-9; serial correlation below 6 standard errors."""
    n = 100_000
    run, still = np.arange(n), np.full(n, 3)
    for columns in ((run,), (run, still), (still, run), (run * 2**40, still)):
        u = uniform(1, *columns)
        assert stats.kstest(u, "uniform").pvalue > 1e-9
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 6 / np.sqrt(n)
        assert u.min() > 0
        assert u.max() < 1


def test_every_argument_matters():
    a, b = np.array([1]), np.array([2])
    words = [hashed(0, a, b), hashed(0, b, a), hashed(1, a, b), hashed(0, a), hashed(0, a, b, a)]
    assert len({int(w[0]) for w in words}) == 5
    assert hashed(0, a, b) == hashed(0, a, b)
    assert hashed(0, -a) != hashed(0, a)
