"""The data sets by name: each module of :mod:`fedpriv.data.datasets` registers those that it reads.

A data set is its module, with its own settings if it has any, its card in ``datasets/``, and a line of the
changelog; nothing else lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv._internal import settings as groups
from fedpriv._internal import user_code
from fedpriv._internal.registry import Registry
from fedpriv._internal.settings import Needs, Settings, setting
from fedpriv.data.files import find
from fedpriv.data.source import Source


@dataclass(frozen=True)
class DataSet:
    """How a data set is loaded. It has two steps, so that files can be looked up without reading them.

    Attributes:
        name: the value of ``dataset``, and the folder of its files.
        find: maps the data folder to the paths of the files; raises MissingDataError.
        read: maps those paths and one number per option to the source; raises DataError for a damaged file.
        options: the data set's own settings by key, with what 0 stands for.
        settings: the type that declares them, which several data sets may share.
    """

    name: str
    find: Callable[[Path], Any]
    read: Callable[..., Source]
    options: Mapping[str, int] = field(default_factory=dict)
    settings: type[Settings] = Settings


DATA_SETS = Registry[DataSet]("dataset", user_code.HINT, own_code=True)


def register(
    name: str,
    find: Callable[[Path], Any],
    read: Callable[..., Source],
    options: Mapping[str, int] | None = None,
    settings: type[Settings] = Settings,
) -> DataSet:
    """Add a data set to DATA_SETS; the arguments are as of :class:`DataSet`."""
    return DATA_SETS.add(name, DataSet(name, find, read, options or {}, settings))


def option(key: str, description: str, at_least: int) -> Any:
    """A field of a data set's settings: a whole number, where 0 stands for the data set's own."""

    def has_it(run: Mapping[str, Any]) -> bool:
        return key in options(str(run["dataset"]))

    needed = Needs("a data set with this choice; see `fedpriv data info NAME`", has_it)
    return setting(0, f"{description}; 0: the data set's own", ge=0, needs=needed, at_least=at_least)


def own_settings() -> list[type[Settings]]:
    """The types of settings that belong to data sets, by name."""
    return sorted(groups.own_settings(DATA_SETS), key=lambda kind: kind.__name__)


def options(name: str) -> Mapping[str, int]:
    """The own settings of a data set, by key, with what 0 stands for; the user's own data sets have none."""
    loader = DATA_SETS.get(name)
    return loader.options if loader else {}


def files(folder: str, *names: str) -> Callable[[Path], list[Path]]:
    """Finds files by name in a folder of the data folder. Raises MissingDataError where one is missing."""
    return lambda data: [find(data / folder, name) for name in names]


def no_files(folder: Path) -> None:
    """Finds nothing: bundled data has no files."""
