"""What a sweep runs: settings for all cells, a grid of axes, and overrides for some cells.

A cell is one run. The cells are the product of the axes. An override changes settings of the cells that it
matches. Cells whose only differences have no effect, such as epsilon without noise, are one cell.

>>> grid = {"optimizer": ["dp-sgd", "dp-adam"], "seed": [1, 2]}
>>> found = cells(read({"settings": {"rounds": 2}, "grid": grid}))
>>> [cell.name for cell in found][:2], found[0].config.rounds
(['optimizer=dp-sgd,seed=1', 'optimizer=dp-sgd,seed=2'], 2)
>>> read({"grid": {"seed": []}})
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: [grid] seed is []; it must be a list of at least one value
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv._internal import hints, validation
from fedpriv._internal.settings import Scalar, assignments, by_key, toml_word
from fedpriv.config.reading import read_file
from fedpriv.config.schema import Config
from fedpriv.simulation.sweeps import candidates
from fedpriv.simulation.sweeps.candidates import TUNING_PART, Tuning

_PARTS = ("settings", "grid", "override", "tune")
# What a sweep decides for each cell.
_DECIDED = {
    "out": "each cell has its own folder inside the sweep's folder",
    "overwrite": "a finished cell is never run again",
    "ledger-anchor": "an anchor belongs to one ledger, and each cell has its own",
    "ledger-anchor-command": "an anchor belongs to one ledger, and each cell has its own",
}
ONE = "cell"  # the name of a sweep's only cell
_LONGEST_NAME = 120  # characters of a folder's name; file systems allow 255 bytes


@dataclass(frozen=True)
class Override:
    """Settings for the cells that have these values.

    Attributes:
        when: the values that a cell must have, by key.
        settings: what such a cell gets.
    """

    when: Mapping[str, Scalar]
    settings: Mapping[str, Scalar]

    def matches(self, point: Mapping[str, Scalar]) -> bool:
        """Whether it holds for the cell with these settings."""
        return all(key in point and _same(point[key], value) for key, value in self.when.items())

    @property
    def name(self) -> str:
        """The override as errors name it."""
        return f"[[override]] when {words(self.when)}"


@dataclass(frozen=True)
class Definition:
    """A sweep as it is written.

    Attributes:
        settings: those of all cells, by key.
        grid: the values of each axis, by key.
        overrides: in the order in which they are written.
        tuning: the settings that are chosen for each method before the cells run; None: there are none.
    """

    settings: Mapping[str, Scalar]
    grid: Mapping[str, Sequence[Scalar]]
    overrides: tuple[Override, ...]
    tuning: Tuning | None = None

    def json(self) -> dict[str, Any]:
        """The definition as a JSON-serialisable mapping of the form that :func:`read` reads."""
        overrides = [{"when": dict(one.when), **one.settings} for one in self.overrides]
        found = {"settings": dict(self.settings), "grid": dict(self.grid), "override": overrides}
        return found | ({"tune": self.tuning.json()} if self.tuning else {})

    @property
    def overridden(self) -> tuple[str, ...]:
        """The settings that overrides change."""
        return tuple(dict.fromkeys(key for override in self.overrides for key in override.settings))


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: its folder's name.
        settings: its place on the axes that have several values, as far as they have an effect here.
        config: all settings.
    """

    name: str
    settings: Mapping[str, Scalar]
    config: Config


