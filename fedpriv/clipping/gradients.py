"""Bounded sums of per-example gradients: the fast path where it is exact, and the plain loop.

Here each unit is one example and its vector at a point is the gradient of its loss there. A model whose
trained layers are all of a registered kind is summed by book-keeping (:mod:`fedpriv.clipping.bookkeeping`)
for every block whose terms take the gradient at one point as it is; everything else forms rows by
``torch.func.vmap(grad)``, a chunk of examples at a time, and sums those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedpriv import _check
from fedpriv.clipping.rows import sum_rows, sum_rows_loop
from fedpriv.query import Block, Query

_ROW_ENTRIES = 2**24  # entries of materialised rows at once: 64 MiB of float32


class Differentiable(Protocol):
    """What :func:`sum_gradients` needs of a task: per-example losses and their gradients."""

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses (n,) of the examples at the parameters (d,)."""

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters."""


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
    step = max(1, _ROW_ENTRIES // (task.dimension * len(query.points)))
    return _sum_in_chunks(task, query, x, y, min(step, chunk or step))


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


def _sum_in_chunks(task: Differentiable, query: Query, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, ...]:
    totals = zeros(query.blocks, query.points[0])
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        rows = [task.gradients(point, x[part], y[part]) for point in query.points]
        for total, block_sum in zip(totals, sum_rows(rows, query.blocks), strict=True):
            total += block_sum
    return totals


def zeros(blocks: Sequence[Block], like: Tensor) -> tuple[Tensor, ...]:
    """The sums over no units at all, for vectors of the shape (d,) and kind of ``like``."""
    return sum_rows([like.new_zeros(0, like.numel())] * _points(blocks), blocks)


def _points(blocks: Sequence[Block]) -> int:
    return max(
        len(term.at)
        for block in blocks
        for term in getattr(block, "terms", None) or (block.term,)  # type: ignore[union-attr]
    )


def _check_batch(task: Differentiable, query: Query, x: Tensor, y: Tensor) -> None:
    """Raises ArgumentError where the query, the task and the batch do not fit together."""
    if x.shape[:1] != y.shape[:1]:
        raise _check.fail("labels", tuple(y.shape), f"be as many as the {len(x)} examples")
    for point in query.points:
        if point.shape != (task.dimension,):
            raise _check.fail("point", tuple(point.shape), f"have the shape ({task.dimension},)")
