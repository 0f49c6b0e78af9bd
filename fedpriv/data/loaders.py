"""Loads data sets by name.

The files of a data set NAME are in ``<folder>/NAME/``, where folder is the argument, otherwise $FEDPRIV_DATA,
otherwise ``~/.cache/fedpriv``.

>>> load("digits").size
1437
>>> load("mnits")
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: dataset is 'mnits'; did you mean 'mnist'?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv._internal import user_code, validation
from fedpriv.data import idx, libsvm
from fedpriv.data.arrays import Arrays
from fedpriv.data.datasets import cifar, imdb, movielens, pneumonia, stack_overflow
from fedpriv.data.datasets import names as names_module
from fedpriv.data.datasets.deformation import FIELDS
from fedpriv.data.datasets.digits import digits
from fedpriv.data.datasets.infinite_mnist import (
    FIELDS_FILE,
    PIXELS,
    TANGENTS_FILE,
    InfiniteMNIST,
    read_floats,
)
from fedpriv.data.files import MissingDataError, data_folder, find
from fedpriv.data.source import Bytes, Indices, Source

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

IMAGE_SIZE, VOCABULARY, LENGTH = "image-size", "vocabulary", "sequence-length"
_SOURCE_ATTRIBUTES = tuple(part for part in vars(Source) if not part.startswith("_"))
_MINIMA = {IMAGE_SIZE: 8, VOCABULARY: 3, LENGTH: 1}


@dataclass(frozen=True)
class _Loader:
    """How a data set is loaded. It has two steps, so that files can be looked up without reading them.

    Attributes:
        find: maps the data folder to the paths of the files; raises MissingDataError.
        read: maps those paths and one number per option to the source; raises DataError for a damaged file.
        options: the data set's options by key, with their defaults.
    """

    find: Callable[[Path], Any]
    read: Callable[..., Source]
    options: Mapping[str, int] = field(default_factory=dict)


def _files(folder: str, *names: str) -> Callable[[Path], list[Path]]:
    return lambda data: [find(data / folder, name) for name in names]


def _no_files(folder: Path) -> None:
    """Finds nothing: bundled data has no files."""


def read_mnist(paths: list[Path]) -> tuple[Bytes, Indices, Bytes, Indices]:
    """Training images (n, 28, 28) and labels, then test images and labels, from the four IDX files.

    Raises DataError for a damaged file.
    """
    x, y, test_x, test_y = (idx.read(path) for path in paths)
    return x, y.astype(np.int64), test_x, test_y.astype(np.int64)


def _find_infinite(folder: Path) -> tuple[list[Path], list[Path]]:
    base = _files("mnist", *IDX_FILES)(folder)
    where = folder / "infinite-mnist"
    given = [path for path in (where / FIELDS_FILE, where / TANGENTS_FILE) if path.is_file()]
    if len(given) == 1:
        # One of the authors' two files would give a data set that differs from all others.
        raise MissingDataError(
            f"{where} has only {given[0].name}; infinite-mnist needs both {FIELDS_FILE} and "
            f"{TANGENTS_FILE}, or neither"
        )
    return base, given


def _read_infinite(paths: tuple[list[Path], list[Path]]) -> Source:
    base = read_mnist(paths[0])
    if not paths[1]:
        return InfiniteMNIST("infinite-mnist", *base)
    fields = read_floats(paths[1][0], FIELDS, PIXELS)
    tangents = read_floats(paths[1][1], len(base[0]), 2, PIXELS)
    return InfiniteMNIST("infinite-mnist", *base, fields=fields, tangents=tangents)


_LOADERS: dict[str, _Loader] = {
    "a9a": _Loader(_files("a9a", "a9a", "a9a.t"), lambda paths: libsvm.read("a9a", paths, features=123)),
    "cifar-10": _Loader(
        _files("cifar-10", *cifar.CIFAR_10), lambda paths: cifar.read("cifar-10", paths, 1, classes=10)
    ),
    "cifar-100": _Loader(
        _files("cifar-100", *cifar.CIFAR_100), lambda paths: cifar.read("cifar-100", paths, 2, classes=100)
    ),
    "digits": _Loader(_no_files, lambda paths: Arrays("digits", *digits(), classes=10)),
    "fashion-mnist": _Loader(
        _files("fashion-mnist", *IDX_FILES),
        lambda paths: Arrays("fashion-mnist", *read_mnist(paths), classes=10),
    ),
    "ijcnn1": _Loader(
        _files("ijcnn1", "ijcnn1", "ijcnn1.t"), lambda paths: libsvm.read("ijcnn1", paths, features=22)
    ),
    "imdb": _Loader(lambda folder: imdb.find(folder / "imdb"), imdb.read, {VOCABULARY: 10_000, LENGTH: 256}),
    "imdb-bag": _Loader(lambda folder: imdb.find(folder / "imdb"), imdb.read_bags, {VOCABULARY: 10_000}),
    "infinite-digits": _Loader(_no_files, lambda paths: InfiniteMNIST("infinite-digits", *digits())),
    "infinite-mnist": _Loader(_find_infinite, _read_infinite),
    "mnist": _Loader(
        _files("mnist", *IDX_FILES), lambda paths: Arrays("mnist", *read_mnist(paths), classes=10)
    ),
    "movielens-100k": _Loader(_files("movielens-100k", "u.data"), lambda paths: movielens.read(*paths)),
    "names": _Loader(
        _files("names", *(f"{language}.txt" for language in names_module.LANGUAGES)), names_module.read
    ),
    "pneumonia": _Loader(
        lambda folder: pneumonia.find(folder / "pneumonia"), pneumonia.read, {IMAGE_SIZE: 224}
    ),
    "stackoverflow-tags": _Loader(
        _files("stackoverflow-tags", *stack_overflow.FILES), stack_overflow.read, {VOCABULARY: 10_000}
    ),
}


def options(name: str) -> Mapping[str, int]:
    """The options of the data set called ``name``: {configuration key: default}."""
    return _LOADERS[validation.choice("dataset", name, names())].options


def names() -> tuple[str, ...]:
    """The names of the built-in data sets, for :func:`load`."""
    return tuple(_LOADERS)


def at_hand(name: str, folder: str | Path | None = None) -> bool:
    """Whether the files of the data set called ``name`` exist. They are not read."""
    try:
        _LOADERS[validation.choice("dataset", name, names())].find(data_folder(folder))
    except MissingDataError:
        return False
    return True


def load(
    name: str,
    folder: str | Path | None = None,
    *,
    image_size: int = 0,
    vocabulary: int = 0,
    sequence_length: int = 0,
) -> Source:
    """The source called ``name``. ``digits`` and ``infinite-digits`` need no files.

    Args:
        name: one of :func:`names`; or ``module:name`` of a custom function without arguments that returns a
            Source, such as :class:`fedpriv.data.Arrays`. It must return the same data in every process.
        folder: the data folder; None: $FEDPRIV_DATA, otherwise ``~/.cache/fedpriv``.
        image_size: pixels per side, for pneumonia. For this and the next two, 0 is the data set's default.
        vocabulary: the number of distinct words, for imdb, imdb-bag and stackoverflow-tags.
        sequence_length: words per review, for imdb.

    Raises:
        ArgumentError: unknown data set, or it has no such option.
        MissingDataError: its files do not exist.
        DataError: its files are damaged.
    """
    given = {IMAGE_SIZE: image_size, VOCABULARY: vocabulary, LENGTH: sequence_length}
    if user_code.named(name):
        _require_options(name, given, {})
        return _custom(name)
    loader = _LOADERS[
        validation.choice("dataset", name, names(), validation.near(name, names()) or user_code.HINT)
    ]
    _require_options(name, given, loader.options)
    numbers = [given[key] or default for key, default in loader.options.items()]
    return loader.read(loader.find(data_folder(folder)), *numbers)


def _require_options(name: str, given: Mapping[str, int], options: Mapping[str, int]) -> None:
    """Raises ArgumentError for an option that the data set does not have, or for too small a value."""
    for key, value in given.items():
        if value and key not in options:
            raise validation.ArgumentError(
                f"{key}={value} has no effect: the data set {name} has no such option. Leave it at 0."
            )
        if value:
            validation.integer(key, value, _MINIMA[key])


def _custom(name: str) -> Source:
    """The custom source. Raises ArgumentError if it is something else."""
    if user_code.in_memory(name):
        source: Source = user_code.held("dataset", name)
    else:
        source = user_code.called("dataset", name)
    missing = [part for part in _SOURCE_ATTRIBUTES if not hasattr(source, part)]
    if missing:
        hint = f"it returns {type(source).__name__}, which has no attribute {missing[0]}"
        raise user_code.fail("dataset", name, "return a source, such as fedpriv.data.Arrays", hint)
    return source
