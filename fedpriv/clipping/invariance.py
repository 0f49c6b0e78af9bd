"""Whether a unit's bits depend on its place in a batch, tried on this machine.

What a unit adds to a sum must be a function of the unit alone. If the last bit of a layer's output depends on
the place in the batch, then adding one unit shifts all the others, and crafted examples turn the last bit
into another gradient: a ReLU's gate opens, or a softmax with huge inputs names another class. Such sums
moved by 3 to 11 times their clip norm with the examples of tests/clipping/test_invariance.py.

Matrix libraries do not promise the same bits for all rows, and what they do depends on the processor, the
shapes and the number of threads. So it is tried: each batch size that is used, for each model, shape of the
examples and query, on units with random values, which take all places in turns. All numbers that determine
what a unit adds (the inputs, outputs and gradients of its layers and its squared norms, or its formed
gradient) must have the same bits at every place and in every size. Where the order of additions differs, so
does the rounding of a large part of random values, and kernels choose this order by shapes and places, not by
values. So random values show what crafted ones could use, as long as they are dense: a sum of one or two
terms has no order. Where most gates of a network are closed, or its outputs saturate, gradients are mostly
zero. So parameters are drawn in several sizes, and those are used whose numbers have the fewest zeros.

Of the sizes only those are used that pass; a batch is padded with copies up to such a size, or split into
several. The smallest size (about 32 examples) decides first. If it fails, products are padded to whole cache
lines (:mod:`fedpriv.clipping.alignment`); if it fails again, the computation must not be used for batches:
each unit is then computed alone (:func:`fedpriv.clipping.per_example.sum_gradients`). Every size gives the
same bits as the smallest, so that the choice of sizes, which depends on the number of units, moves nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedpriv.clipping.alignment import aligned_products
from fedpriv.clipping.ghost.compatibility import tokens_of
from fedpriv.clipping.protocol import Differentiable
from fedpriv.clipping.units import Units
from fedpriv.mechanism.query import Query, SumBlock, Term

_KINDS = 5  # different units of a trial; odd, so that each meets all alignments
_TURNS = 2  # batches of one further size: each place has two of the units
_SPREADS, _SEEDS = (2.0, 1.0, 0.5, 0.25), (2, 3)  # of the parameters that are drawn
_USED = 2  # draws that a trial uses: those with the fewest zeros
_STEP = 8  # batches larger than the smallest are multiples of it, in examples

Draw = tuple[float, int]  # the spread and the seed of parameters
Evidence = Callable[[Units, Query], Sequence[Tensor]]
Compute = Callable[[Units], Sequence[Tensor]]


class Batches:
    """The batch sizes at which a computation gives each unit the same bits at every place.

    Attributes:
        aligned: whether products are padded to whole cache lines.
        draws: the parameters of the trials.
    """

    def __init__(self, least: int, step: int, aligned: bool, draws: Sequence[Draw]) -> None:
        """``least`` is the smallest size in units; larger ones are multiples of ``step``."""
        self.aligned, self.draws = aligned, draws
        self._least, self._step = least, step
        self._passed: dict[int, bool] = {}
        self._asked: set[int] = set()
        self._wanted: list[Tensor] = []

    def begin(self, compute: Compute, kinds: Units) -> bool:
        """Whether the smallest size passes; its results are those that other sizes must give."""
        found = self._results(compute, kinds, self._least, _KINDS)
        if found is None:
            return False
        self._wanted = [torch.stack([turn[i][0] for turn in found]) for i in range(len(found[0]))]
        # Units whose results are not finite show nothing, so one of them must have finite ones.
        finite = torch.stack(
            [want.reshape(len(want), -1).isfinite().all(1).cpu() for want in self._wanted]
        ).all(0)
        self._passed[self._least] = bool(finite.any()) and self._as_wanted(found, self._least)
        return self._passed[self._least]

    def sizes(self, count: int, most: int, compute: Compute, kinds: Callable[[], Units]) -> list[int]:
        """The sizes of the batches for ``count`` units; the last is padded where they are fewer.

        A new size is tried when it is wanted for the second time, and avoided until then.
        """
        sizes = []
        most = max(self._least, most - most % self._step)
        while count > 0:
            size = min(most, max(self._least, -(-count // self._step) * self._step))
            if size not in self._passed:
                if size in self._asked:
                    found = self._results(compute, kinds(), size, _TURNS)
                    self._passed[size] = found is not None and self._as_wanted(found, size)
                self._asked.add(size)
            if not self._passed.get(size, False):
                size = max(known for known, passed in self._passed.items() if passed and known <= size)
            sizes.append(size)
            count -= size
        return sizes

    def _results(
        self, compute: Compute, kinds: Units, size: int, turns: int
    ) -> list[Sequence[Tensor]] | None:
        """The evidence for ``turns`` batches of this size; None where the computation fails."""
        try:
            with aligned_products(self.aligned):
                return [compute(kinds.at(_order(size, turn)).padded(size)) for turn in range(turns)]
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return None

    def _as_wanted(self, found: list[Sequence[Tensor]], size: int) -> bool:
        return all(
            _same(got, want[_order(size, turn).to(want.device)])
            for turn, several in enumerate(found)
            for got, want in zip(several, self._wanted, strict=True)
        )


def _order(size: int, turn: int) -> Tensor:
    """The kind of the unit at each place of a batch."""
    return (torch.arange(size) + turn) % _KINDS


def _share_of_numbers(values: Tensor) -> Tensor:
    """The share of entries that are finite and not zero, on the CPU."""
    return ((values != 0) & values.isfinite()).double().mean().cpu()


def _same(one: Tensor, other: Tensor) -> bool:
    same = one == other
    return bool(same.all()) or bool((same | ((one != one) & (other != other))).all())


ALONE = (
    "units are computed one by one, because on this machine the last bits of what a unit adds depend on its "
    "place in a batch, which a released model must not show"
)
BOOK_KEEPING = "book-keeping"  # the computation that forms vectors instead where no batch size passes

_batches: WeakKeyDictionary[Differentiable, dict[tuple[Hashable, ...], Batches | None]] = WeakKeyDictionary()
# Made-up queries of small models, for examples of all lengths: drawing one takes as long as a sum.
_queries: WeakKeyDictionary[Differentiable, dict[Hashable, Query]] = WeakKeyDictionary()
_KEPT = 2**20  # parameters of a small model


def summed_alone(task: Differentiable) -> bool:
    """Whether units of the task were computed one by one in this process, because no batch size passed."""
    tried = _batches.get(task, {}).items()
    return any(batches is None and not str(name).startswith(BOOK_KEEPING) for (name, *_), batches in tried)


class Trials:
    """The trials of one computation, for units like the given ones and queries like this one."""

    def __init__(
        self, task: Differentiable, query: Query, units: Units, name: str, evidence: Evidence
    ) -> None:
        self._task, self._query, self._units = task, query, units
        self._evidence = evidence
        tensors = (query.points[0][None], units.x, units.y)
        kinds = tuple((t.shape[1:], t.dtype, t.device) for t in tensors)
        several = None if units.weights is None else units.weights.shape[1]
        threads = torch.get_num_threads()
        self._key = (name, kinds, several, units.seeds is None, _structure(query), threads)
        self._each = several or 1

    def batches(self, least: int, step: int | None = None) -> Batches | None:
        """The batch sizes of this computation; None where not even the smallest size passes.

        Larger sizes are multiples of ``step`` units, or of 8 examples.
        """
        known = _batches.setdefault(self._task, {})
        key = (*self._key, least)
        if key not in known:
            step = step or _STEP // math.gcd(_STEP, self._each)
            whole = -(-least // step) * step  # of rows, so that no place is at the ragged end of a product
            known[key] = self._first(whole if self._each > 1 or least > step else least, step)
        return known[key]

    def _first(self, least: int, step: int) -> Batches | None:
        draws = self._densest(least)
        for aligned in (False, True):
            batches = Batches(least, step, aligned, draws)
            if batches.begin(self._computing(draws), self._kinds()):
                return batches
        return None

    def _densest(self, least: int) -> list[Draw]:
        """The draws of parameters at which the evidence's sparsest tensor has the fewest zeros."""
        kinds, shares = self._kinds().padded(least), dict[Draw, Tensor]()
        for draw in itertools.product(_SPREADS, _SEEDS):
            with suppress(Exception):  # the trial itself fails, too
                found = self._computing([draw])(kinds)
                shares[draw] = torch.stack([_share_of_numbers(each[:_KINDS]) for each in found])
        if not shares:
            return [(_SPREADS[0], _SEEDS[0])]
        most = torch.stack(list(shares.values())).amax(0).clamp(min=1e-9)
        return sorted(shares, key=lambda draw: -float((shares[draw] / most).min()))[:_USED]

    def sizes(self, batches: Batches, count: int, most: int) -> list[int]:
        """See :meth:`Batches.sizes`."""
        return batches.sizes(count, most, self._computing(batches.draws), self._kinds)

    def _kinds(self) -> Units:
        return made_up(self._task, self._units)

    def _computing(self, draws: Sequence[Draw]) -> Compute:
        """The evidence at these draws, whose parameters are made when units are first computed."""

        @cache
        def queries() -> list[Query]:
            return [self._query_at(draw) for draw in draws]

        return lambda units: [each for query in queries() for each in self._evidence(units, query)]

    def _query_at(self, draw: Draw) -> Query:
        """The query at synthetic points, kept if the model is small."""
        first = self._query.points[0]
        if len(first) > _KEPT:
            return self._made_up_query(*draw)
        known = _queries.setdefault(self._task, {})
        key = (draw, _structure(self._query), first.dtype, first.device)
        if key not in known:
            known[key] = self._made_up_query(*draw)
        return known[key]

    def _made_up_query(self, spread: float, seed: int) -> Query:
        """The query at synthetic points, with synthetic divisors: nothing in a trial depends on a run."""
        generator = np.random.default_rng(seed)
        first = self._query.points[0]

        def drawn(low: float, high: float) -> Tensor:
            return torch.as_tensor(generator.uniform(low, high, len(first))).to(first)

        # With a spread of 2 a layer's outputs are about as large as its inputs: a softmax of small numbers
        # would hide their rounding, and large ones would saturate it.
        scale = torch.ones_like(first)
        shapes = {slot.name: slot.shape for slot in self._task.layout.slots}
        for name, part in self._task.layout.split(scale).items():
            part /= math.sqrt(max(1, math.prod(shapes[name][1:])))
        point = self._task.initial(generator).to(first) + scale * drawn(-spread, spread)
        points = tuple(point + number * scale * drawn(-0.1, 0.1) for number in range(len(self._query.points)))
        divisors: dict[int, Tensor] = {}

        def term(given: Term) -> Term:
            if given.divisor is None:
                return given
            return replace(given, divisor=divisors.setdefault(id(given.divisor), drawn(0.1, 1.1)))

        blocks = tuple(
            replace(block, terms=tuple(map(term, block.terms)))
            if isinstance(block, SumBlock)
            else replace(block, term=term(block.term))
            for block in self._query.blocks
        )
        return replace(self._query, points=points, blocks=blocks)


