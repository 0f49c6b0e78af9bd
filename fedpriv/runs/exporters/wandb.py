"""A run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.federated.stop_reason import StopReason
from fedpriv.runs.exporters.base import Exporter, parameters, require
from fedpriv.runs.result import Result


class WandB(Exporter):
    """Logs to a new run of Weights & Biases.

    Args:
        project: its name.
        **options: of ``wandb.init``, such as ``mode="offline"``, ``dir`` or ``name``.

    Raises MissingDependencyError where wandb is not installed.
    """

    def __init__(self, project: str = "fedpriv", **options: Any) -> None:
        self._run = require("wandb", "wandb").init(project=project, **options)
        self._run.define_metric("*", step_metric="round")

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """As metrics, with the round beside them."""
        self._run.log({**numbers, "round": step})

    def on_end(self, result: Result) -> None:
        """The settings as the run's configuration; the run is closed."""
        self._run.config.update(parameters(result))
        self._run.finish(exit_code=1 if result.stopped == StopReason.FAILED else 0)
