"""The ways of summing clipped gradients, which must agree: book-keeping, rows, the plain loop and Opacus."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from fedpriv.clipping import gradients_loop, sum_gradients, sum_rows_loop
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.tasks.task import Task


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_point_query(
    task: Task, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64, scale: float = 0.3
) -> Query:
    """Sums and an indicator at one point, with clip norms that clip about half of the examples."""
    params = (noise(task.dimension, seed=5) * scale).to(dtype)
    norm = _middle(gradients_loop(task, params, x, y))
    blocks = (
        SumBlock((Term(norm, 2.0), Term(norm / 2, -0.5)), 0.4),
        SumBlock((Term(math.inf),), 0.4),
        IndicatorBlock(Term(1.0), 1.01 * norm, 0.2),
    )
    return Query((params,), blocks)


def two_point_query(task: Task, x: Tensor, y: Tensor, scale: float = 0.3) -> Query:
    """Gradients at two points and their difference, with and without a divisor, as in DP2 and DP-SRM."""
    points = tuple(noise(task.dimension, seed=seed) * scale for seed in (5, 6))
    divisor = noise(task.dimension, seed=7).abs() + 0.1
    rows = [gradients_loop(task, point, x, y) for point in points]
    terms: list[Term] = []
    for at, by in (((1.0,), None), ((1.0, -1.0), None), ((1.0,), divisor), ((0.5, -2.0), divisor)):
        norm = _middle(Term(1.0, at=at, divisor=by).combine(rows))
        terms.append(Term(norm, 0.5 + len(terms), at, by))
    return Query(points, (SumBlock(tuple(terms[:2]), 0.5), SumBlock(tuple(terms[2:]), 0.5)))


def _middle(rows: Tensor) -> float:
    """The middle of the rows' norms; 1 where they are all zero (dead units)."""
    norms = rows.norm(dim=1).sort().values
    return float(norms[max(0, len(norms) // 2 - 1) :][:2].mean()) or 1.0


def assert_all_ways_agree(
    task: Task, query: Query, x: Tensor, y: Tensor, tolerance: float, fast: bool = True
) -> None:
    """Book-keeping and rows give the loop's sums; after its trial, book-keeping forms no rows.

    Units are the examples, in one chunk and in several, and then clients of two examples.
    """
    rows = [gradients_loop(task, point, x, y) for point in query.points]
    for point, own in zip(query.points, rows, strict=True):
        _assert_close([task.gradients(point, x, y)], [own], tolerance)
    sum_gradients(task, query, x, y)
    if fast:
        vars(task)["gradients"] = _refuse
    layers = task.layout.layer_sizes
    wanted = sum_rows_loop(rows, query.blocks, layers)
    for chunk in (None, 3):
        _assert_close(sum_gradients(task, query, x, y, chunk), wanted, tolerance)
    pairs = 2 * (len(x) // 2)
    weights = noise(pairs // 2, 2, seed=8).abs().to(query.points[0]) + 0.1
    x, y = _paired(x[:pairs]), _paired(y[:pairs])
    vectors = [(_paired(own[:pairs]) * weights[..., None]).sum(1) for own in rows]
    wanted = sum_rows_loop(vectors, query.blocks, layers)
    _assert_close(sum_gradients(task, query, x, y, weights=weights), wanted, tolerance)


def assert_opacus_agrees(
    model: nn.Module, x: Tensor, y: Tensor, theirs: nn.Module | None = None, tolerance: float = 1e-10
) -> None:
    """The clipped sum from the per-example gradients that Opacus' hooks form is the task's.

    Args:
        model: for float64 inputs (n, ...) and labels (n,).
        theirs: the same model of layers that Opacus knows, with the same names; None for ``model``.
    """
    task = Task(model)
    params = 0.3 * noise(task.dimension, seed=5)
    hooked = GradSampleModule(copy.deepcopy(model if theirs is None else theirs).double())
    names = dict(hooked._module.named_parameters())
    for name, tensor in task.layout.split(params).items():
        names[name].data = tensor.clone()
    (task.loss(hooked(x), y).mean()).backward()  # type: ignore[no-untyped-call]
    rows = torch.cat([names[name].grad_sample.flatten(1) for name in task.layout.names], 1)
    query = Query((params,), (SumBlock((Term(_middle(rows)),)),))
    _assert_close(sum_gradients(task, query, x, y), sum_rows_loop([rows], query.blocks), tolerance)


def _paired(rows: Tensor) -> Tensor:
    """Rows (2 n, ...) as n pairs (n, 2, ...)."""
    pairs: Tensor = rows.unflatten(0, (-1, 2))  # type: ignore[no-untyped-call]
    return pairs


def _assert_close(got: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype in (other.dtype, torch.float64)  # float64 where chunks were added
        assert float((one - other).norm()) <= tolerance * float(other.norm())


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("rows were formed")
