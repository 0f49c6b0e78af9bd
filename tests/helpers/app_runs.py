"""Runs of the ordinary app, held against simulations of the same federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord

from fedpriv.accounting.record import parse
from fedpriv.config.builders import initial_params, make_source, make_task
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from helpers.ordinary_app import FEDERATION

SETTINGS: dict[str, Any] = {
    "sampling_rate": 0.3,
    "rounds": 4,
    "epsilon": 8.0,
    "clip_norm": 0.5,
    "seed": 5,
    "optimizer": "dp-sgd",
}
# What some optimizers need besides.
NEEDS: dict[str, dict[str, Any]] = {
    "dp-gd": {"sampler": "everyone", "sampling_rate": 1.0},
    "adaptive-adp-sgd": {"clip_norm": 1.0},
}


def initial(seed: int = 5) -> tuple[ArrayRecord, torch.Tensor]:
    """The arrays with which a simulation with this seed starts."""
    config = Config.parse({**FEDERATION, "seed": seed})
    task = make_task(config, make_source(config))
    params = initial_params(task, make_plan(config).key())
    return ArrayRecord(task.layout.split(params)), params


def vector(arrays: ArrayRecord) -> torch.Tensor:
    """All arrays as one vector."""
    return torch.cat([torch.from_numpy(array.numpy()).reshape(-1) for array in arrays.values()])


def events(folder: Path) -> Any:
    """The events of the ledger in a run's folder."""
    path = folder / "ledger.jsonl"
    return parse(path.read_bytes(), str(path)).events
