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
from fedpriv.clipping.ghost.norms import (
    SMALLEST,
    UNSCALED,
    accurate_norms,
    norms_of,
    safe_norms,
    squared,
    within,
)

_FORMED_ON_CPU, _FORMED = 2**18, 2**24  # entries of formed gradients at once, on a CPU (cache) and elsewhere
_UNSCALED_DIVISOR = 1e6  # divisors between it and its inverse need no scaling
_DIVIDED_AT_ONCE = 2**8  # examples whose squares are divided at once, so that they stay in cache
_SUMMANDS = 2**10  # largest length of one matrix product of squares, which bounds its rounding
_LARGEST_RATIO = 1e12  # largest ratio of two entries of a divisor for products of squares in float32
_LARGEST_ENTRY = 1e18  # products of larger entries may overflow; such examples are summed as rows
_LARGEST_FACTOR = 1e9  # norms between it and its inverse may be multiplied entry by entry
_NO_CANCELLATION = 0.5  # a sum above this share of its summands' norms loses no digits
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

        With a divisor, float32 adds up to 2^10 squares, which can understate the result by 6e-5 of itself.
        Measured is 1.5e-5, for equal squares on some processors; a clip is then exceeded by 1e-5 of itself.
        """
        if self._places == 1:
            if divisor is None:
                return self._single_squares()
            squares = self._unscaled_divided_squares(divisor)
            if squares is None:
                squares = self._divided_squares(divisor)
            if squares is not None:
                return squares
            return torch.where(self._in_range(), self._formed_squares(divisor), math.nan)
        if divisor is None:
            clear = self._two_pair_squares()
            if clear is not None:
                return clear
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
        """Writes the sum over all forms of gradients times factors to ``place`` (*shape)."""
        merged: dict[_Memory, _Pair] = {}
        for form, factors in terms:
            weigh = factors.view(-1, 1, 1, 1)
            for delta, a in form.pairs:
                key = memory_of(a)
                sent = merged[key][0].addcmul_(delta, weigh) if key in merged else delta * weigh
                merged[key] = sent, a
        form, (first, *rest) = terms[0][0], merged.values()
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
        if synchronisation.readable(self.pairs[0][0]):
            lengths = torch.stack([accurate_norms(part) for part in self.pairs[0]])
            if within(lengths, SMALLEST, _LARGEST_ENTRY):
                return lengths.prod(0).square_().sum((1, 2))
        lengths = torch.stack([safe_norms(part) for part in self.pairs[0]])
        known = (lengths < _LARGEST_ENTRY).all(0)
        return torch.where(known, lengths.prod(0).square_(), math.nan).sum((1, 2))

    def _gram_squares(self) -> tuple[Tensor, Tensor]:
        """The squared norms (n,), and the sums over places of norm(delta_l) norm(a_l)."""
        # In float64, because the products cancel.
        delta, a = (torch.cat(part, 2).double() for part in zip(*self.pairs, strict=True))
        grams = torch.matmul(delta, delta.mT).mul_(torch.matmul(a, a.mT))
        summands = grams.diagonal(dim1=-2, dim2=-1).sqrt().sum((1, 2))
        return grams.flatten(1).sum(1).clamp_(min=0.0), summands

    def _two_pair_squares(self) -> Tensor | None:
        """The squared norms (n,) for two pairs of one place (such as two points), without Gram matrices.

        None where float32 products of entries are too inaccurate: the pairs cancel, or are out of range.
        """
        if len(self.pairs) != 2 or self._places != 2 or not synchronisation.readable(self.pairs[0][0]):
            return None
        (delta, a), (delta_, a_) = self.pairs
        lengths = [safe_norms(part) for part in (delta, a, delta_, a_)]
        if not all(within(each, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR) for each in lengths):
            return None
        one, other = lengths[0] * lengths[1], lengths[2] * lengths[3]
        cross = (delta * delta_).sum(3, dtype=torch.float64) * (a * a_).sum(3, dtype=torch.float64)
        squares = (one.square() + other.square() + 2 * cross).sum((1, 2))
        least = (_NO_CANCELLATION * (one + other).sum((1, 2))).square()
        return squares if bool((squares > least).all()) else None

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

    def _unscaled_divided_squares(self, divisor: Tensor) -> Tensor | None:
        """As :meth:`_divided_squares`, a parts examples at a time so that they stay in cache.

        None where a factor or the divisor needs scaling to stay in float32's range.
        """
        delta, a = self.pairs[0]
        if not synchronisation.readable(delta) or self.order or delta.shape[1] != 1:
            return None
        if not within(divisor, 1 / _UNSCALED_DIVISOR, _UNSCALED_DIVISOR):
            return None
        delta, a, weights = delta[:, 0, 0], a[:, 0, 0], divisor.pow(-2).view(delta.shape[3], -1)
        long, short, weights = _longer_first(delta, a, weights)
        if long.shape[1] > _SUMMANDS:
            return None
        squares = list[Tensor]()
        for one, other in zip(
            torch.split(long, _DIVIDED_AT_ONCE), torch.split(short, _DIVIDED_AT_ONCE), strict=True
        ):
            parts = one.square(), other.square()
            if not all(within(part.sum(1), UNSCALED**-2, UNSCALED**2) for part in parts):
                return None
            squares.append(parts[0].mm(weights).mul_(parts[1]).sum(1))
        return torch.cat(squares).double()

    def _divided_squares(self, divisor: Tensor) -> Tensor | None:
        """sum_jk delta_j^2 a_k^2 / D_jk^2 as one matrix product; None or NaN where it is too inaccurate.

        Each factor is scaled to a norm of about 1, and the weights to a maximum of 1. Squares that underflow
        in float32 are then at most 1e-32 of a factor, and 1e-8 of the sum while D spans a ratio of 1e12.
        """
        delta, a = self.pairs[0]
        divisor = divisor.permute(self.order) if self.order else divisor
        least, most = divisor.aminmax()
        narrow = most < least * _LARGEST_RATIO
        if synchronisation.readable(divisor) and not bool(narrow):
            return None
        weights = (least / divisor).square_().reshape(delta.shape[1], delta.shape[3], a.shape[3])
        (sent, delta), (seen, a) = squared(delta), squared(a)
        # (n, groups, 1, .) -> (groups, n, .), so that each group is one matrix product
        long, short, weights = _longer_first(_across(delta), _across(a), weights)
        # A matrix product adds in the factors' precision, so long ones are split.
        pieces = zip(torch.split(long, _SUMMANDS, 2), torch.split(weights, _SUMMANDS, 1), strict=True)
        inner = [_product(part, own).mul_(short).sum(2).double() for part, own in pieces]
        squares = functools.reduce(Tensor.add_, inner).mT * (sent * seen / least.double()).square()
        return torch.where(narrow, squares.sum(1), math.nan)


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
