"""Bounded sums of rows: the bound on a unit's contribution, also for inputs that are not finite."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows, sum_rows_loop
from fedpriv.mechanism.query import IndicatorBlock, SumBlock, Term

INF = math.inf
FLOATS = st.one_of(
    st.floats(-10, 10, width=32),
    st.sampled_from([0.0, math.nan, INF, -INF, 3e38, -3e38, 1e30, 1e-30, 1e-45, -1e-40]),
)
NORMS = st.sampled_from([1e-3, 0.1, 1.0, 7.5, 100.0])


@st.composite
def terms(draw, dimension, points):
    divisor = draw(st.none() | hnp.arrays("float32", dimension, elements=st.floats(0.5, 4, width=32)))
    at = draw(st.sampled_from([(1.0,), (-2.0,)] if points == 1 else [(1.0,), (1.0, -1.0), (0.0, 0.5)]))
    weight = draw(st.sampled_from([1.0, -0.5, 0.0, 3.0]))
    offset = draw(st.none() | hnp.arrays("float32", dimension, elements=st.floats(-4, 4, width=32)))
    vectors = [None if v is None else torch.from_numpy(v) for v in (divisor, offset)]
    return Term(draw(NORMS), weight, at, vectors[0], offset=vectors[1], squared=draw(st.booleans()))


@st.composite
def queries(draw, elements=FLOATS):
    """Rows (n, d) at one or two points, and a sum block of 1 to 3 terms and a bit block."""
    shape = (draw(st.integers(0, 5)), draw(st.integers(1, 6)))
    points = draw(st.integers(1, 2))
    rows = [torch.from_numpy(draw(hnp.arrays("float32", shape, elements=elements))) for _ in range(points)]
    some = st.lists(terms(shape[1], points), min_size=1, max_size=3)
    several = draw(some.filter(lambda found: any(term.weight for term in found)))
    bit = IndicatorBlock(draw(terms(shape[1], points)), draw(NORMS), 0.5)
    return rows, (SumBlock(tuple(several), 0.5), bit)


def pick(rows, units):
    return [point[units] for point in rows]


@settings(max_examples=150)
@given(queries())
def test_sums_equal_the_plain_loop(query):
    rows, blocks = query
    for got, want in zip(sum_rows(rows, blocks), sum_rows_loop(rows, blocks), strict=True):
        scale = len(rows[0]) * max(block.sensitivity for block in blocks)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6 * scale)


@settings(max_examples=150)
@given(queries())
def test_one_unit_never_adds_more_than_the_sensitivity(query):
    rows, blocks = query
    for unit in range(len(rows[0])):
        for added, block in zip(sum_rows(pick(rows, [unit]), blocks), blocks, strict=True):
            assert bool(added.isfinite().all())
            assert float(added.double().norm()) <= block.sensitivity * (1 + 1e-6)


@settings(max_examples=100)
@given(queries(), st.integers(0, 4), st.integers(0, 4))
def test_adding_removing_or_replacing_a_unit_moves_the_sums_by_s_or_2s(query, one, other):
    rows, blocks = query
    rows = [point.double() for point in rows]
    units = list(range(len(rows[0])))
    if one >= len(units) or other >= len(units):
        return
    without = [unit for unit in units if unit != one]
    replaced = [other if unit == one else unit for unit in units]
    whole, less, swapped = (sum_rows(pick(rows, u), blocks) for u in (units, without, replaced))
    for block, a, b, c in zip(blocks, whole, less, swapped, strict=True):
        assert float((a - b).norm()) <= block.sensitivity * (1 + 1e-6)
        assert float((a - c).norm()) <= 2 * block.sensitivity * (1 + 1e-6)


@settings(max_examples=50)
@given(queries(), st.randoms(use_true_random=False))
def test_the_order_of_units_does_not_matter(query, random):
    rows, blocks = query
    order = list(range(len(rows[0])))
    random.shuffle(order)
    pairs = zip(sum_rows(rows, blocks), sum_rows(pick(rows, order), blocks), blocks, strict=True)
    for a, b, block in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * len(order) * block.sensitivity)


@pytest.mark.parametrize("broken", [math.nan, INF, -INF])
def test_a_unit_that_is_not_finite_adds_zero_and_counts_below(broken):
    good = torch.tensor([[0.3, 0.4]])
    rows = torch.cat([good, torch.tensor([[broken, 0.1]])])
    blocks = (SumBlock((Term(1.0),), 0.5), IndicatorBlock(Term(1.0), INF, 0.5))
    total, bits = sum_rows([rows], blocks)
    assert torch.equal(total, good[0])
    assert float(bits) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e6])
def test_huge_rows_are_clipped_not_dropped(dtype, clip_norm):
    huge = torch.full((1, 9), -torch.finfo(dtype).max, dtype=dtype)
    total, bit = sum_rows([huge], (SumBlock((Term(clip_norm),), 0.5), IndicatorBlock(Term(1.0), 1e9, 0.5)))
    torch.testing.assert_close(total, torch.full((9,), -clip_norm / 3, dtype=dtype))
    assert float(bit) == -0.5


def test_tiny_rows_are_kept_and_zero_rows_count_above():
    tiny = torch.tensor([[1e-40, 0.0], [0.0, 0.0]])
    total, bits = sum_rows([tiny], (SumBlock((Term(1.0),), 0.5), IndicatorBlock(Term(1.0), 1e-3, 0.5)))
    assert torch.equal(total, tiny[0])
    assert float(bits) == 1.0


def test_without_clipping_it_is_the_weighted_sum():
    rows = torch.tensor([[3.0, 4.0], [1.0, -1.0]], dtype=torch.float64)
    (total,) = sum_rows([rows], (SumBlock((Term(INF, weight=2.0),)),))
    torch.testing.assert_close(total, 2 * rows.sum(0))


def test_the_indicator_uses_the_norm_before_clipping():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.1, 0.0]])
    (bits,) = sum_rows([rows], (IndicatorBlock(Term(0.2), 0.6, 1.0),))
    assert float(bits) == -0.5 + 0.5 + 0.5


def test_no_units_give_zero():
    blocks = (SumBlock((Term(1.0),), 0.5), IndicatorBlock(Term(1.0), 1.0, 0.5))
    total, bits = sum_rows([torch.zeros(0, 3)], blocks)
    assert torch.equal(total, torch.zeros(3))
    assert float(bits) == 0.0


def test_errors_do_not_reveal_the_number_of_rows():
    block = SumBlock((Term(1.0, at=(1.0, -1.0)),))
    for rows in ([torch.zeros(54321, 2)], [torch.zeros(54321, 2), torch.zeros(54321, 3)], []):
        with pytest.raises(ArgumentError) as error:
            sum_rows(rows, (block,))
        assert "54321" not in str(error.value)


def test_a_term_of_weight_zero_adds_nothing_even_where_it_overflows():
    """Without clipping the sum of 500 such rows is infinite, and 0 times infinity is NaN."""
    rows = torch.full((500, 3), 3e38)
    total, _ = sum_rows(
        [rows], (SumBlock((Term(1.0), Term(INF, 0.0)), 0.5), SumBlock((Term(INF, 0.0), Term(2.0)), 0.5))
    )
    torch.testing.assert_close(total, torch.full((3,), 500 / math.sqrt(3)), rtol=1e-5, atol=0)
