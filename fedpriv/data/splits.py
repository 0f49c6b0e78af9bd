"""Fixed public train/test splits and orders for data sets that are published without one.

>>> train, test = split(10)
>>> train.tolist(), test.tolist()
([4, 8, 1, 3, 2, 7, 6, 0], [5, 9])
"""

from __future__ import annotations

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.keyed import hashed
from fedpriv.data.source import Indices

# The order is part of a data set's definition: another seed would define another data set.
SEED = 0


def shuffled(count: int) -> Indices:
    """The rows 0..count-1 in a pseudo-random order.

    Rows are sorted by a 64-bit hash of their number (ties in the order of the rows). The order is the same on
    every machine and does not depend on the rows' content.
    """
    order: Indices = np.argsort(hashed(SEED, np.arange(count)), kind="stable")
    return order


def split(count: int) -> tuple[Indices, Indices]:
    """(training rows, test rows), both shuffled. The training rows are 4/5 of ``count``, rounded down."""
    order = shuffled(count)
    return order[: count * 4 // 5], order[count * 4 // 5 :]
