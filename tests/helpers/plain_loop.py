"""Clients' bounded sums as a plain loop over clients, one backward pass a step: the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.clipping import sum_rows_loop
from fedpriv.clipping.dropout import taken
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
    """What ``client_update.clipped_sum`` gives: the query's bounded sums over the clients' vectors."""
    sizes, seeds = client_update._sizes(x, y, owner, units), client_update._seeds(task, x, seeds)
    rows: list[list[Tensor]] = [[] for _ in query.points]
    start = 0
    for size in sizes[sizes > 0].tolist():
        own = slice(start, start + size)
        for vectors, point in zip(rows, query.points, strict=True):
            vectors.append(client_update._vector_of_one(work, task, point, x[own], y[own], taken(seeds, own)))
        start += size
    stacked = [
        torch.stack(vectors) if vectors else point.new_zeros(0, task.dimension)
        for vectors, point in zip(rows, query.points, strict=True)
    ]
    return sum_rows_loop(stacked, query.blocks, task.layout.layer_sizes)
