"""What a comparison of placements returns."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fedpriv.runs.result import Result, as_frame
from fedpriv.simulation import compare as comparisons
from fedpriv.simulation.compare import Row

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """The outcomes of one federation under several placements of the noise.

    Attributes:
        rows: one for each placement that ran, in order.
        left_out: what did not run to its end, in a sentence; empty where everything did.
    """

    rows: tuple[Row, ...]
    left_out: str = ""

    @property
    def results(self) -> dict[str, Result]:
        """The results by placement; of several runs of a placement, the first one."""
        return {row.placement: row.result for row in self.rows}

    def __getitem__(self, placement: str) -> Result:
        """The result of a placement. Raises KeyError where it did not run."""
        return self.results[placement]

    def plot(self) -> Figure:
        """A matplotlib figure of the scores against rounds; a notebook shows it."""
        return comparisons.draw(self.rows)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each placement. Raises MissingDependencyError where pandas is not installed."""
        return as_frame([row.json() for row in self.rows], "placement")

    def __repr__(self) -> str:
        table = [comparisons.header(self.rows), *map(tuple, map(comparisons.cells, self.rows))]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in comparisons.header(self.rows))
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in comparisons.cells(row)) + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{escape(text)}</p>" for text in self._notes())
        return f"<table><tr>{head}</tr>{body}</table>{notes}"

    def _notes(self) -> list[str]:
        """What goes with the table: what is left out, what is not private, what holds for all rows."""
        warnings = [f"{row.placement}: {text}" for row in self.rows for text in comparisons.warnings(row)]
        return [*([self.left_out] if self.left_out else []), *warnings, *comparisons.notes(self.rows)]
