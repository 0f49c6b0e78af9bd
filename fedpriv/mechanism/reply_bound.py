"""The largest norm that an honest reply's sums can have, from public numbers.

A server that adds replies can check them by nothing but their length. One reply with norm 1e30 destroys a
model, and noise and clipping do not help: both happen before the reply is sent.

Derivation, for one block of sensitivity S, dimension d (1 for an indicator), n units in c shards, and party
noise of std s (0 if the parties add none):

1. Each unit adds a vector of norm at most S, so that n units add at most n S. This holds for every divisor
   and for every number of terms, since S = sum |w| C, and for terms that are clipped by layers, since L parts
   of norm C / sqrt(L) have norm C together.
2. The noise of k parties is sigma Z for a standard normal Z in R^d and sigma = s sqrt(k). The norm is
   1-Lipschitz, and E norm(Z) <= sqrt(d). Gaussian concentration gives
   P(norm(Z) > sqrt(d) + t) <= exp(-t^2 / 2), which is 2**-64 for t = sqrt(128 ln 2) = 9.42. A run with 2**30
   honest replies loses one of them with a chance of 2**-34.
3. Exact noise is enlarged by (1 + MARGIN + step sqrt(d) / S), and rounds each shard's sum and noise to its
   step: half a step for each in each coordinate. Together that is at most c step sqrt(d). Other sums are
   rounded to the grid of :mod:`fedpriv.mechanism.grid`, by at most c (S 2**-31 + s 2**-25) sqrt(d); the
   first summand is below c step sqrt(d), and the second is within the allowance of item 4.
4. A sum of N float32 vectors in any order is off by at most N 2**-24 times the sum of their norms. That is
   1/16 for batches of N = 2**20 units and places, more than any batch has. The rounding of a unit's clip
   factor and that of float32 noise are far smaller.

So norm <= (1 + 1/16) (n S + sigma' (sqrt(d) + t)) + c step sqrt(d), where sigma' is the enlarged sigma. A
hostile node can still use all of the bound: the clip norms of its n units in one direction, and the length of
its noise in place of noise. The bound limits its influence and does not remove it.

>>> import torch
>>> from fedpriv.mechanism.query import SumBlock, Term
>>> query = Query((torch.zeros(4),), (SumBlock((Term(clip_norm=2.0),)),))
>>> [round(norm, 3) for norm in largest_norms(query, units=10, parties=(10,))]
[21.25]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.query import Block, Query, SumBlock
from fedpriv.mechanism.release import MARGIN

_CHANCE_BITS = 64  # the noise of an honest reply passes the bound with a chance of at most 2**-64
_TAIL = math.sqrt(2 * _CHANCE_BITS * math.log(2))
_ROUNDING = 1 / 16


def largest_norms(
    query: Query, units: int, parties: Sequence[int], party_stds: Sequence[float] | None = None
) -> tuple[float, ...]:
    """The Euclidean norm of each block's sum that an honest reply exceeds with a chance of 2**-64 at most.

    Args:
        query: the query with its blocks; vectors are of shape (d,).
        units: n, the number of units in the request.
        parties: the number of parties of each of the request's shards.
        party_stds: the noise std of one party for each block; None if the parties add none.

    Returns:
        for each block the bound, in the units of its sum; infinity for a block without a clip norm.
    """
    stds = party_stds or (0.0,) * len(query.blocks)
    dimensions = [query.dimension if isinstance(block, SumBlock) else 1 for block in query.blocks]
    return tuple(
        _largest_norm(block, dimension, units, parties, std)
        for block, dimension, std in zip(query.blocks, dimensions, stds, strict=True)
    )


def _largest_norm(block: Block, dimension: int, units: int, parties: Sequence[int], std: float) -> float:
    if math.isinf(block.sensitivity):
        return math.inf
    root = math.sqrt(dimension)
    step = noise_step(block, std)
    enlarged = 1 + MARGIN + step * root / block.sensitivity
    noise = enlarged * std * math.sqrt(sum(parties)) * (root + _TAIL)
    return (1 + _ROUNDING) * (units * block.sensitivity + noise) + len(parties) * step * root
