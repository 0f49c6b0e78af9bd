"""The data sets by name: each module of :mod:`fedpriv.data.datasets` registers those that it reads.

A data set is its module, its card in ``datasets/``, and a line of the changelog; nothing else lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv._internal import user_code
from fedpriv._internal.registry import Registry
from fedpriv.data.files import find
from fedpriv.data.source import Source

IMAGE_SIZE, VOCABULARY, LENGTH = "image-size", "vocabulary", "sequence-length"  # options, by their settings


@dataclass(frozen=True)
class DataSet:
    """How a data set is loaded. It has two steps, so that files can be looked up without reading them.

    Attributes:
        name: the value of ``dataset``, and the folder of its files.
        find: maps the data folder to the paths of the files; raises MissingDataError.
        read: maps those paths and one number per option to the source; raises DataError for a damaged file.
        options: the data set's options by key, with their defaults.
    """

    name: str
    find: Callable[[Path], Any]
    read: Callable[..., Source]
    options: Mapping[str, int] = field(default_factory=dict)


DATA_SETS = Registry[DataSet]("dataset", user_code.HINT, own_code=True)


def register(
    name: str,
    find: Callable[[Path], Any],
    read: Callable[..., Source],
    options: Mapping[str, int] | None = None,
) -> DataSet:
    """Add a data set to DATA_SETS; the arguments are as of :class:`DataSet`."""
    return DATA_SETS.add(name, DataSet(name, find, read, options or {}))


def files(folder: str, *names: str) -> Callable[[Path], list[Path]]:
    """Finds files by name in a folder of the data folder. Raises MissingDataError where one is missing."""
    return lambda data: [find(data / folder, name) for name in names]


def no_files(folder: Path) -> None:
    """Finds nothing: bundled data has no files."""
