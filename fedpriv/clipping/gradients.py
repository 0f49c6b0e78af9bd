"""Bounded sums of per-example gradients: the fast path where it is exact, and the plain loop.

Here each unit is one example and its vector at a point is the gradient of its loss there. A model whose
trained layers are all of a registered kind is summed by book-keeping (:mod:`fedpriv.clipping.bookkeeping`)
for every block whose terms take the gradient at one point as it is; everything else forms rows by
``torch.func.vmap(grad)``, a chunk of examples at a time, and sums those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedpriv import _check
from fedpriv.clipping.bookkeeping import Differentiable
from fedpriv.clipping.rows import sum_rows, sum_rows_loop
from fedpriv.query import Block, Query, SumBlock, Term

_CHUNK = 512  # examples whose layer inputs are held at once by book-keeping
_ROW_ENTRIES = 2**24  # entries of materialised rows at once: 64 MiB of float32


def sum_gradients(
    task: Differentiable, query: Query, x: Tensor, y: Tensor, chunk: int | None = None
) -> tuple[Tensor, ...]:
    """The query's bounded sums over the examples' gradients.

    Args:
        task: the model and its loss.
        query: the points (d,) and the blocks.
        x, y: the examples (n, ...) and their labels (n, ...), on the points' device; n may be 0.
        chunk: the most examples held at once; None chooses by the size of the model. It bounds
            memory and changes the result by float rounding only.

    Returns:
        for each block a tensor: (d,) for a SumBlock, () for a BitBlock; see :func:`sum_rows`.

    Raises:
        ArgumentError: x and y of different lengths, or a point that is not of the task's dimension.
    """
    _check_batch(task, query, x, y)
    first = query.points[0]
    if len(x) and _takes_gradients_as_they_are(query) and task.book.suits(task, first, x, y):

        def sum_chunk(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return task.book.total(task, first, x, y, query.blocks)

        return _in_chunks(query, x, y, chunk or _CHUNK, sum_chunk)

    def sum_chunk_of_rows(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return sum_rows([task.gradients(point, x, y) for point in query.points], query.blocks)

    fits = max(1, _ROW_ENTRIES // (task.dimension * len(query.points)))
    return _in_chunks(query, x, y, min(fits, chunk or fits), sum_chunk_of_rows)


def sum_gradients_loop(task: Differentiable, query: Query, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """:func:`sum_gradients` as a plain loop: one backward pass an example and point."""
    _check_batch(task, query, x, y)
    return sum_rows_loop([gradients_loop(task, point, x, y) for point in query.points], query.blocks)


def gradients_loop(task: Differentiable, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradients (n, d) of the examples' losses, one backward pass each."""
    rows = params.new_zeros(x.shape[0], params.numel())
    for i in range(x.shape[0]):
        leaf = params.detach().clone().requires_grad_()
        task.losses(leaf, x[i : i + 1], y[i : i + 1]).sum().backward()  # type: ignore[no-untyped-call]
        if leaf.grad is not None:
            rows[i] = leaf.grad
    return rows


def _in_chunks(
    query: Query, x: Tensor, y: Tensor, step: int, sum_chunk: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """The sums over all chunks of ``step`` examples, added in their order."""
    totals: tuple[Tensor, ...] | None = None
    for start in range(0, x.shape[0], step):
        sums = sum_chunk(x[start : start + step], y[start : start + step])
        totals = sums if totals is None else tuple(a + b for a, b in zip(totals, sums, strict=True))
    return zeros(query.blocks, query.points[0]) if totals is None else totals


def _takes_gradients_as_they_are(query: Query) -> bool:
    """Whether every term's vector is the gradient at the first point."""
    return all(term.at == (1.0,) and term.divisor is None for term in _terms(query.blocks))


def zeros(blocks: Sequence[Block], like: Tensor) -> tuple[Tensor, ...]:
    """The sums over no units at all, for vectors of the shape (d,) and kind of ``like``."""
    return tuple(
        torch.zeros_like(like) if isinstance(block, SumBlock) else like.new_zeros(()) for block in blocks
    )


def _terms(blocks: Sequence[Block]) -> list[Term]:
    return [
        term for block in blocks for term in (block.terms if isinstance(block, SumBlock) else (block.term,))
    ]


def _check_batch(task: Differentiable, query: Query, x: Tensor, y: Tensor) -> None:
    """Raises ArgumentError where the query, the task and the batch do not fit together."""
    if len(x) != len(y):  # how many there are is private, so no error says it
        raise _check.fail("labels", "...", "be as many as the examples")
    for point in query.points:
        if point.shape != (task.dimension,):
            raise _check.fail("point", tuple(point.shape), f"have the shape ({task.dimension},)")
