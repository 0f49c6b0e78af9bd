"""Sensitivities, shares and noise stds of queries."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term

POINT = (torch.zeros(4),)


WEIGHTS = st.just(0.0) | st.floats(1e-6, 3) | st.floats(-3, -1e-6)


@given(
    st.lists(st.tuples(WEIGHTS, st.floats(0.01, 10)), min_size=1, max_size=4).filter(
        lambda terms: any(weight for weight, _ in terms)
    )
)
def test_sensitivity_is_the_sum_of_weighted_clip_norms(terms: list[tuple[float, float]]) -> None:
    block = SumBlock(tuple(Term(clip_norm=c, weight=w) for w, c in terms))
    assert block.sensitivity == pytest.approx(sum(abs(w) * c for w, c in terms))


@given(st.floats(0.1, 20), st.floats(0.01, 0.99), st.floats(0.01, 10))
def test_blocks_on_one_cohort_are_one_event(z: float, share: float, clip: float) -> None:
    term = Term(clip_norm=clip)
    query = Query(POINT, (SumBlock((term,), share=1 - share), IndicatorBlock(term, clip, share=share)))
    stds = query.noise_stds(z)
    combined = sum((b.sensitivity / s) ** 2 for b, s in zip(query.blocks, stds, strict=True)) ** -0.5
    assert combined == pytest.approx(z)


def test_one_block_has_std_z_times_sensitivity() -> None:
    query = Query(POINT, (SumBlock((Term(1.5), Term(0.5, weight=-2.0))),))
    assert query.noise_stds(3.0) == (pytest.approx(7.5),)


@pytest.mark.parametrize(
    ("term", "name"),
    [
        ({"clip_norm": 2e12}, "clip-norm is 2"),
        ({"clip_norm": 1e-13}, "clip-norm is 1e-13"),
        ({"clip_norm": 1.0, "weight": 1e13}, "term weight is"),
        ({"clip_norm": 1.0, "weight": -1e-13}, "term weight is"),
        ({"clip_norm": math.inf, "weight": math.inf}, "term weight is inf"),
        ({"clip_norm": 1e9, "weight": 1e9}, "term weight times clip-norm is"),
        ({"clip_norm": 1e-9, "weight": 1e-9}, "term weight times clip-norm is"),
    ],
)
def test_sensitivities_outside_float32s_range_are_refused(term: dict[str, float], name: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(name)):
        Term(**term)


def test_a_blocks_range_is_checked_over_all_terms_and_one_weight_is_not_zero() -> None:
    with pytest.raises(ArgumentError, match="a block's sensitivity is 1400000000000"):
        SumBlock((Term(7e11), Term(7e11)))
    with pytest.raises(ArgumentError, match="have at least one that is not 0"):
        SumBlock((Term(1.0, 0.0), Term(math.inf, 0.0)))
    assert SumBlock((Term(1.0), Term(math.inf, 0.0))).sensitivity == 1.0


def test_infinite_clip_norms_are_allowed_only_without_noise() -> None:
    query = Query(POINT, (SumBlock((Term(math.inf),)),))
    assert query.noise_stds(0.0) == (0.0,)
    with pytest.raises(ArgumentError, match="clip-norm"):
        query.noise_stds(1.0)


@pytest.mark.parametrize("shares", [(0.5, 0.4), (1.2, -0.2), (1.0, 1.0)])
def test_shares_must_add_to_one(shares: tuple[float, float]) -> None:
    term = Term(1.0)
    with pytest.raises(ArgumentError, match="shares"):
        Query(POINT, (SumBlock((term,), shares[0]), IndicatorBlock(term, 1.0, shares[1])))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_clip_norm_must_be_positive(clip: float) -> None:
    with pytest.raises(ArgumentError, match="clip-norm"):
        Term(clip)


def test_terms_combine_points_and_divide() -> None:
    term = Term(1.0, at=(1.0, -1.0), divisor=torch.tensor([1.0, 2.0]))
    result = term.combine([torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0]])])
    assert result.tolist() == [[2.0, 1.5]]


def test_a_bit_moves_its_sum_by_one_half() -> None:
    """Andrew et al. 2019: the indicator is centred, so its noise is half of an indicator's from 0 to 1."""
    term = Term(clip_norm=1.5)
    blocks = (SumBlock((term,), share=0.8), IndicatorBlock(term, threshold=2.0, share=0.2))
    assert [block.sensitivity for block in blocks] == [1.5, 0.5]
    assert Query((torch.zeros(3),), blocks).noise_stds(3.0)[1] == pytest.approx(3.0 * 0.5 / math.sqrt(0.2))
