"""What exporters share: the numbers and settings that a tracker gets, and the import of its package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fedpriv.runs.callbacks import Callback
from fedpriv.runs.result import MissingDependencyError, Result
from fedpriv.runs.status import Status

_POSITION = ("round", "releases")  # say where a record is, and are no measurements


class Exporter(Callback):
    """Hands scores and ``epsilon`` of evaluations to a tracker, and ``epsilon_spent`` after each round."""

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Hand over these numbers of a round."""
        raise NotImplementedError

    def on_round(self, status: Status) -> None:
        """The epsilon that is spent by now, which is an upper bound of it."""
        if status.spent is not None:
            self.write({"epsilon_spent": status.spent}, status.round)

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """The scores on the public test set, and epsilon."""
        self.write(numbers(record), record["round"])


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The measurements of an evaluation; a name has letters that all trackers take.

    >>> numbers({"round": 2, "accuracy": 0.5, "recall@5": 0.1, "data": "public test set", "epsilon": None})
    {'accuracy': 0.5, 'recall_at_5': 0.1}
    """
    return {
        key.replace("@", "_at_"): float(value)
        for key, value in record.items()
        if key not in _POSITION and isinstance(value, int | float) and not isinstance(value, bool)
    }


def parameters(result: Result) -> dict[str, str]:
    """The settings of the run, how it stopped, and the mark of a run that is not private, as text."""
    table = {key: str(value) for key, value in result.config.table().items()}
    return {**table, "stopped": str(result.stopped), "remark": result.report["remark"] or "none"}


def require(name: str, extra: str) -> Any:
    """The module of a package that is optional. Raises MissingDependencyError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        text = (
            f"{name} needs {extra}, which is not installed; install it with: pip install 'fedpriv[{extra}]'"
        )
        if package == extra:
            text = f"{extra} is not installed; install it with: pip install 'fedpriv[{extra}]'"
        raise MissingDependencyError(text) from None
