"""From a name to a source: where the files lie, and what is made of them.

Files of data set NAME lie in ``<folder>/NAME/``, folder being the argument, else $FEDPRIV_DATA, else
``~/.cache/fedpriv``.

>>> load("digits").size
1437
>>> load("mnits")
Traceback (most recent call last):
    ...
fedpriv._check.ArgumentError: dataset is 'mnits'; it must be one of digits, fashion-mnist, \
infinite-digits, infinite-mnist, mnist
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpriv import _check
from fedpriv.data import idx
from fedpriv.data.deformation import FIELDS
from fedpriv.data.embedded import digits
from fedpriv.data.files import data_folder
from fedpriv.data.infinite_mnist import (
    FIELDS_FILE,
    PIXELS,
    TANGENTS_FILE,
    InfiniteMNIST,
    read_floats,
)
from fedpriv.data.source import Arrays, Bytes, DataError, Indices, Source

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class MissingDataError(DataError, FileNotFoundError):
    """A data set's files are not in the data folder; the message says how to get them."""


def _find(where: Path, name: str) -> Path:
    for candidate in (where / name, where / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise MissingDataError(
        f"{where} has no {name}, plain or gzipped: run `fedpriv data fetch {where.name}`, or name "
        "the folder that holds it with FEDPRIV_DATA; the data set `infinite-digits` needs no files"
    )


def read_mnist(where: Path) -> tuple[Bytes, Indices, Bytes, Indices]:
    """Training images (n, 28, 28) and labels, test images and labels, of the four IDX files.

    Raises MissingDataError, or IdxError for a damaged file.
    """
    x, y, test_x, test_y = (idx.read(_find(where, name)) for name in IDX_FILES)
    return x, y.astype(np.int64), test_x, test_y.astype(np.int64)


def _infinite_mnist(folder: Path) -> Source:
    base = read_mnist(folder / "mnist")
    where = folder / "infinite-mnist"
    given = [(where / name).is_file() for name in (FIELDS_FILE, TANGENTS_FILE)]
    if not any(given):
        return InfiniteMNIST("infinite-mnist", *base)
    if not all(given):
        # Half of the authors' files would make a data set that nobody else has.
        raise MissingDataError(f"{where} needs both {FIELDS_FILE} and {TANGENTS_FILE}, or neither")
    fields = read_floats(where / FIELDS_FILE, FIELDS, PIXELS)
    tangents = read_floats(where / TANGENTS_FILE, len(base[0]), 2, PIXELS)
    return InfiniteMNIST("infinite-mnist", *base, fields=fields, tangents=tangents)


_LOADERS: dict[str, Callable[[Path], Source]] = {
    "digits": lambda folder: Arrays("digits", *digits()),
    "fashion-mnist": lambda f: Arrays("fashion-mnist", *read_mnist(f / "fashion-mnist")),
    "infinite-digits": lambda folder: InfiniteMNIST("infinite-digits", *digits()),
    "infinite-mnist": _infinite_mnist,
    "mnist": lambda folder: Arrays("mnist", *read_mnist(folder / "mnist")),
}


def names() -> tuple[str, ...]:
    """The data sets that :func:`load` knows."""
    return tuple(_LOADERS)


def load(name: str, folder: str | Path | None = None) -> Source:
    """The source called ``name``; ``digits`` and ``infinite-digits`` need no files.

    Args:
        name: one of :func:`names`.
        folder: where the data lies; None: $FEDPRIV_DATA, else ``~/.cache/fedpriv``.

    Raises:
        ArgumentError: no such data set.
        MissingDataError: its files are not there.
        DataError: its files are damaged.
    """
    return _LOADERS[_check.choice("dataset", name, names())](data_folder(folder))
