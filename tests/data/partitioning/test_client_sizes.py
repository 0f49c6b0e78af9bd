"""Client sizes: their distribution, their bounds, and that shares add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.data.partitioning.client_sizes import KINDS, Sizes


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    clients=st.integers(1, 300),
    extra=st.integers(0, 5000),
    seed=st.integers(0, 10**6),
)
def test_shares_add_up_and_every_client_has_an_example(kind, clients, extra, seed):
    shares = Sizes(kind).shares(clients + extra, clients, seed)
    assert shares.sum() == clients + extra
    assert shares.min() >= 1
    if kind == "equal":
        assert shares.max() - shares.min() <= 1


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    mean=st.integers(1, 500),
    ids=st.lists(st.integers(0, 10**12 - 1), min_size=1, max_size=50),
)
def test_sizes_lie_in_public_bounds_and_depend_only_on_the_client(kind, mean, ids):
    sizes = Sizes(kind, mean)
    got = sizes.of(3, np.array(ids))
    assert got.min() >= 1
    assert got.max() <= sizes.most
    assert got.tolist() == [int(sizes.of(3, np.array([i]))[0]) for i in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_mean(kind):
    """Of 40,000 clients; 6 standard errors (false alarm 2e-9) plus half an example of rounding."""
    got = Sizes(kind, 50).of(0, np.arange(40_000))
    assert abs(got.mean() - 50) < 6 * got.std() / 200 + 0.5


def test_lognormal_has_its_spread():
    """Standard error of a standard deviation is s / sqrt(2 n) = 0.35 %; 6 of them."""
    got = Sizes("lognormal", 10_000).of(0, np.arange(40_000))
    assert np.log(got).std() == pytest.approx(0.5, rel=0.022)


def test_seeds_differ():
    one, two = (Sizes("lognormal", 100).of(seed, np.arange(50)) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="client-sizes is 'odd'"):
        Sizes("odd")
    with pytest.raises(ArgumentError, match="examples-per-client"):
        Sizes("equal", 0)
    with pytest.raises(ArgumentError, match="clients is 5; it must be at most 4"):
        Sizes().shares(4, 5, 0)
