"""Bounded sums of per-example gradients: the fast path where it is exact, and the plain loop.

Here each unit is one example and its vector at a point is the gradient of its loss there; or a unit is
several examples, and its vector a weighted sum of their gradients. A model whose trained layers are all or
nearly all of a known kind is summed by book-keeping (:mod:`fedpriv.clipping.ghost.clipper`); others, and
units whose norms leave its range, form rows by ``torch.func.vmap(grad)``, a chunk at a time, and sum those.

What a unit adds must not depend on the others. Matrices of few rows are multiplied by other kernels, which
round otherwise, and a unit of huge inputs makes much of that, as the difference of two gradients does that
all but cancel. So a few units are filled up with copies, which are not counted, whatever memory they take.
And parts are added in float64, since a sum of millions in float32 has no room for one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.clipping.dropout import taken
from fedpriv.clipping.explicit import sum_rows, sum_rows_loop
from fedpriv.clipping.ghost.bookkeeping import BookKeeping
from fedpriv.clipping.ghost.clipped_sum import terms_of
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.coverage import Coverage, unit_gradients
from fedpriv.clipping.ghost.layers import UnsupportedLayerError
from fedpriv.clipping.precision import Precision
from fedpriv.clipping.protocol import Differentiable
from fedpriv.mechanism.query import Block, Query, SumBlock

_CHUNK = 1024  # examples whose layer inputs are held at once by book-keeping
_ROWS = 32  # examples at least, copies among them, whose layer inputs are multiplied at once
_ROW_ENTRIES = 2**24  # entries of materialised rows at once: 64 MiB of float32
_MOST_ENTRIES = 2**27  # and what they may be for _ROWS of them: 512 MiB, the default memory-budget

Sums = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Units:
    """What goes with the units: examples, labels, and weights and seeds or None, all (n, ...)."""

    x: Tensor
    y: Tensor
    weights: Tensor | None
    seeds: Tensor | None

    def at(self, which: slice | Tensor) -> _Units:
        return _Units(self.x[which], self.y[which], taken(self.weights, which), taken(self.seeds, which))

    def filled(self, least: int) -> _Units:
        """With copies of the first unit behind, to ``least`` units."""
        more = least - len(self.x)
        if more <= 0:
            return self

        def longer(given: Tensor) -> Tensor:
            return torch.cat([given, given[:1].expand(more, *given.shape[1:])])

        weights, seeds = (None if t is None else longer(t) for t in (self.weights, self.seeds))
        return _Units(longer(self.x), longer(self.y), weights, seeds)


def sum_gradients(
    task: Differentiable,
    query: Query,
    x: Tensor,
    y: Tensor,
    chunk: int | None = None,
    weights: Tensor | None = None,
    seeds: Tensor | None = None,
    filled: bool = True,
    precision: Precision = "float32",
) -> Sums:
    """The query's bounded sums over the units' gradients.

    Args:
        task: the model and its loss.
        query: the points (d,) and the blocks.
        x, y: the examples (n, ...) and their labels (n, ...), on the points' device; n may be 0. With
            weights, units of m examples: (n, m, ...) and (n, m, ...).
        chunk: the most units held at once, but for the 32 examples that always are; None chooses by the
            size of the model. It bounds memory and changes the result by float rounding only.
        weights: (n, m); a unit's vector is the sum of its examples' gradients with these weights. None
            makes each example a unit.
        seeds: int64 (n,), or (n, m) with weights: what dropout draws by for each example; None drops nothing.
        filled: whether copies fill few units up; only to measure what units take it is left out.
        precision: that of the passes of ghost clipping; rows are formed in the parameters' dtype.

    Returns:
        for each block a tensor: (d,) for a SumBlock, () for a IndicatorBlock; see :func:`sum_rows`. Float64
        where parts were added, else of the points' dtype.

    Raises:
        ArgumentError: x and y of different lengths, a point that is not of the task's dimension, a term
            that names more points than the query has, or units of no examples.
    """
    _check_batch(task, query, x, y)
    if weights is not None and len(x) and not weights.shape[1]:
        raise validation.fail("weights", "...", "hold an example a unit at least", "others add nothing")
    examples = (x, y) if weights is None else (x.flatten(0, 1), y.flatten(0, 1))
    each = 1 if weights is None else max(1, weights.shape[1])
    units = _Units(x, y, weights, seeds)
    clipper, drawing = clipper_of(task, precision), seeds is not None
    coverage = clipper.coverage(task, query.points[0], *examples, drawing=drawing) if len(x) else None
    least = -(-_ROWS // each) if filled else 1
    by_rows = functools.partial(_by_rows, task, query, chunk=chunk, least=least)
    if not coverage:
        return by_rows(units)
    step = chunk or max(1, _CHUNK // each)
    if coverage.formed:
        formed = coverage.formed * len(query.points)
        step, least = min(step, max(1, _ROW_ENTRIES // formed)), min(least, max(1, _MOST_ENTRIES // formed))
    by_book = functools.partial(_sum_by_book, clipper.bookkeeping, coverage, task, query)
    return _in_chunks(
        query, units, max(step, least), functools.partial(by_book, least=least, by_rows=by_rows)
    )


def _by_rows(
    task: Differentiable, query: Query, units: _Units, chunk: int | None = None, least: int = 1
) -> Sums:
    """By forming units' vectors, so many at once."""
    each = task.dimension * len(query.points) + units.x[:1].numel()
    fits = max(1, _ROW_ENTRIES // each)
    least = min(least, max(1, _MOST_ENTRIES // each))
    sum_few = functools.partial(_sum_by_rows, task, query, least=least)
    return _in_chunks(query, units, max(least, min(fits, chunk or fits)), sum_few)


def _sum_by_book(
    bookkeeping: BookKeeping,
    coverage: Coverage,
    task: Differentiable,
    query: Query,
    units: _Units,
    least: int,
    by_rows: Callable[[_Units], Sums],
    again: bool = True,
) -> Sums:
    """By book-keeping, except for units whose norms it cannot know."""
    count, all_of_them = len(units.x), units.filled(least)
    x, y, weights, seeds = all_of_them.x, all_of_them.y, all_of_them.weights, all_of_them.seeds
    asked = query.points, query.blocks, x, y, weights, seeds
    try:
        sums = bookkeeping.sum(coverage, task, *asked, counted=None if len(x) == count else count)
    except UnsupportedLayerError:  # a layer that sees these examples otherwise than it saw those of the trial
        return by_rows(units)
    if bool(sums.norm_known.all()):  # asked last, so that a device has all its work before it is waited for
        return sums.totals
    known = sums.norm_known[:count]
    if not again or not bool(known.any()) or bool(known.all()):
        return by_rows(units)
    # The others anew: a sum that has broken units in it may be broken, and what they add is as without these.
    others = _sum_by_book(bookkeeping, coverage, task, query, units.at(known), least, by_rows, again=False)
    return added((by_rows(units.at(~known)), others))


def _sum_by_rows(task: Differentiable, query: Query, units: _Units, least: int) -> Sums:
    """By forming every unit's vector."""
    layers, all_of_them, count = task.layout.layer_sizes, units.filled(least), len(units.x)
    x, y, weights, seeds = all_of_them.x, all_of_them.y, all_of_them.weights, all_of_them.seeds
    if weights is None:
        with task.drawing.by(seeds):
            rows = [task.gradients(point, x, y)[:count] for point in query.points]
    else:
        own = x, y, weights, seeds
        formed = [unit_gradients(task.losses, task.drawing, point, *own) for point in query.points]
        rows = [each[:count] for each in formed]
    return sum_rows(rows, query.blocks, layers)


def sum_gradients_loop(
    task: Differentiable, query: Query, x: Tensor, y: Tensor, seeds: Tensor | None = None
) -> tuple[Tensor, ...]:
    """:func:`sum_gradients` as a plain loop: one backward pass an example and point."""
    _check_batch(task, query, x, y)
    rows = [gradients_loop(task, point, x, y, seeds) for point in query.points]
    return sum_rows_loop(rows, query.blocks, task.layout.layer_sizes)


def gradients_loop(
    task: Differentiable, params: Tensor, x: Tensor, y: Tensor, seeds: Tensor | None = None
) -> Tensor:
    """The gradients (n, d) of the examples' losses, one backward pass each."""
    rows = params.new_zeros(x.shape[0], params.numel())
    for i in range(x.shape[0]):
        leaf = params.detach().clone().requires_grad_()
        with task.drawing.by(taken(seeds, slice(i, i + 1))):
            loss = task.losses(leaf, x[i : i + 1], y[i : i + 1]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if leaf.grad is not None:
            rows[i] = leaf.grad
    return rows


def _in_chunks(query: Query, units: _Units, step: int, sum_chunk: Callable[[_Units], Sums]) -> Sums:
    """The sums over all chunks of ``step`` units, added in their order."""

    def one(start: int) -> Sums:
        return sum_chunk(units.at(slice(start, start + step)))

    return added(map(one, range(0, len(units.x), step))) or zeros(query.blocks, query.points[0])


def added(parts: Iterable[Sums]) -> Sums:
    """The blocks' sums over all parts, added in their order in float64; a part alone stays as it is, and no
    part at all is ()."""
    totals: Sums = ()
    for part in parts:
        totals = tuple(t.double() + p for t, p in zip(totals, part, strict=True)) if totals else part
    return totals


def zeros(blocks: Sequence[Block], like: Tensor) -> Sums:
    """The sums over no units at all, for vectors of the shape (d,) and kind of ``like``."""
    return tuple(
        torch.zeros_like(like) if isinstance(block, SumBlock) else like.new_zeros(()) for block in blocks
    )


def _check_batch(task: Differentiable, query: Query, x: Tensor, y: Tensor) -> None:
    """Raises ArgumentError where the query, the task and the batch do not fit together."""
    if len(x) != len(y):  # how many there are is private, so no error says it
        raise validation.fail("labels", "...", "be as many as the examples")
    for point in query.points:
        if point.shape != (task.dimension,):
            raise validation.fail("point", tuple(point.shape), f"have the shape ({task.dimension},)")
    for term in terms_of(query.blocks):
        if len(term.at) > len(query.points):
            raise validation.fail("term coefficients", term.at, f"name {len(query.points)} points at most")
