"""The largest norm of an honest reply: it is never passed by honest extremes, and is not much larger."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedpriv.clipping.explicit import sum_rows
from fedpriv.mechanism import reply_bound
from fedpriv.mechanism.grid import on_grid
from fedpriv.mechanism.query import Block, IndicatorBlock, Query, SumBlock, Term
from fedpriv.mechanism.release import add_party_noise
from fedpriv.mechanism.reply_bound import largest_norms
from fedpriv.rng import Key

BIT = IndicatorBlock(Term(1.0), 1.0, 0.25)


def norms(sums: tuple[torch.Tensor, ...]) -> list[float]:
    return [float(torch.linalg.vector_norm(total, dtype=torch.float64)) for total in sums]


@st.composite
def queries(draw: st.DrawFn) -> Query:
    """Queries of one to three blocks: several terms, divisors, layers, two points, an indicator."""
    dimension = draw(st.sampled_from([1, 2, 7, 300]))
    points = draw(st.integers(1, 2))
    norm = st.floats(-3, 3).map(lambda power: 10.0**power)

    def term() -> Term:
        at = (1.0, -1.0)[:points]
        divisor = torch.linspace(0.01, 100, dimension) if draw(st.booleans()) else None
        return Term(draw(norm), draw(st.sampled_from([-2.0, 0.3, 1.0])), at, divisor, draw(st.booleans()))

    count = draw(st.integers(1, 2))
    blocks: list[Block] = [
        SumBlock(tuple(term() for _ in range(draw(st.integers(1, 2)))), 0.75 / count) for _ in range(count)
    ]
    return Query((torch.zeros(dimension),) * points, (*blocks, BIT))


@given(queries(), st.integers(0, 40), st.booleans(), st.integers(0, 2**32))
def test_clipped_sums_of_equal_units_are_within_the_bound(
    query: Query, units: int, large: bool, seed: int
) -> None:
    """All units add the same vector, which is at its clip norm or has one entry: the longest sum there is."""
    generator = torch.Generator().manual_seed(seed)
    dimension = query.dimension
    rows = []
    for _ in query.points:
        unit = torch.randn(dimension, generator=generator) * (1e6 if large else 1.0)
        rows.append(unit.expand(units, dimension))
    layers = (dimension // 2, dimension - dimension // 2)
    sums = sum_rows(rows, query.blocks, layers)
    for block, norm, bound in zip(
        query.blocks, norms(sums), largest_norms(query, units, [units]), strict=True
    ):
        assert norm <= bound
        if units and isinstance(block, IndicatorBlock):
            assert bound < 1.1 * norm  # every unit adds 1/2, or every one -1/2


def honest(
    query: Query, shards: list[tuple[int, int]], stds: tuple[float, ...], exact: bool
) -> tuple[torch.Tensor, ...]:
    """The reply of a node whose units are all at their clip norms, in the direction of the noise."""
    key, totals = Key.from_seed(7), []
    for index, (units, parties) in enumerate(shards):
        noise = add_party_noise(
            tuple(torch.zeros(b.shape) for b in zeros(query)), stds, parties, key, 0, index
        )
        sums = tuple(
            units * block.sensitivity * z / torch.linalg.vector_norm(z)
            for block, z in zip(query.blocks, noise, strict=True)
        )
        sums = add_party_noise(sums, stds, parties, key, 0, index, query.blocks if exact else ())
        totals.append(sums if exact else tuple(map(on_grid, sums, query.blocks, stds)))
    return tuple(torch.stack(list(parts)).double().sum(0) for parts in zip(*totals, strict=True))


def zeros(query: Query) -> list[torch.Tensor]:
    like = query.points[0]
    return [like if isinstance(block, SumBlock) else like.new_zeros(()) for block in query.blocks]


NOISES = [1e-3, 1.0, 30.0, 1e4]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("multiplier", NOISES)
@pytest.mark.parametrize("dimension", [1, 20_000])
def test_the_longest_honest_replies_are_within_the_bound(
    dimension: int, multiplier: float, exact: bool
) -> None:
    """Local and distributed noise: several parties, or a silo, also one with an empty cohort."""
    query = Query((torch.zeros(dimension),), (SumBlock((Term(0.7), Term(0.1, -2.0)), 0.75), BIT))
    stds = query.noise_stds(multiplier)
    for shards in ([(5, 5), (3, 3)], [(400, 1)], [(0, 1)], [(1, 1)] * 20):
        sums = honest(query, shards, stds, exact)
        units, parties = sum(n for n, _ in shards), [k for _, k in shards]
        bounds = largest_norms(query, units, parties, stds)
        assert all(norm <= bound for norm, bound in zip(norms(sums), bounds, strict=True))
        if dimension > 1:  # three times the noise is noticed where there is enough of it
            pure = largest_norms(query, 0, parties, stds)[0]
            assert 3 * math.sqrt(sum(parties) * dimension) * stds[0] > pure


@pytest.mark.parametrize("dimension", [1, 2, 30, 1000, 10**6])
def test_the_tail_of_the_noise_has_the_stated_chance(dimension: int) -> None:
    """Against the exact law of the norm, chi with d degrees of freedom."""
    tail = stats.chi.logsf(math.sqrt(dimension) + reply_bound._TAIL, dimension) / math.log(2)
    assert tail <= -reply_bound._CHANCE_BITS
    assert reply_bound._CHANCE_BITS == 64


@given(st.integers(8, 10_000), st.sampled_from([1, 100, 10**6]))
def test_a_reply_of_an_eighth_more_units_is_beyond_the_bound(units: int, dimension: int) -> None:
    query = Query((torch.zeros(dimension),), (SumBlock((Term(2.0),), 0.75), BIT))
    more = np.array([2.0, 0.5]) * units * 1.125
    assert (more > np.array(largest_norms(query, units, [units]))).all()


def test_a_block_without_a_clip_norm_has_no_bound() -> None:
    assert largest_norms(Query((torch.zeros(3),), (SumBlock((Term(math.inf),)),)), 2, [2]) == (math.inf,)
