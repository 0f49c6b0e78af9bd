"""What is decided and checked of a sweep before any of its cells runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import hardware, validation
from fedpriv._internal.files import atomic, read_json, unwritable
from fedpriv._internal.version import __version__
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.config.settings import DataSettings, FederationSettings
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.report.notices import NOT_PRIVATE
from fedpriv.simulation.run import Checked, check
from fedpriv.simulation.sweeps import definition as definitions
from fedpriv.simulation.sweeps.definition import Cell, Definition
from fedpriv.tasks.metrics import counted

FILE = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """A sweep whose cells are all checked.

    Attributes:
        definition: as it was written.
        cells: in the order of the grid.
        plans: by the cells' names; cells that differ in their seed alone share one.
        notes: what is unusual about cells, in sentences.
    """

    definition: Definition
    cells: tuple[Cell, ...]
    plans: Mapping[str, Plan]
    notes: tuple[str, ...]

    @property
    def tried(self) -> int:
        """How many settings are tried, seeds aside."""
        return len({tuple((k, v) for k, v in cell.settings.items() if k != "seed") for cell in self.cells})

    @property
    def about(self) -> str:
        """How many cells and settings there are, in words."""
        return about(len(self.cells), self.tried)

    def jobs(self, asked: int = 0) -> int:
        """How many cells run side by side: as asked, else one for each core; one where cells run on Ray.

        Raises ArgumentError where several were asked for that would each start Ray.
        """
        on_ray = any(not cell.config.in_process for cell in self.cells)
        if on_ray and asked > 1:
            hint = "each cell would start its own Ray on all cores; leave out engine, or run one at a time"
            raise validation.fail("jobs", asked, "be 1 where cells have engine=ray", hint)
        return asked or (1 if on_ray else min(hardware.usable(), len(self.cells)))


def about(cells: int, tried: int) -> str:
    """How many cells there are, and how many settings they try.

    >>> about(24, 8), about(1, 1)
    ('24 cells, 8 settings tried', '1 cell, 1 setting tried')
    """
    return f"{counted(cells, 'cell')}, {counted(tried, 'setting')} tried"


def prepare(source: str | Path | Mapping[str, Any]) -> Sweep:
    """The sweep of a TOML file, or of a mapping of the same form, with all of its cells checked.

    Raises ArgumentError or DataError, naming the key or the cell, where a cell cannot be run; starts nothing.
    """
    if not hasattr(os, "fork"):
        raise validation.ArgumentError("A sweep needs Linux or macOS: its cells are forked processes.")
    definition = definitions.read(source)
    cells = definitions.cells(definition)
    plans, checks, notes = dict[str, Plan](), dict[str, Checked](), dict[str, list[str]]()
    by_settings = dict[str, Plan]()
    for cell in cells:
        with definitions.of_cell(cell.name):
            mark = _mark({k: v for k, v in cell.config.table().items() if k != "seed"})
            plan = by_settings.get(mark) or by_settings.setdefault(mark, make_plan(cell.config))
            data = _mark(_checked_settings(cell.config))
            checked = checks.get(data) or checks.setdefault(data, check(cell.config))
        plans[cell.name] = plan
        for text in (*checked.warnings(plan), *checked.notes):
            notes.setdefault(text, []).append(cell.name)
    return Sweep(definition, tuple(cells), plans, (*_of_all(cells), *_each_once(notes, len(cells))))


def _checked_settings(config: Config) -> dict[str, Any]:
    """The settings that :func:`fedpriv.simulation.run.check` looks at."""
    keys = {*DataSettings.fields(), *FederationSettings.fields(), *config.public.fields(), "device", "unit"}
    return {key: value for key, value in config.table().items() if key in keys}


def _mark(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _of_all(cells: list[Cell]) -> list[str]:
    """What holds for the cells together, in sentences."""
    found = []
    seeds = sorted({cell.config.seed for cell in cells if cell.config.seed >= 0})
    if seeds:
        of = "All cells" if all(cell.config.seed >= 0 for cell in cells) else "Cells with a seed"
        found.append(f"{of} are {NOT_PRIVATE} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}).")
    private = [
        cell for cell in cells if cell.config.seed < 0 and PLACEMENTS[cell.config.placement].adds_noise
    ]
    if len(private) > 1:
        found.append(
            "The cells are runs on the same data, so their epsilons add up: `fedpriv account --ledger A "
            "--ledger B` gives the total."
        )
    return found


def _each_once(notes: Mapping[str, list[str]], cells: int) -> list[str]:
    """The notes on cells, each once; one that is not on all of them says on how many it is."""
    found = []
    for text, names in notes.items():
        some = f"{names[0]}: " if len(names) == 1 else f"{len(names)} of {cells} cells, as {names[0]}: "
        found.append(text if len(names) == cells else f"{some}{text}")
    return found


def require_folder(folder: Path, definition: Definition) -> None:
    """Raises ArgumentError unless the folder is new, empty, or holds this sweep; changes nothing."""
    if folder.exists() and not folder.is_dir():
        raise validation.fail("out", str(folder), "be a folder, not a file")
    if why := unwritable(folder):
        raise validation.fail("out", str(folder), "be a folder to write to", why)
    path = folder / FILE
    if path.is_file():
        try:
            there = definitions.read(read_json(path.read_bytes())["definition"])
        except (ValueError, KeyError, TypeError):
            raise validation.fail("out", str(folder), f"hold an intact {FILE}") from None
        if _ordered(there) != _ordered(definition):
            raise validation.ArgumentError(
                f"{folder} holds another sweep, {_difference(there, definition)}. Name a new folder for this "
                f"one, or give the definition that is in {path} to continue that one."
            )
    elif folder.is_dir() and not all(file.name.startswith(f".{FILE}.") for file in folder.iterdir()):
        raise validation.fail("out", str(folder), "be a new or empty folder, or one that holds this sweep")


def claim(folder: Path, definition: Definition) -> None:
    """Write the sweep's definition into its folder, if it is not there."""
    require_folder(folder, definition)
    if not (folder / FILE).is_file():
        content = {"fedpriv": __version__, "definition": definition.json()}
        with atomic(folder / FILE) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())


def _ordered(definition: Definition) -> tuple[object, ...]:
    """The definition as what names and orders its cells."""
    return definition.settings, list(definition.grid.items()), definition.overrides


def _difference(there: Definition, here: Definition) -> str:
    """Where two definitions differ first, in words."""
    for part, one, other in (("settings", there.settings, here.settings), ("grid", there.grid, here.grid)):
        for key in dict.fromkeys([*one, *other]):
            if one.get(key) != other.get(key):
                was = f"{one[key]!r} there" if key in one else "not there"
                now = f"{other[key]!r} here" if key in other else "not here"
                return f"in which [{part}] {key} is {was} and {now}"
    return "with other overrides, or axes in another order"
