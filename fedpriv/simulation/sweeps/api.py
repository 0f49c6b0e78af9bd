"""``fedpriv.sweep``, and what it returns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv._internal import validation
from fedpriv.config.schema import Config, values_of_settings
from fedpriv.report import sweep_results
from fedpriv.report.sweep_results import Ended
from fedpriv.runs.result import Result, as_frame, load_result
from fedpriv.simulation.sweeps import driver, plans, tuning
from fedpriv.simulation.sweeps.plans import Sweep

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_SHOWN = 60  # rows of a table that a notebook shows


@dataclass(frozen=True, repr=False, eq=False)
class SweepResult:
    """The outcomes of a sweep.

    Attributes:
        folder: where its cells, ``results.csv``, ``sweep.png`` and ``sweep.svg`` are; of a sweep that ended
            while its settings were tuned, those of the search.
        sweep: its definition, and its cells with their plans.
        failed: why cells failed, by name.
        interrupted: whether it was interrupted; the same call continues it.
        ended: the cells that have ended, in the order of the grid.
    """

    folder: Path
    sweep: Sweep
    failed: Mapping[str, str]
    interrupted: bool
    ended: tuple[Ended, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of results.csv: one for each cell and evaluation."""
        return sweep_results.rows(self.ended, self.sweep.tried)

    def __getitem__(self, cell: str) -> Result:
        """The result of a cell. Raises ArgumentError where it has not ended, KeyError where there is none."""
        if cell not in self.sweep.plans:
            raise KeyError(cell)
        return load_result(self.folder / cell)

    def plot(self) -> Figure:
        """A matplotlib figure of the last scores against the budgets; a notebook shows it.

        Raises ArgumentError where no cell has ended.
        """
        if not self.ended:
            raise validation.fail("folder", str(self.folder), "hold a cell that has ended")
        return driver.draw(self.sweep, self.ended)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a table. Raises MissingDependencyError where pandas is not installed."""
        return as_frame(self.rows, "")

    def __repr__(self) -> str:
        return f"SweepResult({self._sentence()})"

    def _repr_html_(self) -> str:
        last = [sweep_results.rows([cell], self.sweep.tried)[-1] for cell in self.ended[:_SHOWN]]
        keys = list(self.rows[0]) if self.ended else []
        head = "".join(f"<th>{escape(key)}</th>" for key in keys)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_text(row.get(key)))}</td>" for key in keys) + "</tr>"
            for row in last
        )
        return f"<table><tr>{head}</tr>{body}</table><p>{escape(self._sentence())}</p>"

    def _sentence(self) -> str:
        failed = f"; {len(self.failed)} failed" if self.failed else ""
        ended = f"; {len(self.ended)} ended{failed}"
        return f"{self.sweep.about}{ended}{'; interrupted' if self.interrupted else ''}; in {self.folder}"


def sweep(
    definition: str | Path | Mapping[str, Any],
    /,
    folder: str | Path,
    *,
    jobs: int = 0,
    progress: bool | None = None,
) -> SweepResult:
    """Run a grid of settings, each cell in a process and a folder of its own.

    The same call continues a sweep that was interrupted or killed: cells that have ended are not run again.

    Args:
        definition: a TOML file, or a mapping of the same form: ``settings`` for all cells, ``grid`` with a
            list for each axis, ``override``, a list of tables with ``when`` and settings, and ``tune``, with
            the values among which settings are chosen for each method first.
        folder: the sweep's folder: a new one, or one that holds this sweep.
        jobs: how many cells run side by side; 0: one for each core.
        progress: True prints a line for each cell that ends, False nothing, None prints them on a terminal
            and in a notebook.

    Returns:
        the outcomes. Cells that failed are in ``failed``, and do not stop the others.

    Raises ArgumentError or DataError, before any cell runs, where a cell's settings do not fit.

    >>> import tempfile
    >>> few = {"dataset": "digits", "model": "logistic", "clients": 400, "sampling_rate": 0.1, "rounds": 2}
    >>> found = sweep({"settings": few, "grid": {"seed": [1, 2]}}, tempfile.mkdtemp(), progress=False)
    >>> [row["seed"] for row in found.rows], found.failed
    ([1, 2], {})
    """
    validation.integer("jobs", jobs)
    told = progress or (progress is None and (sys.stderr.isatty() or "ipykernel" in sys.modules))
    with validation.python_names(Config.keys(), values_of_settings()):
        found = tuning.run(plans.prepare(definition), Path(folder), jobs, _Lines() if told else None)
    ended = tuple(driver.read_ended(found.sweep, found.folder))
    return SweepResult(found.folder, found.sweep, found.board.failed, found.interrupted, ended)


class _Lines(driver.Watch):
    """A line on standard error for each cell that ends."""

    def stage(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def ended(self, board: driver.Board, cell: str, text: str) -> None:
        sys.stderr.write(f"{len(board.done)}/{board.cells}  {cell}  {text}\n")


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
