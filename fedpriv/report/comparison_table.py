"""The table of a comparison: the settings that differ, best score first, as wide as the terminal allows.

A value that all rows share is no column; ``Table.about`` has it once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv._internal.settings import shown_word
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report.comparison import Group, footnotes

_FIRST = ("optimizer", "placement", "epsilon", "dataset", "model")  # settings that a narrow table keeps
_BORDER = 3  # characters per column in addition to its text


@dataclass(frozen=True)
class Table:
    """A comparison as a table.

    Attributes:
        header: the names of the columns.
        rows: the cells of each row; best score first.
        about: sentences: the values that all rows share, and the settings that the table leaves out.
        notes: lines below the table, such as the reasons why runs are not private.
    """

    header: tuple[str, ...]
    rows: list[list[str]]
    about: list[str]
    notes: list[str]


@dataclass(frozen=True)
class _Column:
    name: str
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells))) + _BORDER


def table(groups: Sequence[Group], width: int | None = None) -> Table:
    """The groups as a table of at most ``width`` characters; None: no limit.

    If there is not enough room for all settings, the last ones are left out, and a note names them.
    """
    groups = sorted(groups, key=rank)
    settings, results = _settings(groups), _results(groups)
    alike = [column for column in _promises(groups) if len(set(column.cells)) == 1]
    results += [column for column in _promises(groups) if len(set(column.cells)) > 1]
    shown = _fitting(settings, results, width)
    columns = [*shown, *results]
    about = [_of_all(alike, len(groups))] if alike else []
    if left := [column.name for column in settings[len(shown) :]]:
        words = f"{'Settings that differ are' if len(left) > 1 else 'A setting that differs is'} not shown"
        about.append(f"{words}: {', '.join(left)}. A wider terminal shows more, and --json everything.")
    rows = [list(cells) for cells in zip(*(column.cells for column in columns), strict=True)]
    return Table(tuple(column.name for column in columns), rows, about, footnotes(groups))


def rank(group: Group) -> tuple[bool, float]:
    """A sort key: better scores (higher shares, lower errors) first, groups without a score last."""
    mean = statistics.fmean(group.finals)
    return math.isnan(mean), -mean if group.measure.fraction else mean


def _settings(groups: Sequence[Group]) -> list[_Column]:
    """The settings that differ, the most important first; only the optimizer if none differs. A run that does
    not use a setting has a dash."""
    differing = dict.fromkeys(key for group in groups for key in group.settings)
    keys = [key for key in _FIRST if key in differing]
    keys += [key for key in differing if key not in _FIRST]
    columns = [_Column(key, [shown_word(group.settings.get(key, "-")) for group in groups]) for key in keys]
    return columns or [_Column("optimizer", [group.runs[0].config.optimizer for group in groups])]


def _results(groups: Sequence[Group]) -> list[_Column]:
    """The number of runs, their scores, and their spent epsilon."""
    measure, data = groups[0].measure, [group.json() for group in groups]
    scores = [measure.text(one["mean"]) for one in data]
    spreads = ["" if one["spread"] is None else f" +- {measure.text(one['spread'])}" for one in data]
    spent = ["infinite" if one["epsilon"] is None else f"{one['epsilon']:.4g}" for one in data]
    counts = [_Column("runs", [str(len(group.runs)) for group in groups])]
    return [
        *(counts if any(len(group.runs) > 1 for group in groups) else []),
        _Column(
            f"test {measure.words}", [score + spread for score, spread in zip(scores, spreads, strict=True)]
        ),
        _Column("epsilon spent", spent),
    ]


def _promises(groups: Sequence[Group]) -> list[_Column]:
    """The meaning of epsilon, and how the runs ended."""
    data = [group.json() for group in groups]
    kinds = {"estimate": "an ESTIMATE", "bound": "a bound", None: ""}
    if {one["kind"] for one in data} == {"bound", None}:
        kinds[None] = kinds["bound"]  # infinity is a bound, too, so that all rows are alike
    return [
        _Column("delta", ["" if one["delta"] is None else f"{one['delta']:.3g}" for one in data]),
        _Column("against", [(one["against"] or "nobody").partition(",")[0] for one in data]),
        _Column("epsilon is", [kinds.get(one["kind"], str(one["kind"])) for one in data]),
        _Column("ended", [" ".join(StopReason(ended).short for ended in one["ended"]) for one in data]),
    ]


def _fitting(settings: Sequence[_Column], others: Sequence[_Column], width: int | None) -> list[_Column]:
    """The first settings that fit into the width; at least one."""
    if width is None:
        return [*settings]
    room = width - 1 - sum(column.width for column in others)
    shown = list[_Column]()
    for column in settings:
        room -= column.width
        if shown and room < 0:
            break
        shown.append(column)
    return shown


def _of_all(alike: Sequence[_Column], rows: int) -> str:
    """A sentence with the values that all rows share."""
    names = {"ended": "ended:"}
    words = [f"{names.get(one.name, one.name)} {one.cells[0]}" for one in alike if one.cells[0]]
    return f"{'All rows' if rows > 1 else 'This row'}: {'; '.join(words)}."
