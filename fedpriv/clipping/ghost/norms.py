"""Norms that neither overflow nor vanish nor lose to rounding, as cheaply as the numbers at hand allow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpriv.clipping import synchronisation

SMALLEST = 1e-14  # norms below it are not had from squares in the factors' own precision
PLAIN = 1e3  # norms between it and its inverse need no scaling before their entries are squared
_RUN = 2**8  # entries whose squares are added up before float64 takes their sum


def norms_of(part: Tensor) -> Tensor:
    """Norms (n,) of the parts (n, ...), in their own precision."""
    norms: Tensor = torch.linalg.vector_norm(part.flatten(1), dim=1)
    return norms


def lengths_of(part: Tensor) -> Tensor:
    """Norms along the last axis, which neither overflow nor vanish; float64."""
    if synchronisation.at_hand(part):
        lengths = in_runs(part)
        if within(lengths, SMALLEST, math.inf):
            return lengths
    norms: Tensor = torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64)
    return norms


def within(norms: Tensor, least: float, most: float) -> bool:
    """Whether all norms lie strictly between the two; a NaN does not."""
    if not norms.numel():
        return True
    smallest, largest = norms.aminmax()
    return float(smallest) > least and float(largest) < most


def in_runs(rows: Tensor) -> Tensor:
    """Norms along the last axis, float64 (...), to the entries' own rounding: of short runs, one after the
    other in memory, which torch adds up in several sums at once; added up in one, their rounding would show.
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
    return torch.hypot(norms, in_runs(rows[..., length - left :])) if left else norms


def squared(part: Tensor) -> tuple[Tensor, Tensor]:
    """A scale (n, groups), float64, and the squares of the parts (n, groups, 1, k) divided by it.

    The scale is the part's norm, or 1 where all norms are near enough to that. It is NaN where the norm is
    too small or too large to divide by; a part of zeros stays one.
    """
    norms = lengths_of(part)
    if synchronisation.at_hand(part) and within(norms, 1 / PLAIN, PLAIN):
        return torch.ones_like(norms[..., 0]), part.square()
    safe = (norms == 0) | ((norms > SMALLEST) & (norms < 1 / SMALLEST))
    tell = torch.where(safe, norms, math.nan)
    return tell[..., 0], (part / norms.clamp(min=SMALLEST).to(part.dtype)[..., None]).square_()
