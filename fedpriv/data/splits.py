"""Public splits of data that comes without one: the same for everybody, fixed once and for all.

>>> train, test = split(10)
>>> train.tolist(), test.tolist()
([4, 8, 1, 3, 2, 7, 6, 0], [5, 9])
"""

from __future__ import annotations

import numpy as np

from fedpriv.data.keyed import hashed
from fedpriv.data.source import Indices

# The split is part of a data set's definition: another seed is another data set.
SEED = 0


def split(count: int) -> tuple[Indices, Indices]:
    """The training rows, four fifths of ``count`` rounded down, and the test rows, both in random order.

    A row's place is decided by a hash of its number (64 bits, ties in the order of the rows), so it is the
    same on every machine; which rows are trained on says nothing about what they hold.
    """
    order = np.argsort(hashed(SEED, np.arange(count)), kind="stable")
    return order[: count * 4 // 5], order[count * 4 // 5 :]
