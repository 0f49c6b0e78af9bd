"""Bounded sums of per-example gradients: ghost clipping where it is exact, else formed gradients.

A unit is one example, whose vector at a point is the gradient of its loss; or a unit is several examples,
whose vector is a weighted sum of their gradients. Models whose trained layers nearly all have a layer rule
are summed by book-keeping (:mod:`fedpriv.clipping.ghost.clipper`). For other models, and for units whose
norms are outside its range, and for centred or squared vectors, ``torch.func.vmap(grad)`` forms the gradients
as rows, a chunk at a time.

A unit's contribution must not depend on the rest of its batch, not even in its last bit: huge inputs, gates
and differences of two nearly equal gradients amplify rounding without a bound. Three rules make it a function
of the unit alone.

- User code never sees a batch (:mod:`fedpriv.clipping.ghost.independence`).
- Batches have sizes for which a trial found the same bits at every place
  (:mod:`fedpriv.clipping.invariance`); small ones are padded with copies, which are not counted. Where no
  size passes, each unit's gradient is computed alone: the same shapes in memory of the same alignment.
- How a norm is computed depends on its own unit only, never on whether all norms of a batch are in range.

What remains is the rounding of the sum itself. Exact noise has the units added in float64; its margin
(:data:`fedpriv.mechanism.release.MARGIN`) bounds the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.clipping.alignment import aligned_products
from fedpriv.clipping.dropout import select
from fedpriv.clipping.explicit import sum_rows, sum_rows_loop
from fedpriv.clipping.ghost.bookkeeping import BookKeeping
from fedpriv.clipping.ghost.clipped_sum import FactoredSum, terms_of
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.coverage import Coverage, unit_gradients
from fedpriv.clipping.ghost.layers import UnsupportedLayerError
from fedpriv.clipping.invariance import BOOK_KEEPING, Batches, Trials
from fedpriv.clipping.precision import Precision, computing
from fedpriv.clipping.protocol import Differentiable
from fedpriv.clipping.units import Units
from fedpriv.mechanism.query import Block, Query, SumBlock

_CHUNK = 1024  # examples per book-keeping pass
_MIN_ROWS = 32  # smallest batch, padding included
_ROW_ENTRIES = 2**24  # entries of rows that are formed at once: 64 MiB of float32
_MAX_ROW_ENTRIES = 2**27  # the limit for a batch of _MIN_ROWS: 512 MiB, the default memory-budget

Sums = tuple[Tensor, ...]


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
    exact: bool = False,
) -> Sums:
    """The query's bounded sums over the units' gradients.

    Args:
        task: the model and its loss.
        query: the points (d,) and the blocks.
        x, y: the examples (n, ...) and their labels (n, ...), on the points' device; n may be 0. With
            weights, units of m examples: (n, m, ...) and (n, m, ...).
        chunk: the most units that are processed at once (at least 32 examples); None chooses by the size of
            the model. It bounds memory and changes the result by the rounding of the sum only.
        weights: (n, m); a unit's vector is the sum of its examples' gradients with these weights. None
            makes each example a unit.
        seeds: int64 (n,), or (n, m) with weights: the dropout seed of each example; None drops nothing.
        padded: whether small batches are padded with copies. Only measurements of memory switch it off.
        precision: that of the passes of ghost clipping; rows are formed in the parameters' dtype.
        exact: whether units are added in float64, as exact noise needs it
            (:data:`fedpriv.mechanism.release.MARGIN`).

    Returns:
        for each block a tensor: (d,) for a SumBlock, () for an IndicatorBlock; see :func:`sum_rows`. Float64
        where several batches were added or ``exact``, else of the points' dtype.

    Raises:
        ArgumentError: x and y differ in length, a point has another length than the task's dimension, a term
            has more coefficients than the query has points, or units have no examples.
    """
    _check_batch(task, query, x, y)
    if weights is not None and len(x) and not weights.shape[1]:
        raise validation.fail(
            "weights", "...", "have at least one example per unit", "leave out units without examples"
        )
    if not len(x):
        return zeros(query.blocks, query.points[0])
    examples = (x, y) if weights is None else (x.flatten(0, 1), y.flatten(0, 1))
    each = 1 if weights is None else weights.shape[1]
    units = Units(x, y, weights, seeds)
    sum_dtype = torch.float64 if exact else None
    by_rows = functools.partial(_by_rows, task, query, chunk=chunk, padded=padded, sum_dtype=sum_dtype)
    if any(term.needs_rows for term in terms_of(query.blocks)):
        return by_rows(units)  # a norm from factors would cancel where an offset is near the gradient
    clipper = clipper_of(task, precision)
    coverage = clipper.coverage(task, query.points[0], *examples, with_dropout=seeds is not None)
    if not coverage:
        return by_rows(units)
    most, least = chunk or max(1, _CHUNK // each), -(-_MIN_ROWS // each)
    if coverage.formed:
        formed = coverage.formed * len(query.points)
        most, least = (
            min(most, max(1, _ROW_ENTRIES // formed)),
            min(least, max(1, _MAX_ROW_ENTRIES // formed)),
        )
    book = _Book(clipper.bookkeeping, coverage, task, sum_dtype)
    sum_batch = functools.partial(_sum_by_book, book, query, by_rows=by_rows)
    if not padded:
        return _in_chunks(units, most, lambda part: sum_batch(part, len(part.x)))
    trials = Trials(task, query, units, f"{BOOK_KEEPING} in {precision}", book.evidence)
    batches = trials.batches(least)
    return by_rows(units) if batches is None else _in_batches(trials, batches, units, most, sum_batch)


@dataclass(frozen=True)
class _Book:
    """Book-keeping of one task.

    Attributes:
        bookkeeping: the passes.
        coverage: the coverage with which it is exact for the examples.
        task: the model and its loss.
        sum_dtype: the dtype in which units are added; None: the points'.
    """

    bookkeeping: BookKeeping
    coverage: Coverage
    task: Differentiable
    sum_dtype: torch.dtype | None

    def sum(
        self, query: Query, units: Units, counted: int | None = None, values: list[Tensor] | None = None
    ) -> FactoredSum:
        """The sums over the first ``counted`` units."""
        asked = query.points, query.blocks, units.x, units.y, units.weights, units.seeds
        return self.bookkeeping.sum(
            self.coverage, self.task, *asked, counted=counted, sum_dtype=self.sum_dtype, values=values
        )

    def evidence(self, units: Units, query: Query) -> Sequence[Tensor]:
        """All numbers that determine what the units add, and the outputs of the layers."""
        values: list[Tensor] = []
        sums = self.sum(query, units, values=values)
        return [*(value.reshape(len(units.x), -1) for value in values), *sums.evidence()]


def _sum_by_book(
    book: _Book,
    query: Query,
    units: Units,
    size: int,
    by_rows: Callable[[Units], Sums],
    again: bool = True,
) -> Sums:
    """The sums by book-keeping in a batch of ``size``, and from formed vectors for units whose norms it does
    not know."""
    count = len(units.x)
    try:
        sums = book.sum(query, units.padded(size), None if size == count else count)
    except UnsupportedLayerError:  # a layer treats all such examples differently from those of the trial
        return by_rows(units)
    if bool(sums.norm_known.all()):  # read last, because reading synchronises with the device
        return sums.totals
    known = sums.norm_known[:count]
    if not again or not bool(known.any()) or bool(known.all()):
        return by_rows(units)
    # A NaN in one unit may spoil the sum, so the units with known norms are summed again by themselves.
    others = _sum_by_book(book, query, units.at(known), size, by_rows, again=False)
    return added((by_rows(units.at(~known)), others))


def _by_rows(
    task: Differentiable,
    query: Query,
    units: Units,
    chunk: int | None = None,
    padded: bool = True,
    sum_dtype: torch.dtype | None = None,
) -> Sums:
    """The sums from formed vectors, some at a time; one by one where no batch gives the same bits at every
    place."""
    vector = task.dimension * len(query.points) + units.x[:1].numel()
    fits, each = max(1, _ROW_ENTRIES // vector), 1 if units.weights is None else units.weights.shape[1]
    most = min(fits, chunk or fits)

    def sum_batch(part: Units, size: int) -> Sums:
        rows = [own[: len(part.x)] for own in _form_rows(task, query.points, part.padded(size))]
        return sum_rows(rows, query.blocks, task.layout.layer_sizes, sum_dtype)

    if not padded:
        return _in_chunks(units, most, lambda part: sum_batch(part, len(part.x)))

    def evidence(units: Units, query: Query) -> Sequence[Tensor]:
        return _form_rows(task, query.points, units)

    trials = Trials(task, query, units, "rows", evidence)
    batches = trials.batches(min(-(-_MIN_ROWS // each), max(1, _MAX_ROW_ENTRIES // vector)))
    if batches is not None:
        return _in_batches(trials, batches, units, most, sum_batch)

    def sum_alone(part: Units) -> Sums:
        rows = [_form_alone(task, point, part) for point in query.points]
        return sum_rows(rows, query.blocks, task.layout.layer_sizes, sum_dtype)

    return _in_chunks(units, fits, sum_alone)


def _form_rows(task: Differentiable, points: Sequence[Tensor], units: Units) -> list[Tensor]:
    """The units' vectors (n, d) at the points, by vmap of grad."""
    with computing("float32", units.x.device):
        if units.weights is None:
            with task.dropout.seeded(units.seeds):
                return [task.gradients(point, units.x, units.y) for point in points]
        own = units.x, units.y, units.weights, units.seeds
        return [unit_gradients(task.losses, task.dropout, point, *own) for point in points]


