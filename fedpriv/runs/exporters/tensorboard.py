"""TensorBoard events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpriv.runs.exporters.base import Exporter, parameters, require
from fedpriv.runs.result import Result


class TensorBoard(Exporter):
    """Writes TensorBoard events; ``tensorboard --logdir FOLDER`` shows them.

    Args:
        folder: where the event files go.

    Raises MissingDependencyError where tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        require("tensorboard", "tensorboard")
        writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """As scalars."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def on_end(self, result: Result) -> None:
        """The settings as a text; the file is closed."""
        rows = [f"| {key} | {value} |" for key, value in parameters(result).items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
        self._writer.close()
