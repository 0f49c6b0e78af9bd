"""Label skew, in its finite and its endless form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.data.partitioning.label_skew import Dirichlet, Iid, Shards

SKEWS = [Iid(), Dirichlet(0.05), Dirichlet(1.0), Dirichlet(100.0), Shards(1), Shards(2), Shards(40)]


@settings(max_examples=60)
@given(
    skew=st.sampled_from(SKEWS),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    labels=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_counts_have_both_margins(skew, sizes, labels, seed):
    rng = np.random.default_rng(seed)
    stock = np.bincount(rng.integers(0, labels, sum(sizes)), minlength=labels)
    # A Dirichlet concentration needs every label to occur; Partition.assign ensures this.
    stock = stock[stock > 0]
    counts = skew.counts(np.array(sizes), stock, rng)
    assert counts.min() >= 0
    assert counts.sum(1).tolist() == sizes
    assert counts.sum(0).tolist() == stock.tolist()


def effective_labels(counts):
    """Mean over clients of 1 / sum p^2: 1 for one label each, about G for iid."""
    p = counts / counts.sum(1, keepdims=True)
    return float((1 / (p**2).sum(1)).mean())


def endless(skew, clients=400, each=50, seed=0):
    stock = np.full(10, 140)
    client = np.repeat(np.arange(clients) * 10**9, each)
    label = skew.draw(seed, client, np.tile(np.arange(each), clients), stock)
    row = np.repeat(np.arange(clients), each)
    return np.bincount(row * 10 + label, minlength=clients * 10).reshape(clients, 10)


def finite(skew, clients=400, each=50, seed=0):
    rng = np.random.default_rng(seed)
    return skew.counts(np.full(clients, each), np.full(10, clients * each // 10), rng)


@pytest.mark.parametrize("form", [endless, finite])
def test_dirichlet_skew_is_monotone_in_alpha(form):
    """Steps of a factor 5 in alpha are over ten standard errors apart at 400 clients."""
    spread = [effective_labels(form(Dirichlet(alpha))) for alpha in (0.004, 0.02, 0.1, 0.5, 2.5, 12.5)]
    assert spread == sorted(spread)
    assert np.diff(spread).min() > 0.01
    assert effective_labels(form(Dirichlet(1000.0))) == pytest.approx(effective_labels(form(Iid())), rel=0.02)


def test_endless_dirichlet_has_the_moments_of_its_distribution():
    """A label's share among 4,000 clients of 200: mean 0.1, variance of Dirichlet-multinomial.

    E[share^2] - 0.01 = 0.09 / (10 alpha + 1) + (0.09 - that) / 200; 6 standard errors.
    """
    for alpha in (0.05, 0.3, 3.0):
        share = endless(Dirichlet(alpha), 4000, 200) / 200
        expected = 0.09 / (10 * alpha + 1)
        expected += (0.09 - expected) / 200
        squares = ((share - 0.1) ** 2).mean(1)
        assert abs(squares.mean() - expected) < 6 * squares.std() / np.sqrt(4000)
        assert (np.abs(share.mean(0) - 0.1) < 6 * share.std(0) / np.sqrt(4000)).all()


def test_dirichlet_of_a_tiny_alpha_does_not_underflow():
    counts = endless(Dirichlet(1e-6))
    assert effective_labels(counts) == pytest.approx(1.0, abs=0.01)
    assert (counts.sum(0) > 0).all()


def test_dirichlet_follows_the_shares_of_the_labels():
    stock = np.array([900, 100])
    client = np.repeat(np.arange(20_000), 1)
    label = Dirichlet(0.3).draw(0, client, np.zeros_like(client), stock)
    assert abs(label.mean() - 0.1) < 6 * np.sqrt(0.09 / 20_000)


def test_iid_draws_follow_the_stock():
    """Chi-square, false alarm 1e-9."""
    stock = np.array([10, 0, 30, 60])
    n = 50_000
    label = Iid().draw(0, np.arange(n), np.zeros(n, np.int64), stock)
    seen = np.bincount(label, minlength=4)
    assert seen[1] == 0
    assert stats.chisquare(seen[[0, 2, 3]], n * stock[[0, 2, 3]] / 100).pvalue > 1e-9


@pytest.mark.parametrize("labels", [1, 2, 5, 10, 15])
def test_endless_shards_have_exactly_their_labels(labels):
    counts = endless(Shards(labels))
    assert set((counts > 0).sum(1)) == {min(labels, 10)}
    assert (counts.max(1) - np.where(counts > 0, counts, 99).min(1) <= 1).all()
    assert (counts.sum(0) > 0).all()


def test_finite_shards_have_few_labels():
    """Aligned shards: 400 clients x 2 pieces of 25, 2,000 of each label."""
    assert ((finite(Shards(2)) > 0).sum(1) <= 2).all()
    ragged = Shards(2).counts(np.full(7, 10), np.array([33, 37]), np.random.default_rng(0))
    assert ((ragged > 0).sum(1) <= 3).all()


def test_bad_arguments():
    for alpha in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="dirichlet-alpha"):
            Dirichlet(alpha)
    with pytest.raises(ArgumentError, match="labels-per-client"):
        Shards(0)