def _form_alone(task: Differentiable, point: Tensor, units: Units) -> Tensor:
    """The units' vectors (n, d) at the point, each by a backward pass of its own, from memory of its own.

    All passes have the same shapes and alignment, so that a unit's vector depends on no other unit.
    """
    rows = point.new_zeros(len(units.x), len(point))
    for i in range(len(rows)):
        one, leaf = units.at(slice(i, i + 1)).padded(1), point.detach().clone().requires_grad_()
        x, y, weights, seeds = one.x, one.y, one.weights, one.seeds
        if weights is not None:
            x, y, seeds = x[0], y[0], None if seeds is None else seeds[0]
        with torch.enable_grad(), computing("float32", x.device), task.dropout.seeded(seeds):
            losses = task.losses(leaf, x, y)
            loss = losses.sum() if weights is None else (losses * weights[0]).sum()
            if loss.requires_grad:
                [slope] = torch.autograd.grad(loss, leaf, allow_unused=True)
                rows[i] = 0 if slope is None else slope
    return rows


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


def _in_chunks(units: Units, step: int, sum_chunk: Callable[[Units], Sums]) -> Sums:
    """The sums over all chunks of ``step`` units, added in order."""
    return added(sum_chunk(units.at(slice(at, at + step))) for at in range(0, len(units.x), step))


def _in_batches(
    trials: Trials, batches: Batches, units: Units, most: int, sum_batch: Callable[[Units, int], Sums]
) -> Sums:
    """The sums over batches of sizes that pass their trial and are at most ``most`` where possible, added in
    order."""
    sizes, at = trials.sizes(batches, len(units.x), most), 0

    def parts() -> Iterator[Sums]:
        nonlocal at
        for size in sizes:
            with aligned_products(batches.aligned):
                yield sum_batch(units.at(slice(at, at + size)), size)
            at += size

    return added(parts())


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
        if point.dtype not in (torch.float32, torch.float64):
            # In fewer digits the rounding of a sum of many units exceeds a clip norm.
            raise validation.fail("point dtype", point.dtype, "be float32 or float64")
    for term in terms_of(query.blocks):
        if len(term.at) > len(query.points):
            raise validation.fail(
                "term coefficients", term.at, f"be at most {len(query.points)}, one per point"
            )
