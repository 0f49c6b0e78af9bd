"""Displacement fields and tangents for InfiniteMNIST, computed if the authors' binary files are missing.

Everything up to the last multiplication is integer arithmetic, or exact float32 arithmetic on integers below
2^24. Therefore an index gives the same image, byte for byte, on every machine and device and in every batch.

Loosli, Canu & Bottou 2007, "Training invariant support vector machines using selective sampling", use
smoothed random fields and smoothed derivatives. They do not publish the parameters of the smoothing. The
constants below
were chosen by eye: they deform digits visibly and leave them legible.

>>> f = fields(2)
>>> tuple(f.shape), f.dtype
((2, 784), torch.float32)
>>> edge = torch.zeros(1, 28, 28, dtype=torch.uint8); edge[0, :, 14:] = 200
>>> tangents(edge)[0, 0].view(28, 28)[14, 12:16].tolist()   # d/dx across the edge, none along it
[0.0, 100.0, 100.0, 0.0]
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor


SIDE = 28
FIELDS = 1522
# The computed fields are part of the data set's definition: another seed would define another data set.
FIELD_SEED = 20070101
AMPLITUDE = 1.25  # standard deviation of a displacement, in pixels
_BOX, _PASSES = 9, 3  # three box filters of width 9: nearly Gaussian, of std sqrt(20) = 4.5 pixels


def _box(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Sums over windows of ``_BOX`` along the last axis; (..., n) to (..., n - _BOX + 1)."""
    total = np.cumsum(values, axis=-1, dtype=np.int32)
    total[..., _BOX:] -= total[..., :-_BOX].copy()
    return total[..., _BOX - 1 :]


@functools.lru_cache(maxsize=2)
def fields(count: int = FIELDS) -> Tensor:
    """Fixed, smooth, pseudo-random displacements (count, 784) in pixels, float32.

    Field k does not depend on ``count``. The result is cached and shared: do not write to it.
    """
    canvas = SIDE + _PASSES * (_BOX - 1)
    pixels = count * canvas * canvas
    # Raw bits: NumPy guarantees that they never change, but not that a generator's draws do not.
    raw = np.random.Philox(key=FIELD_SEED).random_raw(-(-pixels // 8)).astype("<u8")
    noise = raw.view(np.uint8)[:pixels].reshape(count, canvas, canvas).astype(np.int32) * 2 - 255
    for _ in range(_PASSES):
        noise = _box(_box(noise).swapaxes(1, 2)).swapaxes(1, 2)
    weights = np.ones(1)
    for _ in range(_PASSES):
        weights = np.convolve(weights, np.ones(_BOX))
    spread = np.sqrt((256.0**2 - 1) / 3) * float(np.sum(weights**2))
    scaled = noise.astype(np.float32) * np.float32(AMPLITUDE / spread)
    return torch.from_numpy(np.ascontiguousarray(scaled.reshape(count, SIDE * SIDE)))


_PITCH = SIDE + 2  # a row and a gap of zeros, so that a flat shift by one never reads a neighbouring row


def tangents(images: Tensor) -> Tensor:
    """Smoothed derivatives (n, 2, 784) in grey levels per pixel, float32, of byte images (n, 28, 28).

    Plane 0 is d/dx (columns), plane 1 is d/dy (rows): central differences along one axis, weights 1 2 1
    across it (Sobel's operator divided by 8), zeros outside the image. The arithmetic is exact, so the result
    does not depend on the device or the batch.
    """
    n = images.shape[0]
    pad = images.new_zeros((n, (SIDE + 2) * _PITCH + 2), dtype=torch.int16)
    rows = pad[:, 1 : 1 + (SIDE + 2) * _PITCH].view(n, SIDE + 2, _PITCH)
    rows[:, 1:-1, 1:-1] = images
    left, centre, right = pad[:, :-2], pad[:, 1:-1], pad[:, 2:]
    slope, blur = right - left, torch.add(left + right, centre, alpha=2)
    body = SIDE * _PITCH
    above, here, below = slice(0, body), slice(_PITCH, _PITCH + body), slice(2 * _PITCH, None)
    dx = torch.add(slope[:, above] + slope[:, below], slope[:, here], alpha=2)
    dy = blur[:, below] - blur[:, above]
    both = torch.stack((dx, dy), 1).view(n, 2, SIDE, _PITCH)[..., 1:-1]
    return both.to(torch.float32, memory_format=torch.contiguous_format).mul_(0.125).flatten(2)
