"""Bounded sums over explicit rows: one vector per unit and query point.

For rows (n, d) at each of a query's points, a :class:`SumBlock` gives the vector (d,)

    sum over units of  sum_k  w_k clip(A_k, C_k),     clip(A, C) = A min(1, C / norm(A)),

and an :class:`IndicatorBlock` gives the number sum over units of (1{norm(A) <= threshold} - 1/2), with the
norm before clipping. A unit adds:

| a unit's A | to a SumBlock | to an IndicatorBlock |
|---|---|---|
| finite, norm at most C | A | by its norm |
| finite, norm above C, up to the largest float | A C / norm(A) | by its norm |
| zero | zero | +1/2 |
| with a NaN or an infinity in any entry | zero | -1/2 |

A term with a gamma (automatic clipping) multiplies each finite vector by C / (norm(A) + gamma) instead.

Rows are scaled before their norms are taken in float64, so that the norms neither overflow nor underflow.
A unit's term therefore exceeds |w| C only by float rounding: in float32 by less than 2**-21 relative (the
rounding of the factor and of each product). C = infinity means no clipping; the sum is then unbounded.

>>> import torch
>>> from fedpriv.mechanism.query import IndicatorBlock
>>> from fedpriv.mechanism.query import SumBlock
>>> from fedpriv.mechanism.query import Term
>>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0]])
>>> blocks = (SumBlock((Term(clip_norm=1.0),)), IndicatorBlock(Term(clip_norm=1.0), 1.0, share=0.1))
>>> sum_rows([rows], blocks)
(tensor([0.9000, 1.2000]), tensor(-0.5000))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.clipping import synchronisation
from fedpriv.mechanism.query import Block, IndicatorBlock, SumBlock, Term

_SMALLEST_PEAK, _LARGEST_PEAK = 1e-18, 1e18  # the squares of entries between them stay in float32's range


def sum_rows(
    rows: Sequence[Tensor],
    blocks: Sequence[Block],
    layers: Sequence[int] = (),
    sum_dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """The bounded sum of each block over the units' rows.

    Args:
        rows: for each point of the query, a float tensor (n, d); row i is unit i's vector there.
        blocks: what to sum; a term has one coefficient per point.
        layers: the number of entries of each layer, for terms that are clipped layer by layer.
        sum_dtype: the dtype in which units are added, and that of the sums; None: the rows'.

    Returns:
        for each block a tensor of that dtype: (d,) for a SumBlock, () for an IndicatorBlock.

    Raises:
        ArgumentError: rows differ in shape, a term has more coefficients than there are points, or a term is
            clipped by layers whose sizes do not sum to d.
    """
    _check_rows(rows, blocks, layers)
    dtype = sum_dtype or rows[0].dtype
    return tuple(_sum_block(rows, block, layers, dtype) for block in blocks)


def sum_rows_loop(
    rows: Sequence[Tensor], blocks: Sequence[Block], layers: Sequence[int] = ()
) -> tuple[Tensor, ...]:
    """:func:`sum_rows` as a plain loop over units, summed in float64: the reference for tests."""
    _check_rows(rows, blocks, layers)
    totals = []
    for block in blocks:
        terms = [t for t in block.terms if t.weight] if isinstance(block, SumBlock) else [block.term]
        shape = (rows[0].shape[1],) if isinstance(block, SumBlock) else ()
        total = torch.zeros(shape, dtype=torch.float64, device=rows[0].device)
        for unit in range(rows[0].shape[0]):
            for term in terms:
                vector = term.combine([point[unit] for point in rows]).double()
                peak = float(vector.abs().max()) if vector.numel() else 0.0
                finite = peak < math.inf
                relative = float(torch.linalg.vector_norm(vector / peak)) if finite and peak else 0.0
                if isinstance(block, IndicatorBlock):
                    total += 0.5 if finite and peak * relative <= block.threshold else -0.5
                elif finite:
                    parts = torch.split(vector, list(layers)) if term.per_layer else (vector,)
                    clipped = [_clip_one(part, term, len(layers)) for part in parts]
                    total += term.weight * torch.cat(clipped)
        totals.append(total.to(rows[0].dtype))
    return tuple(totals)


def _clip_one(vector: Tensor, term: Term, layers: int) -> Tensor:
    """One finite vector (k,), clipped."""
    bound = term.bound(layers)
    peak = float(vector.abs().max()) if vector.numel() else 0.0
    relative = float(torch.linalg.vector_norm(vector / peak)) if peak else 0.0
    if term.gamma:
        return (vector / peak) * (bound / (relative + term.gamma / peak)) if peak else vector
    return vector if peak * relative <= bound else (vector / peak) * (bound / relative)


def _check_rows(rows: Sequence[Tensor], blocks: Sequence[Block], layers: Sequence[int]) -> None:
    """Raises ArgumentError where rows and blocks do not fit together."""
    if not rows or len({point.shape for point in rows}) != 1 or rows[0].dim() != 2:
        widths = [tuple(point.shape[1:]) for point in rows]  # the number of rows is private
        raise validation.fail("rows", widths, "be tensors of one shape (n, d), one for each point")
    for block in blocks:
        for term in block.terms if isinstance(block, SumBlock) else (block.term,):
            if len(term.at) > len(rows):
                raise validation.fail("term coefficients", term.at, f"be at most {len(rows)}, one per point")
            if term.per_layer and sum(layers) != rows[0].shape[1]:
                raise validation.fail(
                    "layers", tuple(layers), f"sum to {rows[0].shape[1]}, the vector's length"
                )


def _sum_block(rows: Sequence[Tensor], block: Block, layers: Sequence[int], dtype: torch.dtype) -> Tensor:
    if isinstance(block, IndicatorBlock):
        vectors, unit, finite = scaled_rows(block.term.combine(rows))
        norms = unit * torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
        return count_bits(norms, finite, block.threshold).to(dtype)
    total = rows[0].new_zeros(rows[0].shape[1], dtype=dtype)
    for term in block.terms:
        if not term.weight:
            continue
        vector = term.combine(rows)
        parts = torch.split(vector, list(layers), 1) if term.per_layer else (vector,)
        total += term.weight * torch.cat(_clipped_sums(parts, term, len(layers), dtype))
    return total


def _clipped_sums(parts: Sequence[Tensor], term: Term, layers: int, dtype: torch.dtype) -> list[Tensor]:
    """The sum of each part (n, k), clipped. A unit with a NaN or infinity in any part adds zero
    to all parts."""
    safe = [scaled_rows(part) for part in parts]
    finite = torch.stack([each for _, _, each in safe]).all(0)
    sums = []
    for vectors, unit, _ in safe:
        relative = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
        factors = torch.where(finite, term.factors(relative, layers, unit), 0.0)
        sums.append(factors.to(dtype) @ vectors.to(dtype))
    return sums


def scaled_rows(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (n, d), scaled so that their squares stay in range: ``(scaled, unit, finite)``.

    ``scaled * unit[:, None]`` are the given rows, with rows that are not finite replaced by zero.
    ``unit`` (n,) is float64, and 1 except where a row's largest entry is outside 1e-18..1e18.
    ``finite`` (n,) is bool.
    """
    if not vectors.numel():
        ones = torch.ones(vectors.shape[0], dtype=torch.float64, device=vectors.device)
        return vectors, ones, ones.bool()
    peak = vectors.abs().amax(dim=1)
    finite = peak < torch.inf  # False for NaN, which amax propagates
    ordinary = (peak == 0) | ((peak >= _SMALLEST_PEAK) & (peak <= _LARGEST_PEAK))
    unit = torch.ones_like(peak)
    if not (synchronisation.readable(vectors) and bool(ordinary.all())):
        unit = torch.where(ordinary | ~finite, unit, peak)
        vectors = torch.where(finite[:, None], vectors, 0.0) / unit[:, None]
    return vectors, unit.double(), finite


def count_bits(norms: Tensor, finite: Tensor, threshold: float) -> Tensor:
    """sum over units of (1{norm <= threshold} - 1/2), float64 (); a unit that is not finite counts -1/2."""
    return ((norms <= threshold) & finite).double().sub_(0.5).sum()


def clip_factors(norms: Tensor, terms: Sequence[Term], layers: int = 1) -> Tensor:
    """sum_k w_k min(1, C_k / norm), float64 (n,), for terms of one vector with these norms.

    With automatic clipping it is sum_k w_k C_k / (norm + gamma_k).
    """
    parts = [term.factors(norms, layers).mul_(term.weight) for term in terms]
    return functools.reduce(Tensor.add_, parts)
