"""Sparse rows hand out what a dense matrix would."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data import Arrays, DataError
from fedpriv.data.sparse import SparseRows


def sparse(dense):
    rows, columns = np.nonzero(dense)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(dense)))])
    return SparseRows(offsets, columns, dense[rows, columns], dense.shape[1])


@given(n=st.integers(1, 8), width=st.integers(1, 6), seed=st.integers(0, 99), data=st.data())
def test_rows_equal_the_dense_matrix(n, width, seed, data):
    rng = np.random.default_rng(seed)
    dense = (rng.normal(size=(n, width)) * (rng.random((n, width)) < 0.4)).astype(np.float32)
    at = data.draw(st.lists(st.integers(0, n - 1), max_size=9))
    got = sparse(dense).index_select(0, torch.tensor(at, dtype=torch.int64))
    assert got.numpy().tolist() == dense[at].tolist()


def test_a_sparse_source_returns_dense_rows():
    x = np.array([[0, 0.5, 0], [0, 0, 0], [1, 0, 2]], np.float32)
    tags = np.array([[1, 0], [0, 0], [1, 1]], np.float32)
    options = {"classes": 2, "target": "tags"}
    one = Arrays("toy", sparse(x), sparse(tags), sparse(x[:2]), sparse(tags[:2]), **options)
    two = Arrays("toy", x, tags, x[:2], tags[:2], **options)
    at = np.array([2, 0, 2, 1])
    for a, b in ((one.batch(at), two.batch(at)), (one.test(), two.test())):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    assert (one.shape, one.size) == (two.shape, two.size)


def test_what_does_not_fit_is_refused():
    x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    for bad in (sparse(np.full((2, 2), np.inf)), SparseRows(np.array([0, 1, 1]), [5], [1.0], 2)):
        with pytest.raises(DataError, match="finite numbers"):
            Arrays("toy", bad, y, x, y, 2)
    with pytest.raises(DataError, match="3 tags"):
        Arrays("toy", x, sparse(x), x, sparse(x), classes=3, target="tags")
    with pytest.raises(DataError, match="0 or 1"):
        Arrays("toy", x, sparse(2 * x), x, sparse(x), classes=2, target="tags")
