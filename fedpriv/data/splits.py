"""Public splits and orders of data that comes without one: the same for everybody, fixed once and for all.

>>> train, test = split(10)
>>> train.tolist(), test.tolist()
([4, 8, 1, 3, 2, 7, 6, 0], [5, 9])
"""

from __future__ import annotations

import numpy as np

from fedpriv.data.keyed import hashed
from fedpriv.data.source import Indices

# The order is part of a data set's definition: another seed is another data set.
SEED = 0


def shuffled(count: int) -> Indices:
    """The rows 0..count-1 in a random order.

    A row's place is decided by a hash of its number (64 bits, ties in the order of the rows), so it is the
    same on every machine, and says nothing about what the row holds.
    """
    order: Indices = np.argsort(hashed(SEED, np.arange(count)), kind="stable")
    return order


def split(count: int) -> tuple[Indices, Indices]:
    """The training rows, four fifths of ``count`` rounded down, and the test rows, both shuffled."""
    order = shuffled(count)
    return order[: count * 4 // 5], order[count * 4 // 5 :]
