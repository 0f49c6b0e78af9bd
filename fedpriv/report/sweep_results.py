"""The results of a sweep, from its cells' folders: one tidy table.

A row is a cell and one of its evaluations. The columns are the settings in which cells differ, the budget's
``epsilon``, what epsilon means where that differs (``unit``, ``relation``, ``delta``, ``accounting``,
``against``), ``round``, the score by its task's name, ``epsilon spent`` by that round, and how many settings
the sweep tried. Where the noise of a cell is simulated (``noise-cohort``), ``epsilon is`` says so.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv._internal.settings import Scalar
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.report.adversaries import described
from fedpriv.report.comparison import Group, Run
from fedpriv.report.notices import SIMULATED
from fedpriv.tasks.metrics import Metric, shown

SPENT, TRIED, MARK = "epsilon spent", "settings tried", "epsilon is"
_FIRST = ("optimizer", "placement", "epsilon", "clients", "dataset", "model")


@dataclass(frozen=True)
class Ended:
    """A cell that has ended.

    Attributes:
        settings: its place on the axes of the sweep.
        run: the content of its folder.
        overridden: further settings in which cells may differ.
    """

    settings: Mapping[str, Scalar]
    run: Run
    overridden: tuple[str, ...] = ()

    @property
    def others(self) -> dict[str, Scalar]:
        """The overridden settings as this run has them, where they have an effect."""
        table, idle = self.run.config.table(), self.run.config.without_effect()
        return {key: table[key] for key in self.overridden if key not in idle}

    @property
    def budget(self) -> float | None:
        """The epsilon of its budget; None without noise."""
        found = self.run.report["privacy"]["budget"]
        return None if found is None else float(found["epsilon"])

    @property
    def measure(self) -> Metric:
        """The metric of its score."""
        return shown(self.run.metrics[-1])

    @property
    def score(self) -> float | None:
        """Its last score; None where the model diverged."""
        value = self.run.metrics[-1].get(self.measure.key)
        return None if value is None else float(value)

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """Its evaluations as they were planned: one at an interruption is left out, unless it is the last."""
        every, records = self.run.config.evaluate_every, self.run.metrics
        return [record for record in records if record["round"] % every == 0 or record is records[-1]]

    @property
    def meaning(self) -> dict[str, Scalar]:
        """What its epsilon means; empty without noise."""
        privacy = self.run.report["privacy"]
        if privacy["budget"] is None:
            return {}
        against = self.run.gate.get("against")
        return {
            "unit": privacy["unit"],
            "relation": privacy["relation"],
            "delta": privacy["budget"]["delta"],
            "accounting": privacy["budget"]["held by"],
            **({"against": described(against, privacy["unit"])} if against else {}),
        }


def differing_meanings(ended: Sequence[Ended]) -> dict[str, dict[Scalar, list[Ended]]]:
    """What epsilon means, where cells differ in it: for each part of the meaning the cells by their value."""
    found: dict[str, dict[Scalar, list[Ended]]] = {}
    for cell in ended:
        for part, value in cell.meaning.items():
            found.setdefault(part, {}).setdefault(value, []).append(cell)
    return {part: values for part, values in found.items() if len(values) > 1}


def rows(ended: Sequence[Ended], tried: int) -> list[dict[str, Any]]:
    """The table, a dict a row; all have the same keys in the same order. What a cell has not is None.

    Args:
        ended: the cells.
        tried: how many settings the sweep tries.
    """
    cells = [{**cell.settings, **cell.others} for cell in ended]
    keys = dict.fromkeys(key for cell in cells for key in cell if key != "epsilon")
    meanings = [part for part in differing_meanings(ended) if part not in keys]
    scores = dict.fromkeys(cell.measure.key for cell in ended)
    marked = any(cell.run.config.simulates_noise for cell in ended)
    found = []
    for cell, own_settings in zip(ended, cells, strict=True):
        same: dict[str, Any] = {key: own_settings.get(key) for key in keys}
        same |= {MARK: SIMULATED if cell.run.config.simulates_noise else None} if marked else {}
        same |= {"epsilon": cell.budget, **{part: cell.meaning.get(part) for part in meanings}}
        for record in cell.evaluations:
            own = {key: record.get(key) if key == cell.measure.key else None for key in scores}
            found.append({**same, "round": record["round"], **own, SPENT: record["epsilon"], TRIED: tried})
    return found


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """The table as CSV text; None is an empty field."""
    text = io.StringIO()
    if table:
        writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _field(value) for key, value in row.items()} for row in table)
    return text.getvalue()


def as_parquet(table: Sequence[Mapping[str, Any]]) -> bytes | None:
    """The table as a Parquet file; None where pyarrow is not installed, or the table has no rows.

    A column whose values are of several types, numbers aside, is text, as in CSV.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    if not table:
        return None
    columns = {key: _column([row[key] for row in table]) for key in table[0]}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue())


def _column(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if v is None else str(_field(v)) for v in values] if len(kinds) > 1 else values


def _field(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def of_groups(groups: Sequence[Group]) -> list[Ended]:
    """The runs of any groups as cells, whose settings are as few as tell the groups apart.

    A setting that follows from the others in these runs is left out, such as a sampler that goes with one
    placement. A run that was cut short is a line of its own, as in the table of the groups.
    """
    keys = telling([group.settings for group in groups], [_kind(group) for group in groups])
    found = []
    for group in groups:
        settings = {key: group.settings[key] for key in keys if key in group.settings}
        ended = group.runs[0].ended
        if ended.resumable:  # one that diverged is a repetition: its settings led to it
            settings["ended"] = ended.short
        found += [Ended({**settings, "seed": run.config.seed}, run) for run in group.runs]
    return found


def telling(settings: Sequence[Mapping[str, Any]], known: Sequence[tuple[str, ...]] = ()) -> list[str]:
    """The keys that tell these settings apart, the most important first; ``known`` tells some apart already.

    >>> telling([{"placement": "central", "sampler": "a"}, {"placement": "local", "sampler": "b"}])
    ['placement']
    """
    first = [key for key in _FIRST if any(key in own for own in settings)]
    keys, marks = list[str](), list(known) or [()] * len(settings)
    for key in dict.fromkeys([*first, *(key for own in settings for key in own)]):
        finer = [(*mark, str(own.get(key))) for mark, own in zip(marks, settings, strict=True)]
        if len(set(finer)) > len(set(marks)):
            keys, marks = [*keys, key], finer
    return keys


def _kind(group: Group) -> tuple[str, ...]:
    """Whether there is noise, and where there is none, whether there is clipping."""
    config = group.runs[0].config
    if PLACEMENTS[config.placement].adds_noise:
        return ("noise",)
    return "none", str(config.table()["clip-norm"])
