"""Bounded sums on a common grid: the total is the same, bit for bit, in any order and on any number of nodes.

Float addition depends on its order. But integer multiples of one power of two add without rounding while
their sum is below 2**53 multiples. The step of the grid is 2**-31 of the largest contribution of one party to
a block, which leaves room for 2**21 parties; with more parties the last bit may depend on the order again.
Rounding to the grid changes a sum by less than float32 has already rounded it.

>>> import torch
>>> from fedpriv.mechanism.query import SumBlock, Term
>>> block = SumBlock((Term(clip_norm=1.0),))
>>> parts = [torch.tensor([x], dtype=torch.float64) for x in (0.1, 0.2, 0.3)]
>>> bool(sum(parts) == sum(parts[::-1]))
False
>>> parts = [on_grid(part, block, 0.0) for part in parts]
>>> bool(sum(parts) == sum(parts[::-1]))
True
"""

from __future__ import annotations

import math

from torch import Tensor

from fedpriv.mechanism.query import Block

_BITS = 31  # binary digits of the grid below one party's largest contribution
_TAIL = 64  # a party's noise never exceeds this number of stds
# Binary digits of an exact release below one party's largest contribution, or below this share of the noise
# std if that is larger.
_NOISE_BITS, _STD_SHARE = 26, 2.0**-8


def on_grid(part: Tensor, block: Block, party_std: float) -> Tensor:
    """A part of a block's sum, rounded to the block's grid; unchanged if no clip norm bounds the block.

    Args:
        part: the sum over some units, with their noise if they add any.
        party_std: the std of the noise that one party adds to this block; 0 if it adds none.

    Returns:
        a new float64 tensor of the part's shape.
    """
    most = block.sensitivity + _TAIL * party_std
    return rounded(part, _step(most, _BITS)) if 0 < most < math.inf else part.double()


def noise_step(block: Block, std: float) -> float:
    """The step, a power of two, of a release with exact noise (:mod:`fedpriv.mechanism.rounded_gaussian`).

    Args:
        std: the std of the noise of one party, or of the server if it alone adds noise; finite.
    """
    return _step(max(block.sensitivity, _STD_SHARE * std), _NOISE_BITS)


def most_steps(noise_multiplier: float) -> float:
    """More steps than a noise std of exact noise can have, with what compensates for rounding."""
    return 1.01 * min(noise_multiplier, 1 / _STD_SHARE) * 2.0**_NOISE_BITS


def _step(most: float, bits: int) -> float:
    return 2.0 ** (math.ceil(math.log2(most)) - bits)


def rounded(part: Tensor, grid: float) -> Tensor:
    """The nearest multiples of ``grid``, in a new float64 tensor."""
    # At 1.5 * 2**52 steps float64 has no digits below one step, so the addition rounds to the nearest step.
    shift = 1.5 * 2.0**52 * grid
    return part.double().add(shift).sub_(shift)