def read(source: str | Path | Mapping[str, Any]) -> Definition:
    """The definition in a TOML file, or in a mapping of the same form.

    Raises ArgumentError for what is no definition; it names the key.
    """
    table = source if isinstance(source, Mapping) else read_file(source)
    for part in table:
        if part not in _PARTS:
            known = Config.keys()
            hint = (
                "write it below [settings], or as a list below [grid]"
                if validation.normalised(part) in known
                else f"a sweep has {', '.join(_PARTS)}"
            )
            raise validation.ArgumentError(f"unknown key {part!r} at the top of a sweep; {hint}")
    settings = _settings("[settings]", table.get("settings", {}))
    grid = _grid(table.get("grid", {}))
    if both := sorted(settings.keys() & grid.keys()):
        raise validation.ArgumentError(f"{both[0]} is in [settings] and in [grid]; keep it in one of them")
    found = table.get("override", [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise validation.fail("override", found, "be tables", "write [[override]] with two brackets")
    tuning = _tuning(table["tune"], settings, grid) if "tune" in table else None
    overrides = tuple(_override(one, {**grid, **(tuning.axes if tuning else {})}) for one in found)
    if tuning and any(TUNING_PART in override.settings for override in overrides):
        raise validation.ArgumentError(f"an [[override]] sets {TUNING_PART}, which [tune] decides")
    return Definition(settings, grid, overrides, tuning)


def _tuning(table: Any, settings: Mapping[str, Scalar], grid: Mapping[str, Any]) -> Tuning:
    """What [tune] says. Raises ArgumentError where it tunes what is given, or what it may not choose."""
    axes, how = candidates.read(table)
    found = Tuning(_grid(axes, "[tune]"), **how)
    for key in (*found.axes, TUNING_PART):
        if where := [name for name, part in (("settings", settings), ("grid", grid)) if key in part]:
            raise validation.ArgumentError(
                f"{key} is in [{where[0]}], and [tune] decides it; keep it in one of them"
            )
    return found


def _grid(table: Any, part: str = "[grid]") -> dict[str, list[Scalar]]:
    """The axes. Raises ArgumentError for one without values, or whose values repeat."""
    _require_keys(part, table)
    grid = by_key(table)
    for key, values in grid.items():
        name = f"{part} {key}"
        if not isinstance(values, list | tuple) or not values:
            hint = (
                "" if isinstance(values, list | tuple) else f"write [{toml_word(values)}], or use [settings]"
            )
            hint = hint if isinstance(values, Scalar) else ""
            raise validation.fail(name, values, "be a list of at least one value", hint)
        for at, value in enumerate(values):
            _require_scalar(name, value)
            if any(_same(value, other) for other in values[:at]):
                raise validation.fail(name, values, "name each value once", f"{toml_word(value)} comes twice")
    if not grid:
        example = "seed = [1, 2]" if part == "[grid]" else "learning-rate = [0.1, 1]"
        raise validation.ArgumentError(f"{part} is missing; it must name at least one setting, as {example}")
    return {key: list(values) for key, values in grid.items()}


def _override(table: Mapping[str, Any], grid: Mapping[str, Any]) -> Override:
    """One [[override]]. Raises ArgumentError where it cannot match, or changes an axis."""
    if "when" not in table:
        raise validation.ArgumentError(
            'An [[override]] has no when; say which cells it is for, as when = {optimizer = "dp-adam"}'
        )
    when = _settings("[[override]] when", table["when"], decided=False)
    found = Override(when, _settings("[[override]]", {k: v for k, v in table.items() if k != "when"}))
    if not found.settings:
        raise validation.ArgumentError(f"{found.name} changes nothing; it must have a setting besides when")
    if axes := [key for key in found.settings if key in grid]:
        raise validation.ArgumentError(
            f"{found.name} sets {axes[0]}, which is an axis; an override must set other settings"
        )
    return found


def _settings(where: str, table: Any, decided: bool = True) -> dict[str, Scalar]:
    _require_keys(where, table, decided)
    found: dict[str, Scalar] = by_key(table)
    for key, value in found.items():
        _require_scalar(f"{where} {key}", value)
    return found


def _require_keys(where: str, table: Any, decided: bool = True) -> None:
    """Raises ArgumentError for a table of keys that are no settings, or that the sweep decides."""
    if not isinstance(table, Mapping):
        raise validation.fail(where, table, "be a table of settings")
    keys = Config.keys()
    for key in map(validation.normalised, table):
        if key not in keys:
            raise validation.ArgumentError(f"unknown key {key!r} in {where}; {hints.of_key(key, keys)}")
        if decided and key in _DECIDED:
            raise validation.ArgumentError(f"{where} has {key}; leave it out, because {_DECIDED[key]}")


def _require_scalar(name: str, value: Any) -> None:
    if not isinstance(value, Scalar):
        hint = "a list of values belongs to [grid]" if isinstance(value, list) and "grid" not in name else ""
        raise validation.fail(name, value, "be a text, a number, true or false", hint)


def points(definition: Definition) -> list[dict[str, Scalar]]:
    """The combinations of the axes' values, in order. Raises ArgumentError for an override of no cell."""
    found = [
        dict(zip(definition.grid, values, strict=True))
        for values in itertools.product(*definition.grid.values())
    ]
    _require_matches(definition, found)
    return found


Choose = Callable[[Mapping[str, Scalar]], Mapping[str, Scalar]]


def cells(definition: Definition, chosen: Choose = lambda point: {}) -> list[Cell]:
    """The cells of a sweep, in the order of its grid.

    Args:
        definition: the sweep.
        chosen: the tuned settings of a point.

    Raises ArgumentError, which names the cell, where a cell's settings cannot be read or two cells are one.
    """
    found: dict[str, Cell] = {}
    for point in points(definition):
        with of_cell(words(point)):
            config = configured(definition, {**point, **chosen(point)})
            effective = _effective(config)
        differing = {key: effective[key] for key in definition.grid if key in effective}
        found.setdefault(_mark(effective), Cell("", differing, config))
    return _named(list(found.values()))


def configured(definition: Definition, point: Mapping[str, Scalar]) -> Config:
    """All settings at a point, which may have tuned settings too. Raises ArgumentError as :func:`cells`."""
    return Config.parse({"engine": "in-process", **_values(definition, point)})


def mark(config: Config) -> str:
    """A text that two runs share where only settings without effect differ."""
    return _mark(_effective(config))


def _mark(effective: Mapping[str, Scalar]) -> str:
    return json.dumps(dict(effective), sort_keys=True)


def _values(definition: Definition, point: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The settings of a cell. Raises ArgumentError where two overrides contradict each other."""
    values, setters = {**definition.settings, **point}, dict[str, Override]()
    for override in definition.overrides:
        if not override.matches({**definition.settings, **point}):
            continue
        for key, value in override.settings.items():
            if key in setters and not _same(values[key], value):
                raise validation.ArgumentError(
                    f"it matches two overrides that contradict each other: {key} is "
                    f"{values[key]!r} by {setters[key].name} and {value!r} by {override.name}. Make one of "
                    "them match fewer cells."
                )
            values[key], setters[key] = value, override
    return values


def _require_matches(definition: Definition, points: Sequence[Mapping[str, Scalar]]) -> None:
    for override in definition.overrides:
        if not any(override.matches({**definition.settings, **point}) for point in points):
            for key in override.when:  # a value of the grid may be the one that is misspelt
                for value in definition.grid.get(key, ()):
                    Config.parse({key: value})
            raise validation.ArgumentError(
                f"{override.name} matches no cell; name values that [grid] or [settings] has"
            )


def _effective(config: Config) -> dict[str, Scalar]:
    """The settings that have an effect in this run."""
    idle = config.without_effect()
    return {key: value for key, value in config.table().items() if key not in idle}


def _named(found: Sequence[Cell]) -> list[Cell]:
    """The cells with their folders' names: the settings that differ between them."""
    keys = dict.fromkeys(key for cell in found for key in cell.settings)
    differing = [key for key in keys if len({cell.settings.get(key) for cell in found}) > 1]
    found = [
        replace(cell, settings={k: v for k, v in cell.settings.items() if k in differing}) for cell in found
    ]
    texts = [words(cell.settings) or ONE for cell in found]
    names = [re.sub(r"[^\w=,.+-]", "_", text) for text in texts]
    for at, (name, text) in enumerate(zip(names, texts, strict=True)):
        # The same name would be the same folder, also where a file system ignores case.
        if len(name) > _LONGEST_NAME or name != text or name.lower() in map(str.lower, names[:at]):
            mark = hashlib.sha256(json.dumps(dict(found[at].settings), sort_keys=True).encode())
            names[at] = f"{name[: _LONGEST_NAME - 9]}-{mark.hexdigest()[:8]}"
    return [replace(cell, name=name) for cell, name in zip(found, names, strict=True)]


@contextmanager
def of_cell(name: str) -> Iterator[None]:
    """Errors of this block name the cell."""
    try:
        yield
    except validation.FedprivError as error:
        of = "The sweep's one cell" if name in ("", ONE) else f"Cell {name}"
        error.args = (f"{of} cannot be run: {error}", *error.args[1:])
        raise


def words(settings: Mapping[str, Scalar]) -> str:
    """Settings as key=value, with commas."""
    return ",".join(assignments(settings))


def _same(one: Scalar, other: Scalar) -> bool:
    """Whether two values are one: 1 and 1.0 are, and true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
