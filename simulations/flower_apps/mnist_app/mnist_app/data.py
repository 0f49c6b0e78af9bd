"""MNIST: 60,000 images for the clients, 10,000 for the server's test.

The four files are in the folder ``mnist`` of the folder that the environment variable FEDPRIV_DATA names.
"""

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np


def _read(name: str, header: int) -> np.ndarray:
    path = Path(os.environ.get("FEDPRIV_DATA", ".")) / "mnist" / f"{name}.gz"
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


@cache
def _part(name: str) -> tuple[np.ndarray, np.ndarray]:
    images = _read(f"{name}-images-idx3-ubyte", 16).reshape(-1, 784)
    return (images / 255).astype(np.float32), _read(f"{name}-labels-idx1-ubyte", 8).astype(np.int64)


def client(partition: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of one client."""
    x, y = _part("train")
    return x[partition::partitions], y[partition::partitions]


def test() -> tuple[np.ndarray, np.ndarray]:
    """The server's own images and labels, of no client."""
    return _part("t10k")
