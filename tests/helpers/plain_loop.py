"""Clients' bounded sums as a plain loop over clients, one backward pass per step: the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.clipping import sum_rows_loop
from fedpriv.clipping.dropout import select
from fedpriv.federated import client_update
from fedpriv.federated.client_update import Work
from fedpriv.mechanism.query import Query
from fedpriv.tasks.task import Task


def clipped_sum_loop(
    work: Work,
    task: Task,
    query: Query,
    x: Tensor,
    y: Tensor,
    owner: Tensor | None = None,
    units: int | None = None,
    seeds: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """``client_update.clipped_sum`` as a plain loop."""
    sizes, seeds = client_update._sizes(x, y, owner, units), client_update._seeds(task, x, seeds)
    rows: list[list[Tensor]] = [[] for _ in query.points]
    start = 0
    for size in sizes[sizes > 0].tolist():
        own = slice(start, start + size)
        for vectors, point in zip(rows, query.points, strict=True):
            client = x[own], y[own], select(seeds, own)
            vectors.append(client_update._vector_of_one(work, task, point, *client))
        start += size
    stacked = [
        torch.stack(vectors) if vectors else point.new_zeros(0, task.dimension)
        for vectors, point in zip(rows, query.points, strict=True)
    ]
    return sum_rows_loop(stacked, query.blocks, task.layout.layer_sizes)
