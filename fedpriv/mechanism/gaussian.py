"""Standard normal numbers from parallel streams, generated before they are needed.

Each piece of 2**16 entries has its own stream (SFC64, seeded by a hash of the key, the purpose, the indices,
the block and the piece), so the result does not depend on the number of threads or their order. NumPy
releases the interpreter's lock while it generates, so other threads can compute.

>>> key = Key.from_seed(1)
>>> draws = Normals(key, ("noise", 3), [torch.zeros(5), torch.zeros(())])
>>> [tuple(z.shape) for z in draws.take()]
[(5,), ()]
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv._internal import hardware
from fedpriv.rng import Key

T = TypeVar("T")

PIECE = 2**16  # entries of one stream

Label = tuple[str, *tuple[int, ...]]


class Normals:
    """Independent standard normal numbers in the shapes, dtypes and devices of given tensors.

    Attributes:
        label: the purpose of the numbers and its indices.
    """

    def __init__(self, key: Key, label: Label, like: Sequence[Tensor]) -> None:
        """Start the threads.

        Args:
            key: the key of the streams.
            label: the purpose and its indices; do not use a label twice with one key.
            like: tensors of the wanted shapes, dtypes and devices. The numbers are generated in float64 for
                float64, otherwise in float32.
        """
        self.label = label
        self._like = [(tuple(t.shape), t.dtype, t.device) for t in like]
        self._parts: list[tuple[np.ndarray[Any, Any], list[Future[None]]]] = []
        for block, tensor in enumerate(like):
            wide = tensor.dtype == torch.float64
            out = np.empty(math.prod(tensor.shape), np.float64 if wide else np.float32)
            jobs = [submit(_fill, key, label, block, piece, out) for piece, _ in enumerate(pieces(len(out)))]
            self._parts.append((out, jobs))

    def take(self) -> tuple[Tensor, ...]:
        """Wait for the numbers and return them."""
        tensors = []
        for (out, jobs), (shape, dtype, device) in zip(self._parts, self._like, strict=True):
            for job in jobs:
                job.result()
            tensors.append(torch.from_numpy(out).view(shape).to(device, dtype))
        return tuple(tensors)


def _fill(key: Key, label: Label, block: int, piece: int, out: np.ndarray[Any, Any]) -> None:
    """Generate one piece of a block in place."""
    own = out[piece * PIECE : (piece + 1) * PIECE]
    key.stream(label[0], *label[1:], block, piece).standard_normal(dtype=own.dtype, out=own)


def pieces(size: int) -> list[int]:
    """The sizes of the pieces of ``size`` entries.

    >>> pieces(PIECE + 3)
    [65536, 3]
    """
    return [min(PIECE, size - start) for start in range(0, size, PIECE)]


def submit(job: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start a job in this process's thread pool for noise."""
    return _threads(os.getpid()).submit(job, *arguments)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The process's thread pool; a forked process has none of its parent's threads and starts its own."""
    return ThreadPoolExecutor(hardware.usable(), thread_name_prefix=f"noise-{process}")
