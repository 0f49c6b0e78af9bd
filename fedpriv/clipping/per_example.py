"""Bounded sums of per-example gradients: ghost clipping where it is exact, else formed gradients.

A unit is one example, whose vector at a point is the gradient of its loss; or a unit is several examples,
whose vector is a weighted sum of their gradients. Models whose trained layers nearly all have a layer rule
are summed by book-keeping (:mod:`fedpriv.clipping.ghost.clipper`). For other models, and for units whose
norms are outside its range, ``torch.func.vmap(grad)`` forms the gradients as rows, a chunk at a time.

A unit's contribution must not depend on the rest of its batch. But torch multiplies matrices of few rows with
other kernels, which round differently; huge inputs, and differences of two nearly equal gradients, amplify
this rounding. Small batches are therefore padded with copies, which are not counted. The sums of chunks are
added in float64, because adding one unit to a float32 sum of millions loses digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.clipping.dropout import select
from fedpriv.clipping.explicit import sum_rows, sum_rows_loop
from fedpriv.clipping.ghost.bookkeeping import BookKeeping
from fedpriv.clipping.ghost.clipped_sum import terms_of
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.coverage import Coverage, unit_gradients
from fedpriv.clipping.ghost.layers import UnsupportedLayerError
from fedpriv.clipping.precision import Precision
from fedpriv.clipping.protocol import Differentiable
from fedpriv.mechanism.query import Block, Query, SumBlock

_CHUNK = 1024  # examples per book-keeping pass
_MIN_ROWS = 32  # smallest batch, padding included
_ROW_ENTRIES = 2**24  # entries of rows that are formed at once: 64 MiB of float32
_MAX_ROW_ENTRIES = 2**27  # the limit for a batch of _MIN_ROWS: 512 MiB, the default memory-budget

Sums = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Units:
    """Examples, labels, weights and seeds of the units, (n, ...) each; weights and seeds may be None."""

    x: Tensor
    y: Tensor
    weights: Tensor | None
    seeds: Tensor | None

    def at(self, which: slice | Tensor) -> _Units:
        return _Units(self.x[which], self.y[which], select(self.weights, which), select(self.seeds, which))

    def padded(self, least: int) -> _Units:
        """The units, padded with copies of the first one to at least ``least`` units."""
        missing = least - len(self.x)
        if missing <= 0:
            return self

        def extend(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])

        weights, seeds = (None if t is None else extend(t) for t in (self.weights, self.seeds))
        return _Units(extend(self.x), extend(self.y), weights, seeds)


def sum_gradients(
    task: Differentiable,
    query: Query,
    x: Tensor,
    y: Tensor,
    chunk: int | None = None,
    weights: Tensor | None = None,
    seeds: Tensor | None = None,
    padded: bool = True,
    precision: Precision = "float32",
) -> Sums:
    """The query's bounded sums over the units' gradients.

    Args:
        task: the model and its loss.
        query: the points (d,) and the blocks.
        x, y: the examples (n, ...) and their labels (n, ...), on the points' device; n may be 0. With
            weights, units of m examples: (n, m, ...) and (n, m, ...).
        chunk: the most units that are processed at once (at least 32 examples); None chooses by the size of
            the model. It bounds memory and changes the result by float rounding only.
        weights: (n, m); a unit's vector is the sum of its examples' gradients with these weights. None
            makes each example a unit.
        seeds: int64 (n,), or (n, m) with weights: the dropout seed of each example; None drops nothing.
        padded: whether small batches are padded with copies. Only measurements of memory switch it off.
        precision: that of the passes of ghost clipping; rows are formed in the parameters' dtype.

    Returns:
        for each block a tensor: (d,) for a SumBlock, () for an IndicatorBlock; see :func:`sum_rows`. Float64
        where several chunks were added, else of the points' dtype.

    Raises:
        ArgumentError: x and y differ in length, a point has another length than the task's dimension, a term
            has more coefficients than the query has points, or units have no examples.
    """
    _check_batch(task, query, x, y)
    if weights is not None and len(x) and not weights.shape[1]:
        raise validation.fail(
            "weights", "...", "have at least one example per unit", "leave out units without examples"
        )
    examples = (x, y) if weights is None else (x.flatten(0, 1), y.flatten(0, 1))
    each = 1 if weights is None else max(1, weights.shape[1])
    units = _Units(x, y, weights, seeds)
    clipper, with_dropout = clipper_of(task, precision), seeds is not None
    coverage = (
        clipper.coverage(task, query.points[0], *examples, with_dropout=with_dropout) if len(x) else None
    )
    least = -(-_MIN_ROWS // each) if padded else 1
    by_rows = functools.partial(_by_rows, task, query, chunk=chunk, least=least)
    if not coverage:
        return by_rows(units)
    step = chunk or max(1, _CHUNK // each)
    if coverage.formed:
        formed = coverage.formed * len(query.points)
        step, least = (
            min(step, max(1, _ROW_ENTRIES // formed)),
            min(least, max(1, _MAX_ROW_ENTRIES // formed)),
        )
    by_book = functools.partial(_sum_by_book, clipper.bookkeeping, coverage, task, query)
    return _in_chunks(
        query, units, max(step, least), functools.partial(by_book, least=least, by_rows=by_rows)
    )


def _by_rows(
    task: Differentiable, query: Query, units: _Units, chunk: int | None = None, least: int = 1
) -> Sums:
    """The sums from formed vectors, a chunk at a time."""
    each = task.dimension * len(query.points) + units.x[:1].numel()
    fits = max(1, _ROW_ENTRIES // each)
    least = min(least, max(1, _MAX_ROW_ENTRIES // each))
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
    """The sums by book-keeping, and from formed vectors for units whose norms it does not know."""
    count, all_of_them = len(units.x), units.padded(least)
    x, y, weights, seeds = all_of_them.x, all_of_them.y, all_of_them.weights, all_of_them.seeds
    asked = query.points, query.blocks, x, y, weights, seeds
    try:
        sums = bookkeeping.sum(coverage, task, *asked, counted=None if len(x) == count else count)
    except UnsupportedLayerError:  # a layer treats these examples differently from those of the trial
        return by_rows(units)
    if bool(sums.norm_known.all()):  # read last, because reading synchronises with the device
        return sums.totals
    known = sums.norm_known[:count]
    if not again or not bool(known.any()) or bool(known.all()):
        return by_rows(units)
    # A NaN in one unit may spoil the sum, so the units with known norms are summed again by themselves.
    others = _sum_by_book(bookkeeping, coverage, task, query, units.at(known), least, by_rows, again=False)
    return added((by_rows(units.at(~known)), others))


def _sum_by_rows(task: Differentiable, query: Query, units: _Units, least: int) -> Sums:
    """The sums from formed vectors, for one chunk."""
    layers, all_of_them, count = task.layout.layer_sizes, units.padded(least), len(units.x)
    x, y, weights, seeds = all_of_them.x, all_of_them.y, all_of_them.weights, all_of_them.seeds
    if weights is None:
        with task.dropout.seeded(seeds):
            rows = [task.gradients(point, x, y)[:count] for point in query.points]
    else:
        own = x, y, weights, seeds
        formed = [unit_gradients(task.losses, task.dropout, point, *own) for point in query.points]
        rows = [each[:count] for each in formed]
    return sum_rows(rows, query.blocks, layers)


def sum_gradients_loop(
    task: Differentiable, query: Query, x: Tensor, y: Tensor, seeds: Tensor | None = None
) -> tuple[Tensor, ...]:
    """:func:`sum_gradients` as a plain loop: one backward pass per example and point."""
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
        with task.dropout.seeded(select(seeds, slice(i, i + 1))):
            loss = task.losses(leaf, x[i : i + 1], y[i : i + 1]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if leaf.grad is not None:
            rows[i] = leaf.grad
    return rows


def _in_chunks(query: Query, units: _Units, step: int, sum_chunk: Callable[[_Units], Sums]) -> Sums:
    """The sums over all chunks of ``step`` units, added in order."""

    def one(start: int) -> Sums:
        return sum_chunk(units.at(slice(start, start + step)))

    return added(map(one, range(0, len(units.x), step))) or zeros(query.blocks, query.points[0])


def added(parts: Iterable[Sums]) -> Sums:
    """The blocks' sums over all parts, added in order in float64. A single part is returned unchanged; no
    parts give ()."""
    totals: Sums = ()
    for part in parts:
        totals = tuple(t.double() + p for t, p in zip(totals, part, strict=True)) if totals else part
    return totals


def zeros(blocks: Sequence[Block], like: Tensor) -> Sums:
    """The sums over no units, for vectors of the shape (d,), dtype and device of ``like``."""
    return tuple(
        torch.zeros_like(like) if isinstance(block, SumBlock) else like.new_zeros(()) for block in blocks
    )


def _check_batch(task: Differentiable, query: Query, x: Tensor, y: Tensor) -> None:
    """Raises ArgumentError where the query, the task and the batch do not fit together."""
    if len(x) != len(y):  # the numbers are private, so the error leaves them out
        raise validation.fail("labels", "...", "be as many as the examples")
    for point in query.points:
        if point.shape != (task.dimension,):
            raise validation.fail("point", tuple(point.shape), f"have the shape ({task.dimension},)")
    for term in terms_of(query.blocks):
        if len(term.at) > len(query.points):
            raise validation.fail(
                "term coefficients", term.at, f"be at most {len(query.points)}, one per point"
            )
