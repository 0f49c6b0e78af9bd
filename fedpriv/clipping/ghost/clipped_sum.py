"""Bounded sums over factored vectors; :mod:`fedpriv.clipping.explicit` has the same for explicit rows.

A unit's vector at a point has one form per tensor of the layout (:mod:`fedpriv.clipping.ghost.factored`). A
term's A is a linear combination of forms. Its squared norm is the sum of their squared norms, and the sum of
clip(A, C) over units is one weighted total per form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.clipping.explicit import clip_factors, count_bits
from fedpriv.clipping.ghost.factored import Factored, combine
from fedpriv.clipping.ghost.outer_product import add_up
from fedpriv.mechanism.query import Block, IndicatorBlock, SumBlock, Term
from fedpriv.parameters import Layout

_LARGEST_NORM = 1e18  # units with larger norms (or NaN) are summed as rows, which are scaled before squaring
_UNDERFLOW = 1e-8  # largest sum of squares that may underflow, relative to the clip norm's square

Forms = Mapping[str, Factored]


class FactoredSum:
    """The bounded sums of units whose vectors are given as forms.

    Attributes:
        totals: the sum of each block.
        norm_known: bool (n,). The sums are valid only if every unit's norm is known.
    """

    def __init__(
        self,
        points: Sequence[Forms],
        layout: Layout,
        blocks: Sequence[Block],
        like: Tensor,
        counted: int | None = None,
        sum_dtype: torch.dtype | None = None,
    ):
        """The sums of ``blocks`` over units with these forms at the query's points.

        Args:
            points: at each point of the query, each tensor's form by its name in the layout.
            layout: the position of each tensor in a vector (d,).
            blocks: the blocks of the query.
            like: a point; the sums have its device.
            counted: only the first ``counted`` units are summed; None: all.
            sum_dtype: the dtype in which units are added, and that of the sums; None: that of ``like``.
        """
        self._points, self._layout, self._like, self._counted = points, layout, like, counted
        self._dtype = sum_dtype or like.dtype
        self._combined: dict[tuple[float, ...], Forms] = {}
        self._known: dict[tuple[tuple[float, ...], int], tuple[dict[str, Tensor], Tensor]] = {}
        self.totals = tuple(self._total(block) for block in blocks)
        vanished = torch.finfo(like.dtype).tiny * 4 * layout.dimension
        most = _LARGEST_NORM if vanished < smallest_bound(blocks) ** 2 * _UNDERFLOW else -math.inf
        self.norm_known = functools.reduce(
            Tensor.logical_and_, [norms < most for _, norms in self._known.values()]
        )

    def evidence(self) -> list[Tensor]:
        """All tensors (n, ...) that determine what each unit adds: its forms and their squared norms."""
        forms = [*self._points, *self._combined.values()]
        found = [tensor for each in forms for form in each.values() for tensor in form.tensors()]
        return found + [each for squares, _ in self._known.values() for each in squares.values()]

    def _total(self, block: Block) -> Tensor:
        if isinstance(block, IndicatorBlock):
            norms = self._measured(block.term)[1][: self._counted]
            bits = count_bits(norms, torch.ones_like(norms, dtype=torch.bool), block.threshold)
            return bits.to(self._dtype)
        counted = [term for term in block.terms if term.weight]
        parts = [self._divided_total(terms) for terms in _groups(counted, lambda term: id(term.divisor))]
        return functools.reduce(Tensor.add_, parts)

    def _divided_total(self, terms: Sequence[Term]) -> Tensor:
        """sum_k w_k clip(A_k, C_k) over all units, for terms with the same divisor."""
        total, divisor = torch.empty_like(self._like, dtype=self._dtype), terms[0].divisor
        vectors = [
            (self._forms(same[0].at), self._factors(same))
            for same in _groups(terms, lambda term: (term.at, term.per_layer))
        ]
        for name, place in self._layout.split(total).items():
            add_up([(forms[name], factors[name]) for forms, factors in vectors], place)
        return total if divisor is None else total.div_(divisor)

    def _factors(self, terms: Sequence[Term]) -> dict[str, Tensor]:
        """The clip factors (n,) of each tensor, by name, for terms of one vector."""
        squares, norms = self._measured(terms[0])
        if not terms[0].per_layer:
            return dict.fromkeys(squares, self._clip_factors(norms, terms))
        layers, factors = self._layout.layers, dict[str, Tensor]()
        for layer in layers:
            norms = _norm([squares[name] for name in layer])
            factors |= dict.fromkeys(layer, self._clip_factors(norms, terms, len(layers)))
        return factors

    def _clip_factors(self, norms: Tensor, terms: Sequence[Term], layers: int = 1) -> Tensor:
        factors = clip_factors(norms, terms, layers).to(self._dtype)
        if self._counted is not None:
            factors[self._counted :] = 0
        return factors

    def _measured(self, term: Term) -> tuple[dict[str, Tensor], Tensor]:
        """The squared norms of each tensor of a term's A before clipping, float64 (n,) by name; and the norms
        of the whole A, float64 (n,)."""
        key = (term.at, id(term.divisor))
        if key not in self._known:
            divisors = {} if term.divisor is None else self._layout.split(term.divisor)
            forms = self._forms(term.at).items()
            squares = {name: form.squares(divisors.get(name)) for name, form in forms}
            self._known[key] = squares, _norm(squares.values())
        return self._known[key]

    def _forms(self, at: tuple[float, ...]) -> Forms:
        """The forms of sum_j at_j (vector at point j)."""
        if at == (1.0,):
            return self._points[0]
        if at not in self._combined:
            self._combined[at] = {
                name: combine([point[name] for point in self._points], at) for name in self._points[0]
            }
        return self._combined[at]


def _norm(squares: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(squares)).sum(0).sqrt()


def terms_of(blocks: Sequence[Block]) -> Iterator[Term]:
    """All terms of the blocks."""
    for block in blocks:
        yield from block.terms if isinstance(block, SumBlock) else (block.term,)


def smallest_bound(blocks: Sequence[Block]) -> float:
    """The smallest norm that a term is clipped at, that it adds to norms, or that a bit compares with."""
    return min(
        min(term.gamma or term.clip_norm for term in block.terms)
        if isinstance(block, SumBlock)
        else block.threshold
        for block in blocks
    )


def _groups(terms: Sequence[Term], key: Callable[[Term], Hashable]) -> list[list[Term]]:
    """The terms, grouped by key."""
    groups: dict[Hashable, list[Term]] = {}
    for term in terms:
        groups.setdefault(key(term), []).append(term)
    return list(groups.values())
