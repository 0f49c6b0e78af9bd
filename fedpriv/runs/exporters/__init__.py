"""Callbacks that hand a run's public values to experiment trackers. Each needs a package that is optional."""

from __future__ import annotations

from fedpriv.runs.exporters.mlflow import MLflow
from fedpriv.runs.exporters.tensorboard import TensorBoard
from fedpriv.runs.exporters.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "WandB"]