def _structure(query: Query) -> Hashable:
    """What decides which numbers are computed for a query."""
    divisors: dict[int, int] = {}
    return len(query.points), tuple(
        tuple(
            (
                term.at,
                term.per_layer,
                term.gamma > 0,
                term.divisor is not None and divisors.setdefault(id(term.divisor), len(divisors)),
            )
            for term in (block.terms if isinstance(block, SumBlock) else (block.term,))
        )
        for block in query.blocks
    )


def made_up(task: Differentiable, like: Units) -> Units:
    """``_KINDS`` synthetic units with the shapes, dtypes and device of the given ones.

    Numbers have different scales, so that additions in another order round differently; but none is so large
    that it saturates a softmax, which would hide the rounding. Half of the units have no negative numbers,
    for models that take roots or logarithms.
    """
    generator = np.random.default_rng(1)

    def fill(tensor: Tensor, most: int) -> Tensor:
        shape = (_KINDS, *tensor.shape[1:])
        if tensor.is_floating_point():
            numbers = generator.standard_normal(shape) * 2.0 ** generator.integers(-3, 1, shape)
            numbers[_KINDS // 2 :] = generator.uniform(0, 1, (_KINDS - _KINDS // 2, *shape[1:]))
        else:
            numbers = generator.integers(0, most, shape)
        return torch.as_tensor(numbers).to(tensor)

    weights = None if like.weights is None else fill(like.weights, 1).abs()
    seeds = None if like.seeds is None else fill(like.seeds, 2**31)
    return Units(fill(like.x, tokens_of(task.module)), fill(like.y, 1), weights, seeds)
