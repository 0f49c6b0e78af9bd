"""A small run for tests: its configuration, and synthetic files in MNIST's format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpriv.config.schema import Config
from fedpriv.data import idx
from fedpriv.data.datasets.mnist import IDX_FILES

SMALL: dict[str, object] = {
    "model": "logistic",
    "clients": 400,
    "sampling-rate": 0.1,
    "rounds": 6,
    "learning-rate": 1.0,
    "evaluate-every": 2,
    "engine": "in-process",
}

# A run at the client level, of silos with 60 examples each.
SMALL_SILOS: dict[str, object] = {
    "level": "client",
    "unit": "example",
    "examples_per_client": 60,
    "optimizer": "dp-sgd",
    "momentum": 0.5,
    "learning_rate": 0.2,
    "epsilon": 8.0,
    "delta": 1e-4,
    "seed": 5,
}


def small(**changes: object) -> Config:
    """The small configuration with these keys (underscores for hyphens) changed."""
    return Config.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def write_mnist(folder: Path, seed: int, train: int = 400, test: int = 50) -> Path:
    """A data folder whose MNIST is random images and labels; returns ``folder``."""
    generator = np.random.Generator(np.random.Philox(seed))
    where = folder / "mnist"
    where.mkdir(parents=True)
    for name in IDX_FILES:
        count = train if name.startswith("train") else test
        shape = (count, 28, 28) if "images" in name else (count,)
        high = 256 if "images" in name else 10
        idx.write(where / name, generator.integers(0, high, shape).astype(np.uint8))
    return folder
