"""The handwritten digits that come with scikit-learn: 1,500 for the clients, 297 for the server's test."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

TRAINING = 1500


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    return load_digits(return_X_y=True)


def client(partition: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of one client."""
    x, y = _digits()
    own = slice(partition, TRAINING, partitions)
    return x[own] / 16, y[own]


def test() -> tuple[np.ndarray, np.ndarray]:
    """The server's own images and labels, of no client."""
    x, y = _digits()
    return x[TRAINING:] / 16, y[TRAINING:]
