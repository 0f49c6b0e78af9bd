"""Bounded sums over vectors that are kept in factors: what :mod:`fedpriv.clipping.rows` does with rows.

A unit's vector at a point is a form for each tensor of the layout (:mod:`fedpriv.clipping.factored`). A
term's A is a combination of forms, its squared norm the sum of theirs, and the sum of clip(A, C) over
units one weighted total of each form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.clipping.factored import Factored, combine
from fedpriv.clipping.rows import clip_factors, count_bits
from fedpriv.query import BitBlock, Block, SumBlock, Term
from fedpriv.vectors import Layout

_LARGEST = 1e18  # norms above it (or NaN) are left to rows, which scale before they square
_VANISHED = 1e-8  # of a clip norm's square: what squares too small for the dtype may amount to

Forms = Mapping[str, Factored]
_Vector = tuple[tuple[float, ...], int]  # a term's coefficients, and which divisor it has


class FactoredSum:
    """The bounded sums of units whose vectors are given as forms.

    Attributes:
        told: bool (n,): whose norms are known. The sums hold only where all are.
    """

    def __init__(self, points: Sequence[Forms], layout: Layout, blocks: Sequence[Block], like: Tensor):
        """The sums of ``blocks`` over units with these forms at the query's points.

        Args:
            points: at each point of the query, each tensor's form by its name in the layout.
            layout: where the tensors lie in a vector (d,).
            blocks: what is summed.
            like: a point, whose dtype and device the sums have.
        """
        self._points, self._layout, self._like = points, layout, like
        self._combined: dict[tuple[float, ...], Forms] = {}
        self._known: dict[_Vector, Tensor] = {}
        vanished = torch.finfo(like.dtype).tiny * 4 * layout.dimension
        self.totals = tuple(self._total(block) for block in blocks)
        norms = torch.stack(list(self._known.values()))
        self.told = (norms < _LARGEST).all(0) & (vanished < smallest_bound(blocks) ** 2 * _VANISHED)

    def _total(self, block: Block) -> Tensor:
        if isinstance(block, BitBlock):
            norms = self._norms(block.term)
            bits = count_bits(norms, torch.ones_like(norms, dtype=torch.bool), block.threshold)
            return bits.to(self._like.dtype)
        total: Tensor | None = None
        for terms in _by_vector(block.terms):
            part = torch.empty_like(self._like)
            factors = clip_factors(self._norms(terms[0]), terms).to(part.dtype)
            places = self._layout.split(part)
            for name, form in self._forms(terms[0].at).items():
                places[name].copy_(form.total(factors))
            if terms[0].divisor is not None:
                part /= terms[0].divisor
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _norms(self, term: Term) -> Tensor:
        """The norms of a term's A before clipping, float64 (n,)."""
        key = _vector_of(term)
        if key not in self._known:
            divisors = {} if term.divisor is None else self._layout.split(term.divisor)
            forms = self._forms(term.at).items()
            squares = [form.squares(divisors.get(name)) for name, form in forms]
            self._known[key] = torch.stack(squares).sum(0).sqrt()
        return self._known[key]

    def _forms(self, at: tuple[float, ...]) -> Forms:
        """sum_j at_j (the forms at the j-th point)."""
        if at not in self._combined:
            self._combined[at] = {
                name: combine([point[name] for point in self._points], at) for name in self._points[0]
            }
        return self._combined[at]


def terms_of(blocks: Sequence[Block]) -> Iterator[Term]:
    """Every term of the blocks."""
    for block in blocks:
        yield from block.terms if isinstance(block, SumBlock) else (block.term,)


def smallest_bound(blocks: Sequence[Block]) -> float:
    """The smallest norm that a term is clipped at or a bit compares with."""
    return min(
        min(term.clip_norm for term in block.terms) if isinstance(block, SumBlock) else block.threshold
        for block in blocks
    )


def _vector_of(term: Term) -> _Vector:
    return term.at, id(term.divisor)


def _by_vector(terms: Sequence[Term]) -> list[list[Term]]:
    """The terms in groups that clip one and the same vector A."""
    groups: dict[_Vector, list[Term]] = {}
    for term in terms:
        groups.setdefault(_vector_of(term), []).append(term)
    return list(groups.values())
