"""Bounded sums on a common grid: added in any order, by any number of nodes, to the same last bit.

Float addition depends on its order. Parts that are whole multiples of one power of two, and whose sum stays
below 2**53 of it, add without any rounding, so their order cannot show. The step of the grid is 2**-31 of the
most that one party can add to a block, which leaves room for 2**21 parties (beyond them the last bit may
depend on the order again); rounding to it changes a part by less than float32's own rounding of it did.

>>> from fedpriv.mechanism.query import SumBlock

>>> from fedpriv.mechanism.query import Term
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

import torch
from torch import Tensor

from fedpriv.mechanism.query import Block

_BITS = 31  # of the grid below one party's most
_TAIL = 64  # stds that a party's noise can reach at most: never
_NOISE_BITS = 26  # of what is released below a party's most, or this much of the std, where that is more
_STD_SHARE = 2.0**-8


def on_grid(part: Tensor, block: Block, party_std: float) -> Tensor:
    """A part of a block's sum, rounded to the block's grid; as it is where no clip bounds the block.

    Args:
        part: the sum over some units, with any noise of theirs.
        party_std: the std of the noise that one party adds to this block; 0 where it adds none.

    Returns:
        a new float64 tensor of the part's shape.
    """
    most = block.sensitivity + _TAIL * party_std
    return rounded(part, _step(most, _BITS)) if 0 < most < math.inf else part.double()


def noise_step(block: Block, std: float) -> float:
    """The step, a power of two, of what is released with exact noise
    (:mod:`fedpriv.mechanism.rounded_gaussian`).

    Args:
        std: that of the noise of whoever adds it first, the server or one party, finite.
    """
    return _step(max(block.sensitivity, _STD_SHARE * std), _NOISE_BITS)


def _step(most: float, bits: int) -> float:
    return 2.0 ** (math.ceil(math.log2(most)) - bits)


def rounded(part: Tensor, grid: float) -> Tensor:
    """The nearest multiples of ``grid``, in a new float64 tensor."""
    # Adding 1.5 * 2**52 steps leaves float64 no bits below one step, and rounds to the nearest.
    shift = 1.5 * 2.0**52 * grid
    return part.to(torch.float64, copy=True).add_(shift).sub_(shift)
