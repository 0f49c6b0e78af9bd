"""Norms that neither overflow nor underflow and that are accurate, as cheaply as the values allow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpriv.clipping import synchronisation

SMALLEST = 1e-14  # squares of smaller norms underflow in float32
UNSCALED = 1e3  # norms between it and its inverse need no scaling before their entries are squared
_RUN = 2**8  # squares that are added in the entries' precision, before float64 adds these sums


def norms_of(part: Tensor) -> Tensor:
    """Norms (n,) of the parts (n, ...), in the parts' precision."""
    norms: Tensor = torch.linalg.vector_norm(part.flatten(1), dim=1)
    return norms


def safe_norms(part: Tensor) -> Tensor:
    """Norms along the last axis, float64 (...), that neither overflow nor underflow."""
    if synchronisation.readable(part):
        lengths = accurate_norms(part)
        if within(lengths, SMALLEST, math.inf):
            return lengths
    norms: Tensor = torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64)
    return norms


def within(norms: Tensor, least: float, most: float) -> bool:
    """Whether all norms are strictly between the two bounds; False if one is NaN."""
    if not norms.numel():
        return True
    smallest, largest = norms.aminmax()
    return float(smallest) > least and float(largest) < most


def accurate_norms(rows: Tensor) -> Tensor:
    """Norms along the last axis, float64 (...), accurate to the rounding of the entries.

    Squares are added in short runs, and float64 adds the runs: one long float32 sum would be less accurate.
    """
    rows, length = rows.contiguous(), rows.shape[-1]
    count = max(1, -(-length // _RUN))
    each, left = divmod(length, count)
    if count == 1:
        lone: Tensor = torch.linalg.vector_norm(rows, dim=-1)
        return lone.double()
    runs = rows[..., : length - left].reshape(*rows.shape[:-1], count, each)
    norms: Tensor = torch.linalg.vector_norm(runs, dim=-1)
    norms = torch.linalg.vector_norm(norms, dim=-1, dtype=torch.float64)
    return torch.hypot(norms, accurate_norms(rows[..., length - left :])) if left else norms


def squared(part: Tensor) -> tuple[Tensor, Tensor]:
    """A scale (n, groups), float64, and the squares of the parts (n, groups, 1, k) divided by their scale.

    The scale is the part's norm, or 1 where all norms are close to 1 (:data:`UNSCALED`). It is NaN where the
    norm is too small or too large to divide by.
    """
    norms = safe_norms(part)
    if synchronisation.readable(part) and within(norms, 1 / UNSCALED, UNSCALED):
        return torch.ones_like(norms[..., 0]), part.square()
    safe = (norms == 0) | ((norms > SMALLEST) & (norms < 1 / SMALLEST))
    scale = torch.where(safe, norms, math.nan)
    return scale[..., 0], (part / norms.clamp(min=SMALLEST).to(part.dtype)[..., None]).square_()
