"""Samplers draw from the law that their event declares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.mechanism.sampling import Everyone, FixedSize, Poisson, TruncatedPoisson, draw_distinct
from fedpriv.rng import Key

KEY = Key.from_seed(11)


@given(st.integers(1, 10**12), st.integers(0, 300), st.integers(0, 2**30))
@settings(max_examples=60)
def test_distinct_draws_are_distinct_sorted_and_in_range(population: int, size: int, seed: int) -> None:
    size = min(size, population)
    if population < 10**6 or size * 3 <= population:
        ids = draw_distinct(population, size, Key.from_seed(seed).generator("x"))
        assert len(ids) == size
        assert ids.dtype == np.int64
        assert (ids[1:] > ids[:-1]).all()
        assert size == 0 or (ids[0] >= 0 and ids[-1] < population)


@pytest.mark.parametrize(("population", "size"), [(12, 2), (12, 9)])
def test_distinct_draws_are_uniform_over_sets(population: int, size: int) -> None:
    """Chi-square over all units and all pairs; p > 1e-6, and the seed is fixed."""
    generator = KEY.generator("uniform", population, size)
    draws = 6000
    pairs = np.zeros((population, population))
    for _ in range(draws):
        ids = draw_distinct(population, size, generator)
        pairs[np.ix_(ids, ids)] += 1
    upper = pairs[np.triu_indices(population, 1)]
    assert stats.chisquare(upper).pvalue > 1e-6
    assert stats.chisquare(np.diag(pairs)).pvalue > 1e-6


def test_poisson_counts_are_binomial_and_units_independent() -> None:
    """Variance of the count is N q (1 - q): a fixed-size or rounded draw would fail by 30 std."""
    sampler, generator = Poisson(200, 0.1), KEY.generator("poisson")
    counts = np.array([len(sampler.draw(generator)) for _ in range(5000)])
    assert abs(counts.mean() - 20) < 5 * np.sqrt(18 / 5000)
    assert abs(counts.var() / 18 - 1) < 5 * np.sqrt(2 / 5000)
    observed = np.bincount(np.clip(counts, 10, 30), minlength=31)[10:]
    law = stats.binom(200, 0.1)
    expected = [law.cdf(10), *law.pmf(np.arange(11, 30)), law.sf(29)]
    assert stats.chisquare(observed, np.array(expected) * 5000).pvalue > 1e-6


def test_drawing_costs_the_cohort_and_not_the_population() -> None:
    generator = KEY.generator("big")
    ids = Poisson(10**12, 2.5e-10).draw(generator)
    assert 150 < len(ids) < 360
    assert len(FixedSize(10**12, 1000).draw(generator)) == 1000  # O(N) would be terabytes


def test_empty_cohorts_happen_and_cost_an_event() -> None:
    sampler = Poisson(10, 0.001)
    assert len(sampler.draw(KEY.generator("empty"))) == 0
    assert sampler.event(1.0).rate == 0.001


def test_events_describe_the_sampling() -> None:
    poisson = Poisson(1000, 0.01).event(1.5)
    assert (poisson.sampling, poisson.relation, poisson.rate) == ("poisson", "add-remove", 0.01)
    fixed = FixedSize(1000, 10).event(1.5)
    assert (fixed.sampling, fixed.relation, fixed.cohort) == ("without-replacement", "replace-one", 10)
    knowing = FixedSize(1000, 10, known=200).event(1.5)
    assert (knowing.rate, knowing.population, knowing.cohort) == (10 / 800, 800, 10)
    assert FixedSize(2, 1, known=1).event(1.5).rate == 1.0  # the one knows of the other
    everyone = Everyone(50, "replace-one").event(1.5)
    assert (everyone.sampling, everyone.relation, everyone.rate) == ("none", "replace-one", 1.0)
    assert all(event.noise_multiplier == 1.5 for event in (poisson, fixed, everyone))


def test_truncation_is_the_chance_of_leaving_the_public_bounds() -> None:
    sampler = TruncatedPoisson(1000, 0.05, cap=60, floor=40)
    assert sampler.truncation == pytest.approx(
        stats.binom.sf(60, 1001, 0.05) + stats.binom.cdf(39, 999, 0.05)
    )
    for population in (999, 1000, 1001):  # whichever of two neighbours the data are
        untruncated = stats.binom(population, 0.05)
        assert untruncated.sf(60) + untruncated.cdf(39) <= sampler.truncation
    covering = TruncatedPoisson.covering(100_000, 0.01, tail=1e-12)
    assert 0 < covering.truncation <= 2.1e-12
    assert covering.floor < 1000 < covering.cap < 1300
    assert covering.event(1.0).truncation == covering.truncation
    generator = KEY.generator("cut")
    sizes = [len(TruncatedPoisson(1000, 0.05, cap=50).draw(generator)) for _ in range(200)]
    assert max(sizes) == 50


@pytest.mark.parametrize("tail", [1e-3, 1e-15, 1e-17, 1e-100])
@pytest.mark.parametrize(("population", "rate"), [(1, 0.5), (40, 0.2), (10**5, 0.01), (10**12, 1e-9)])
def test_the_public_bounds_are_the_narrowest_that_cover(population: int, rate: float, tail: float) -> None:
    made = TruncatedPoisson.covering(population, rate, tail)
    more, less = stats.binom(population + 1, rate), stats.binom(population - 1, rate)
    assert more.sf(made.cap) <= tail
    assert made.cap == 1 or more.sf(made.cap - 1) > tail
    assert made.floor == 0 or less.cdf(made.floor - 1) <= tail
    assert made.floor == population or less.cdf(made.floor) > tail
    if population * rate > 900:
        assert 0 < made.floor < population * rate < made.cap < 2 * population * rate


def test_resizing_scales_the_expected_cohort() -> None:
    assert Poisson(100, 0.1).resized(2.0).rate == 0.2
    assert FixedSize(100, 10).resized(3.0).size == 30
    with pytest.raises(ArgumentError, match="sampling-rate"):
        Poisson(100, 0.6).resized(2.0)
    with pytest.raises(ArgumentError):
        Everyone(10).resized(2.0)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Poisson(0, 0.1), "population"),
        (lambda: Poisson(10**13, 0.1), "population"),
        (lambda: Poisson(10, 1.5), "sampling-rate"),
        (lambda: FixedSize(10, 11), "cohort-size"),
        (lambda: FixedSize(10, 0), "cohort-size"),
        (lambda: FixedSize(10, 5, known=10), "known"),
        (lambda: Everyone(10, "both"), "relation"),
    ],
)
def test_bad_values_are_named(call: object, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        call()  # type: ignore[operator]
