"""What a virtual client computes, and the bounded sum over many clients at once.

A client's vector at a point theta is either the gradient of its mean loss there (:class:`OneGradient`,
Fed-SGD) or the model change of some local steps (:class:`LocalSteps`, the pseudo-gradient of FedAvg,
McMahan et al. 2018). Vectors are never weighted by how many examples a client holds: one client, one clip.
A unit may also be an example: then each example is a client of its own.

>>> import numpy as np, torch
>>> from fedpriv.query import Query, SumBlock, Term
>>> from fedpriv.tasks import Task
>>> task = Task("logistic")
>>> query = Query((task.initial(np.random.default_rng(0)),), (SumBlock((Term(clip_norm=0.5),)),))
>>> x, y = torch.ones(3, 1, 28, 28), torch.tensor([1, 2, 3])
>>> total, = clipped_sum(OneGradient(), task, query, x, y)
>>> total.shape, bool(total.norm() <= 3 * 0.5)
(torch.Size([7850]), True)
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv import _check
from fedpriv.clipping import sum_gradients
from fedpriv.query import BitBlock, Query
from fedpriv.tasks import Task


@dataclass(frozen=True)
class OneGradient:
    """A = the gradient of the client's mean loss at the point."""


@dataclass(frozen=True)
class LocalSteps:
    """A = theta - theta_K after K steps of gradient descent from theta on the client's own examples.

    Step k uses the examples at positions k b .. k b + b - 1 of the client's own, counted cyclically, with
    b the smaller of the batch size and the client's number of examples: in order, so that the vector is
    a function of the client's data and public state alone.

    Attributes:
        steps: K, at least 1.
        learning_rate: the local step size.
        batch_size: examples a step, or None for all of the client's.
    """

    steps: int
    learning_rate: float
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _check.integer("local steps", self.steps, minimum=1)
        _check.finite_positive("local learning rate", self.learning_rate)
        if self.batch_size is not None:
            _check.integer("local batch size", self.batch_size, minimum=1)


Work = OneGradient | LocalSteps


def clipped_sum(
    work: Work,
    task: Task,
    query: Query,
    x: Tensor,
    y: Tensor,
    owner: Tensor | None = None,
    units: int | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, ...]:
    """The query's bounded sums over the clients' vectors.

    Args:
        work: what a client computes at each of the query's points.
        task: the model and its loss.
        query: the points (d,) and the blocks.
        x, y: the clients' examples (n, ...) and labels (n, ...), on the points' device.
        owner: int64 (n,), ascending: which client, 0 .. units - 1, holds each example. None makes each
            example a unit of its own.
        units: the number of clients; those without examples add zero to sums and -1/2 to bits.
        chunk: the most clients computed at once; None chooses by size. It bounds memory and changes
            the result by float rounding only.

    Returns:
        for each block a tensor: (d,) for a SumBlock, () for a BitBlock. A client whose vector is not
        finite adds as one without examples.

    Raises:
        ArgumentError: owner is not ascending, or names a client outside 0 .. units - 1.
    """
    tune_allocator()
    sizes = _sizes(x, owner, units)
    held = sizes[sizes > 0]
    if isinstance(work, OneGradient) and bool((held == 1).all()):
        totals = sum_gradients(task, query, x, y, chunk)
    else:
        raise NotImplementedError
    return _without_examples(totals, query, int((sizes == 0).sum()))


def _sizes(x: Tensor, owner: Tensor | None, units: int | None) -> Tensor:
    """How many examples each client holds, int64 (units,) on the CPU."""
    if owner is None:
        return torch.ones(len(x) if units is None else units, dtype=torch.int64)
    owner = owner.cpu()
    count = int(owner[-1]) + 1 if units is None and len(owner) else units or 0
    ordered = len(owner) < 2 or bool((owner[1:] >= owner[:-1]).all())
    if len(owner) != len(x) or not ordered or (len(owner) and not 0 <= owner[0] <= owner[-1] < count):
        raise _check.fail("owner", "...", "ascend within the clients and be as long as the examples")
    return torch.bincount(owner, minlength=count)


def _without_examples(totals: tuple[Tensor, ...], query: Query, clients: int) -> tuple[Tensor, ...]:
    """The totals with clients added that hold nothing: -1/2 to each bit, zero to each sum."""
    return tuple(
        total - 0.5 * clients if isinstance(block, BitBlock) else total
        for total, block in zip(totals, query.blocks, strict=True)
    )


@functools.cache
def tune_allocator() -> bool:
    """Keep freed memory for the next round, once a process; whether this could be done.

    glibc maps and unmaps each large tensor anew, and touching fresh pages costs more than the arithmetic
    of per-example gradients. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_threshold = -1, -3
    return bool(mallopt(mmap_threshold, 2**25)) and bool(mallopt(trim_threshold, 2**30))
