"""A user's own data set, which a run names as ``helpers.own_data:source``."""

from __future__ import annotations

import numpy as np

from fedpriv.data import Arrays

SIZE, SHAPE, CLASSES = 400, (12,), 3


def source() -> Arrays:
    """Random numbers with random labels, the same in every process."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(SIZE + 60, *SHAPE)).astype(np.float32)
    y = generator.integers(CLASSES, size=SIZE + 60)
    return Arrays("own", x[:SIZE], y[:SIZE], x[SIZE:], y[SIZE:], CLASSES)
