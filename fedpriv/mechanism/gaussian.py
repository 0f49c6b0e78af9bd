"""Standard normal draws in parallel streams, started before they are needed.

A draw is cut into pieces of 2**16 entries, each from a stream of its own (SFC64, seeded by a hash of the key,
the purpose, the indices, the block and the piece), so that the result depends on neither the number of
threads nor their order, and threads draw while others compute: numpy lets go of the interpreter meanwhile.

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
    """Independent standard normals in the shapes, dtypes and devices of given tensors.

    Attributes:
        label: what the draws are for: the purpose and its indices.
    """

    def __init__(self, key: Key, label: Label, like: Sequence[Tensor]) -> None:
        """Start drawing.

        Args:
            key: where the streams come from.
            label: the purpose and its indices; no two draws of a key share one.
            like: tensors of the shapes, dtypes and devices wanted. float64 is drawn for float64, else
                float32.
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
        """The draws, once they are all there."""
        tensors = []
        for (out, jobs), (shape, dtype, device) in zip(self._parts, self._like, strict=True):
            for job in jobs:
                job.result()
            tensors.append(torch.from_numpy(out).view(shape).to(device, dtype))
        return tuple(tensors)


def _fill(key: Key, label: Label, block: int, piece: int, out: np.ndarray[Any, Any]) -> None:
    """Draw one piece of a block in place."""
    own = out[piece * PIECE : (piece + 1) * PIECE]
    key.stream(label[0], *label[1:], block, piece).standard_normal(dtype=own.dtype, out=own)


def pieces(size: int) -> list[int]:
    """The sizes of the pieces of a draw of ``size`` entries.

    >>> pieces(PIECE + 3)
    [65536, 3]
    """
    return [min(PIECE, size - start) for start in range(0, size, PIECE)]


def submit(job: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start a job on the process's drawing threads."""
    return _threads(os.getpid()).submit(job, *arguments)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The process's drawing threads; a forked process has none of its parent's, and starts its own."""
    return ThreadPoolExecutor(hardware.usable(), thread_name_prefix=f"noise-{process}")
