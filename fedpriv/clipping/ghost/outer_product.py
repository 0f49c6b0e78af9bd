"""Gradients that are sums of outer products, as those of linear maps: norms and sums without forming them.

>>> form = outer(delta=torch.tensor([[2.0]]), a=torch.tensor([[3.0, 4.0]]), shape=(1, 2))
>>> form.squares()  # 2^2 (3^2 + 4^2)
tensor([100.], dtype=torch.float64)
>>> round(float(form.squares(divisor=torch.tensor([[3.0, 2.0]]))), 4)  # (6/3)^2 + (8/2)^2
20.0
>>> form.total(torch.tensor([0.5]))
tensor([[3., 4.]])
>>> from fedpriv.clipping.ghost.factored import combine
>>> combine([form, form], (1.0, -1.0)).squares()
tensor([0.], dtype=torch.float64)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.clipping import synchronisation
from fedpriv.clipping.ghost.factored import Factored, Rows, in_groups, restored
from fedpriv.clipping.ghost.norms import norms_of, safe_norms

_FORMED_ON_CPU, _FORMED = 2**18, 2**24  # entries of formed gradients at once, on a CPU (cache) and elsewhere
_LARGEST_ENTRY = 1e18  # products of larger entries may overflow; such examples are summed as rows
_CANCELLATION = 1e-2  # a sum below this share of its summands' norms may be mostly rounding

_Pair = tuple[Tensor, Tensor]
Pairs = tuple[_Pair, ...]
_Memory = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


def add_up(terms: Sequence[tuple[Factored, Tensor]], place: Tensor) -> None:
    """Writes the sum over (form, factors) of ``form.total(factors)`` to a contiguous ``place`` (*shape).

    Outer products that share an input take one matrix product.
    """
    outers = [(form, factors) for form, factors in terms if isinstance(form, Outer)]
    if len(outers) == len(terms):
        Outer.add_up(outers, place)
    else:
        place.copy_(functools.reduce(torch.Tensor.add, [form.total(factors) for form, factors in terms]))


@dataclass(frozen=True)
class Outer:
    """Sums of outer products: gradient = sum over pairs and places l of delta_l a_l^T, for each group.

    Attributes:
        pairs: (delta, a), of the shapes (n, groups, places, out) and (n, groups, places, in).
        shape: the parameter's shape, groups * out * in entries.
        order: as in :class:`Rows`: the axes whose row-major order is (groups, out, in).
    """

    pairs: Pairs
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """See :class:`Factored`.

        One place: norm(delta)^2 norm(a)^2, or sum_jk delta_j^2 a_k^2 / D_jk^2. Several: the sum over
        places l, m of (delta_l . delta_m)(a_l . a_m), the ghost norm of Bu et al. 2022 ("Scalable and
        efficient training of large convolutional neural networks with differential privacy"). NaN where
        a factor is too large to multiply, and where the places nearly cancel: then the rounding of
        ``total`` may be many times the example's norm.

        How an example's result is computed depends on its own values alone, so that its bits do not depend
        on the others. With a divisor it is computed in float64: float32 understates sums of many equal
        squares, on some processors by 1.5e-5 of the result.
        """
        if self._places == 1:
            squares = self._single_squares() if divisor is None else self._divided_squares(divisor)
            return squares if divisor is None else torch.where(self._in_range(), squares, math.nan)
        if divisor is None:
            squares, summands = self._gram_squares()
        else:
            squares, summands = self._formed_squares(divisor), self._norm_bound(divisor)
        known = self._in_range() & (squares >= (_CANCELLATION * summands).square())
        return torch.where(known, squares, math.nan)

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`Factored`."""
        place = factors.new_empty(self.shape)
        Outer.add_up([(self, factors)], place)
        return place

    @staticmethod
    def add_up(terms: Sequence[tuple[Outer, Tensor]], place: Tensor) -> None:
        """Writes the sum over all forms of gradients times factors to ``place`` (*shape), adding in its
        dtype."""
        merged: dict[_Memory, _Pair] = {}
        for form, factors in terms:
            for delta, a in form.pairs:
                weigh = factors.to(delta.dtype).view(-1, 1, 1, 1)
                key = memory_of(a)
                sent = merged[key][0].addcmul_(delta, weigh) if key in merged else delta * weigh
                merged[key] = sent, a
        form, dtype = terms[0][0], place.dtype
        first, *rest = [(sent.to(dtype), a.to(dtype)) for sent, a in merged.values()]
        if first[0].shape[1] == 1 and not form.order:  # one group: written directly
            formed = place.view(first[0].shape[3], -1)
            torch.mm(first[0].flatten(0, 2).t(), first[1].flatten(0, 2), out=formed)
            for sent, a in rest:
                formed.addmm_(sent.flatten(0, 2).t(), a.flatten(0, 2))
            return
        formed = _across(first[0]).mT.matmul(_across(first[1]))
        for sent, a in rest:
            formed.baddbmm_(_across(sent).mT, _across(a))
        place.copy_(form._shaped(formed))

    def scaled(self, coefficient: float) -> Outer:
        """See :class:`Factored`."""
        return replace(self, pairs=scaled_pairs(self.pairs, coefficient))

    def plus(self, other: Outer) -> Outer:
        """See :class:`Factored`."""
        if self.order != other.order:
            raise ValueError("forms of one parameter have one order")
        return replace(self, pairs=added_pairs(self.pairs, other.pairs))

    def grouped(self, size: int) -> Outer:
        """See :class:`Factored`."""

        def merge(part: Tensor) -> Tensor:
            return in_groups(part, size).transpose(1, 2).flatten(2, 3)

        return replace(self, pairs=tuple((merge(delta), merge(a)) for delta, a in self.pairs))

    def simplified(self) -> Outer | Rows:
        """See :class:`Factored`."""
        delta, a = self.pairs[0]
        if worth_forming(self._places, delta.shape[3], a.shape[3]):
            return Rows(self._formed().reshape(-1, *self._permuted_shape), self.order)
        return self

    def rows(self) -> Tensor:
        """See :class:`Factored`."""
        return self._shaped(self._formed())

    @property
    def _places(self) -> int:
        return sum(delta.shape[2] for delta, _ in self.pairs)

    @property
    def _permuted_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.order) if self.order else self.shape

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`Factored`."""
        return tuple(part for pair in self.pairs for part in pair)

    def _in_range(self) -> Tensor:
        """Bool (n,): whose deltas can be weighed without an overflow, which no clip would undo, and whose
        inputs make nothing of what rounds up where a delta is too small to be weighed well."""
        peaks = [part.flatten(1).abs().amax(1) for pair in self.pairs for part in pair]
        return functools.reduce(torch.maximum, peaks) < _LARGEST_ENTRY

    def _formed(self) -> Tensor:
        """The gradients, (n, groups, out, in)."""
        return functools.reduce(torch.Tensor.add_, [torch.matmul(d.mT, a) for d, a in self.pairs])

    def _shaped(self, formed: Tensor) -> Tensor:
        """(..., groups, out, in) -> (..., *shape)."""
        return restored(formed.reshape(*formed.shape[:-3], *self._permuted_shape), self.order)

    def _single_squares(self) -> Tensor:
        """norm(delta)^2 norm(a)^2, over groups, of one pair of one place."""
        lengths = torch.stack([safe_norms(part) for part in self.pairs[0]])
        known = (lengths < _LARGEST_ENTRY).all(0)
        return torch.where(known, lengths.prod(0).square_(), math.nan).sum((1, 2))

    def _gram_squares(self) -> tuple[Tensor, Tensor]:
        """The squared norms (n,), and the sums over places of norm(delta_l) norm(a_l)."""
        # In float64, because the products cancel.
        if self._places == len(self.pairs):
            return self._pair_squares()
        delta, a = (torch.cat(part, 2).double() for part in zip(*self.pairs, strict=True))
        grams = torch.matmul(delta, delta.mT).mul_(torch.matmul(a, a.mT))
        summands = grams.diagonal(dim1=-2, dim2=-1).sqrt().sum((1, 2))
        return grams.flatten(1).sum(1).clamp_(min=0.0), summands

    def _pair_squares(self) -> tuple[Tensor, Tensor]:
        """As :meth:`_gram_squares`, for pairs of one place (such as two points), without Gram matrices."""
        wide = [(delta.double(), a.double()) for delta, a in self.pairs]
        squares = summands = wide[0][0].new_zeros(len(wide[0][0]))
        for number, (delta, a) in enumerate(wide):
            own = (delta.square().sum(3) * a.square().sum(3)).flatten(1)
            squares, summands = squares + own.sum(1), summands + own.sqrt().sum(1)
            for delta_, a_ in wide[number + 1 :]:
                cross = ((delta * delta_).sum(3) * (a * a_).sum(3)).flatten(1)
                squares = squares + 2 * cross.sum(1)
        return squares.clamp_(min=0.0), summands

    def _norm_bound(self, divisor: Tensor) -> Tensor:
        """Upper bounds (n,) of the norms of the sums over places of abs(delta_l) abs(a_l)^T, divided.

        By Cauchy-Schwarz, entry (j, k) of a pair's sum is at most norm(delta_.j) norm(a_.k) over places.
        """

        def across(part: Tensor) -> Tensor:
            lengths: Tensor = torch.linalg.vector_norm(part, dim=2, keepdim=True)
            return lengths

        bounds = [replace(self, pairs=((across(delta), across(a)),)) for delta, a in self.pairs]
        return functools.reduce(torch.Tensor.add_, [bound.squares(divisor).sqrt() for bound in bounds])

    def _formed_squares(self, divisor: Tensor) -> Tensor:
        """The divided squares from formed gradients, a few examples at a time so that they stay in cache."""
        delta, _ = self.pairs[0]
        most = _FORMED_ON_CPU if delta.device.type == "cpu" else _FORMED
        step = max(1, most // math.prod(self.shape))
        parts = [
            Outer(tuple((d[i : i + step], a[i : i + step]) for d, a in self.pairs), self.shape, self.order)
            for i in range(0, len(delta), step)
        ]
        return torch.cat([Rows(part.rows()).squares(divisor) for part in parts])

    def _divided_squares(self, divisor: Tensor) -> Tensor:
        """sum_jk delta_j^2 a_k^2 / D_jk^2 of one place as one matrix product, in float64."""
        delta, a = self.pairs[0]
        divisor = divisor.permute(self.order) if self.order else divisor
        weights = divisor.double().pow(-2).reshape(delta.shape[1], delta.shape[3], a.shape[3])
        # (n, groups, 1, .) -> (groups, n, .), so that each group is one matrix product
        parts = [_across(part).double().square() for part in (delta, a)]
        long, short, weights = _longer_first(parts[0], parts[1], weights)
        return _product(long, weights).mul_(short).sum((0, 2))


def outer(delta: Tensor, a: Tensor, shape: Sequence[int], order: tuple[int, ...] = ()) -> Outer:
    """:class:`Outer` of one pair: delta (n, [[groups,] places,] out) and a (n, [[groups,] places,] in)."""
    a = a.to(delta.dtype)  # where the passes had less precision
    lead = (1,) * (4 - delta.dim())
    delta, a = (part.view(len(part), *lead, *part.shape[1:]) for part in (delta, a))
    return Outer(((delta, a),), tuple(shape), order)


def worth_forming(places: int, outs: int, ins: int) -> bool:
    """Whether forming gradients (outs, ins), sums over places, is cheaper than Gram matrices of the places.

    Gram matrices are in float64 and so cost twice as much per entry.
    """
    return places > 1 and 2 * places * (outs + ins) >= outs * ins


def scaled_pairs(pairs: Pairs, coefficient: float) -> Pairs:
    """Pairs (delta, a) with products ``coefficient`` times as large."""
    return tuple((delta * coefficient, a) for delta, a in pairs)


def added_pairs(ones: Pairs, others: Pairs) -> Pairs:
    """Pairs (delta, a) whose products add up to those of both; accurate where they cancel."""
    if [delta.shape for delta, _ in ones] != [delta.shape for delta, _ in others]:
        return ones + others
    return tuple(pair for both in zip(ones, others, strict=True) for pair in _added(*both))


def _added(one: _Pair, other: _Pair) -> Pairs:
    """delta a^T + delta' a'^T, as (delta + delta') a^T + delta' (a' - a)^T where that is smaller.

    Where the two summands nearly cancel (a difference of gradients at two close points), both products of the
    second form are as small as the sum, so that their rounding is relative to the sum.
    """
    (delta, a), (delta_, a_) = one, other
    both = delta + delta_
    if memory_of(a) == memory_of(a_):
        return ((both, a),)
    moved = a_ - a
    near = norms_of(both) * norms_of(a) + norms_of(delta_) * norms_of(moved)
    far = norms_of(delta) * norms_of(a) + norms_of(delta_) * norms_of(a_)
    closer = near < far
    if synchronisation.readable(closer) and bool(closer.all()):
        return (both, a), (delta_, moved)
    closer = closer.view(-1, *[1] * (a.dim() - 1))
    return (torch.where(closer, both, delta), a), (delta_, torch.where(closer, moved, a_))


def memory_of(part: Tensor) -> _Memory:
    """The memory of a tensor, to find shared inputs: a first layer has the same inputs at two points."""
    return part.data_ptr(), tuple(part.shape), part.stride(), part.dtype


def _longer_first(delta: Tensor, a: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The longer factor (..., k), the shorter (..., m) and their weights (..., k, m).

    This order makes the matrix product smaller.
    """
    return (a, delta, weights.mT) if a.shape[-1] > delta.shape[-1] else (delta, a, weights)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """(groups, j, k) times (groups, k, l); ``mm`` is faster for a single group."""
    if len(one) > 1:
        return one.matmul(other)
    product: Tensor = one[0].mm(other[0])[None]
    return product


def _across(part: Tensor) -> Tensor:
    """(n, groups, places, k) -> (groups, n * places, k)."""
    return part.transpose(0, 1).flatten(1, 2)
