"""Norms that neither overflow nor underflow and that are accurate, as cheaply as the values allow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpriv.clipping import synchronisation

SMALLEST = 1e-14  # squares of smaller norms underflow in float32
_RUN = 2**8  # squares that are added in the entries' precision, before float64 adds these sums


def norms_of(part: Tensor) -> Tensor:
    """Norms (n,) of the parts (n, ...), in the parts' precision."""
    norms: Tensor = torch.linalg.vector_norm(part.flatten(1), dim=1)
    return norms


def safe_norms(part: Tensor) -> Tensor:
    """Norms along the last axis, float64 (...), that neither overflow nor underflow.

    How a norm is computed depends on its own size alone, so that its bits do not depend on other units.
    """
    if synchronisation.readable(part):
        lengths = accurate_norms(part)
        if not lengths.numel():
            return lengths
        least, most = lengths.aminmax()
        if float(least) > SMALLEST and float(most) < math.inf:
            return lengths
        ordinary = (lengths > SMALLEST) & (lengths < math.inf)
        return torch.where(ordinary, lengths, _wide_norms(part))
    return _wide_norms(part)


def _wide_norms(part: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64)
    return norms


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
