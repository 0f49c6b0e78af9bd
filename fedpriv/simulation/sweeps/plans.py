"""What is decided and checked of a sweep before any of its cells runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv._internal import hardware, ray_cluster, validation
from fedpriv._internal.files import atomic, read_json, unwritable
from fedpriv._internal.settings import Scalar
from fedpriv._internal.version import __version__
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.config.settings import DataSettings, FederationSettings
from fedpriv.report.notices import NOT_PRIVATE, SIMULATED, unprotected
from fedpriv.report.run_folders import SWEEP
from fedpriv.simulation.run import Checked, check
from fedpriv.simulation.sweeps import definition as definitions
from fedpriv.simulation.sweeps.candidates import TUNING_PART
from fedpriv.simulation.sweeps.definition import Cell, Definition
from fedpriv.tasks.metrics import counted

Point = Mapping[str, Scalar]


@dataclass(frozen=True)
class Sweep:
    """A sweep whose cells are all checked.

    Attributes:
        definition: as it was written.
        cells: in the order of the grid.
        plans: by the cells' names; cells that differ in their seed alone share one.
        notes: what is unusual about cells, in sentences.
        tuning_runs: how many runs chose the cells' tuned settings; 0 where nothing was tuned.
    """

    definition: Definition
    cells: tuple[Cell, ...]
    plans: Mapping[str, Plan]
    notes: tuple[str, ...]
    tuning_runs: int = 0

    @property
    def tried(self) -> int:
        """How many settings are tried, seeds aside, those that tuning did not choose among them."""
        methods = {tuple((k, v) for k, v in cell.settings.items() if k != "seed") for cell in self.cells}
        return len(methods) * self._candidates

    @property
    def _candidates(self) -> int:
        tuning = self.definition.tuning
        return len(tuning.candidates) if tuning else 1

    @property
    def about(self) -> str:
        """How many cells and settings there are, in words."""
        found = about(len(self.cells), self.tried)
        if not self.tuning_runs:
            return found
        return (
            f"{found}, the best of {self._candidates} for each method shown, chosen in "
            f"{counted(self.tuning_runs, 'other run')} on public test examples that no score here has"
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """Settings off the axes in which cells may differ: overridden and tuned ones."""
        tuning = self.definition.tuning
        return (*self.definition.overridden, *(tuning.axes if tuning else ()))

    @property
    def on_ray(self) -> bool:
        """Whether a cell starts actors of its own (``engine=ray``)."""
        return any(not cell.config.in_process for cell in self.cells)

    @property
    def on_cluster(self) -> bool:
        """Whether the cells run on the machines of a Ray cluster, and not on this one."""
        return bool(ray_cluster.address()) and not self.on_ray

    def jobs(self, asked: int = 0) -> int:
        """How many cells run side by side: as asked, else one for each core of the machine or the cluster.

        It is one where cells start actors of their own.

        Raises ArgumentError where several were asked for that would each start Ray.
        """
        if self.on_ray and asked > 1:
            hint = "each cell would start its own Ray on all cores; leave out engine, or run one at a time"
            raise validation.fail("jobs", asked, "be 1 where cells have engine=ray", hint)
        cluster = ray_cluster.resources() if self.on_cluster else None
        cores = int(cluster["CPU"]) if cluster else hardware.usable()
        return asked or (1 if self.on_ray else max(1, min(cores, len(self.cells))))


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
    if definition.tuning is None:
        return checked(definition, definitions.cells(definition))
    _require_seeds(definition)
    first, *others = definition.tuning.candidates
    sweep = checked(definition, _with_candidate(definition, first))
    _check_candidates(definition, others)
    return sweep


# What a cell is scored on where another part chose its settings.
_SCORED = {TUNING_PART: "rest"}
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def _with_candidate(definition: Definition, candidate: Point) -> list[Cell]:
    """The cells if this candidate is chosen for all methods."""
    return definitions.cells(definition, lambda point: {**candidate, **_SCORED})


def _check_candidates(definition: Definition, candidates: Sequence[Point]) -> None:
    """Raises ArgumentError, which names the cell, for a candidate that one of the methods cannot have."""
    planned = set[str]()
    for candidate in candidates:
        for cell in _with_candidate(definition, candidate):
            mark = mark_without_seed(cell.config)
            if mark not in planned:
                planned.add(mark)
                with definitions.of_cell(f"{cell.name} with {definitions.words(candidate)}"):
                    make_plan(cell.config)


def tuned(definition: Definition, chosen: Sequence[tuple[Point, Point]], runs: int) -> Sweep:
    """The sweep with chosen settings: (a method's place on the axes, its tuned settings) for each method."""
    by_method = {_method(method): settings for method, settings in chosen}
    cells = definitions.cells(definition, lambda point: {**by_method[_method(point)], **_SCORED})
    return replace(checked(definition, cells), tuning_runs=runs)


def _method(point: Point) -> str:
    return _mark({key: value for key, value in point.items() if key != "seed"})


def checked(definition: Definition, cells: list[Cell]) -> Sweep:
    """The sweep of these cells. Raises as :func:`prepare`."""
    plans, checks, notes = dict[str, Plan](), dict[str, Checked](), dict[str, list[str]]()
    by_settings = dict[str, Plan]()
    for cell in cells:
        with definitions.of_cell(cell.name):
            mark = mark_without_seed(cell.config)
            plan = by_settings.get(mark) or by_settings.setdefault(mark, make_plan(cell.config))
            data = _mark(_checked_settings(cell.config))
            simulated = checks.get(data) or checks.setdefault(data, check(cell.config))
        plans[cell.name] = plan
        for text in (*simulated.warnings(plan), *simulated.notes):
            notes.setdefault(text, []).append(cell.name)
    return Sweep(definition, tuple(cells), plans, (*_of_all(cells), *_each_once(notes, len(cells))))


def seeds(definition: Definition) -> list[int]:
    """The seeds of the cells; -1 where there may be none."""
    values = [*definition.grid.get("seed", ()), definition.settings.get("seed", -1)]
    return [int(seed) for seed in values]


def _require_seeds(definition: Definition) -> None:
    """Raises ArgumentError where the search could not have seeds of its own."""
    if any("seed" in (*override.when, *override.settings) for override in definition.overrides):
        raise validation.ArgumentError(
            "an [[override]] names seed; with [tune] it must not, because candidates run with other seeds"
        )
    assert definition.tuning is not None
    if definition.tuning.halving and max(seeds(definition)) < 0:
        hint = "write search = 'grid', or give a seed"
        raise validation.fail("[tune] search", "halving", "be grid where runs have no seed", hint)


def mark_without_seed(config: Config) -> str:
    """A text that two runs share where they differ in the seed alone."""
    return _mark({k: v for k, v in config.table().items() if k != "seed"})


def kind(config: Config) -> str:
    """A text that runs share whose rounds take the same time, as far as settings tell."""
    keys = {"optimizer", "placement", "precision", "clipping", "secure-aggregation", "noise-draws"}
    own = {**_checked_settings(config), **{key: config.table()[key] for key in keys}}
    return _mark({key: value for key, value in own.items() if key != "rounds"})


def _checked_settings(config: Config) -> dict[str, Any]:
    """The settings that :func:`fedpriv.simulation.run.check` looks at."""
    keys = {*DataSettings.fields(), *FederationSettings.fields(), *config.public.fields()}
    keys |= {"device", "unit", TUNING_PART}
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
    if any(cell.config.simulates_noise for cell in cells):
        of = (
            "All cells" if all(cell.config.simulates_noise for cell in cells) else "Cells with a noise-cohort"
        )
        found.append(f"{of} are {SIMULATED}: their epsilon is that of larger cohorts.")
    private = [cell for cell in cells if cell.config.seed < 0 and not unprotected(cell.config)]
    if len(private) > 1:
        found.append(
            "The cells are runs on the same data, so their epsilons add up: `fedpriv account --ledger A "
            "--ledger B` gives the total."
        )
    return found


def _each_once(notes: Mapping[str, list[str]], cells: int) -> list[str]:
    """The notes on cells, each once; one that is not on all of them says on how many it is.

    Of notes that differ in their numbers alone, the first stands for all.
    """
    alike: dict[str, list[tuple[str, list[str]]]] = {}
    for text, names in notes.items():
        alike.setdefault(_NUMBER.sub("#", text), []).append((text, names))
    found = []
    for same in alike.values():
        text, names = same[0]
        count = len({name for _, own in same for name in own})
        of_all = "All" if count == cells else f"{count} of {cells}"
        some = f"{names[0]}: " if count == 1 else f"{of_all} cells, as {names[0]}: "
        others = " (other cells have other numbers)" if len(same) > 1 else ""
        found.append(text if len(names) == cells else f"{some}{text}{others}")
    return found


def require_folder(folder: Path, definition: Definition, objects: Mapping[str, str] | None = None) -> None:
    """Raises ArgumentError unless the folder is new, empty, or holds this sweep; changes nothing.

    ``objects`` are digests of what is public of the data set and the model that were handed over as objects.
    """
    if folder.exists() and not folder.is_dir():
        raise validation.fail("out", str(folder), "be a folder, not a file")
    if why := unwritable(folder):
        raise validation.fail("out", str(folder), "be a folder to write to", why)
    path = folder / SWEEP
    if path.is_file():
        try:
            content = read_json(path.read_bytes())
            there, known = definitions.read(content["definition"]), dict(content.get("objects", {}))
        except (ValueError, KeyError, TypeError):
            raise validation.fail("out", str(folder), f"hold an intact {SWEEP}") from None
        if _ordered(there) != _ordered(definition):
            raise validation.ArgumentError(
                f"{folder} holds another sweep, {_difference(there, definition)}. Name a new folder for this "
                f"one, or give the definition that is in {path} to continue that one."
            )
        for key, mark in (objects or {}).items():
            if known.get(key, mark) != mark:
                raise validation.ArgumentError(f"{folder} holds runs of another {key}. Name a new folder.")
    elif folder.is_dir() and not all(file.name.startswith(f".{SWEEP}.") for file in folder.iterdir()):
        raise validation.fail("out", str(folder), "be a new or empty folder, or one that holds this sweep")


def claim(folder: Path, definition: Definition, objects: Mapping[str, str] | None = None) -> None:
    """Write the sweep's definition into its folder, if it is not there."""
    require_folder(folder, definition, objects)
    if not (folder / SWEEP).is_file():
        write(folder, definition, objects)


def write(folder: Path, definition: Definition, objects: Mapping[str, str] | None = None) -> None:
    """Write the sweep's definition into its folder, whatever is there."""
    content = {"fedpriv": __version__, "definition": definition.json()}
    content |= {"objects": dict(objects)} if objects else {}
    with atomic(folder / SWEEP) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def _ordered(definition: Definition) -> tuple[object, ...]:
    """The definition as what names and orders its cells."""
    return definition.settings, list(definition.grid.items()), definition.overrides, definition.tuning


def _difference(there: Definition, here: Definition) -> str:
    """Where two definitions differ first, in words."""
    for part, one, other in (("settings", there.settings, here.settings), ("grid", there.grid, here.grid)):
        for key in dict.fromkeys([*one, *other]):
            if one.get(key) != other.get(key):
                was = f"{one[key]!r} there" if key in one else "not there"
                now = f"{other[key]!r} here" if key in other else "not here"
                return f"in which [{part}] {key} is {was} and {now}"
    return "with other overrides, another [tune], or axes in another order"
