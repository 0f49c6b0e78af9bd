"""From a name to a source: where the files lie, and what is made of them.

Files of data set NAME lie in ``<folder>/NAME/``, folder being the argument, else $FEDPRIV_DATA, else
``~/.cache/fedpriv``.

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
_PARTS = tuple(part for part in vars(Source) if not part.startswith("_"))
_LEAST = {IMAGE_SIZE: 8, VOCABULARY: 3, LENGTH: 1}


@dataclass(frozen=True)
class _Loader:
    """How a data set is loaded, in two steps, so that one can look for it without reading it.

    Attributes:
        find: the data folder -> the paths of its files; raises MissingDataError.
        read: those paths, and a number for each of the options -> the source; raises DataError for a
            damaged file.
        options: the options that it has, by key, and their defaults.
    """

    find: Callable[[Path], Any]
    read: Callable[..., Source]
    options: Mapping[str, int] = field(default_factory=dict)


def _files(folder: str, *names: str) -> Callable[[Path], list[Path]]:
    return lambda data: [find(data / folder, name) for name in names]


def _nothing(folder: Path) -> None:
    """Bundled data has no files."""


def read_mnist(paths: list[Path]) -> tuple[Bytes, Indices, Bytes, Indices]:
    """Training images (n, 28, 28) and labels, test images and labels, of the four IDX files.

    Raises DataError for a damaged file.
    """
    x, y, test_x, test_y = (idx.read(path) for path in paths)
    return x, y.astype(np.int64), test_x, test_y.astype(np.int64)


def _find_infinite(folder: Path) -> tuple[list[Path], list[Path]]:
    base = _files("mnist", *IDX_FILES)(folder)
    where = folder / "infinite-mnist"
    given = [path for path in (where / FIELDS_FILE, where / TANGENTS_FILE) if path.is_file()]
    if len(given) == 1:
        # Half of the authors' files would make a data set that nobody else has.
        raise MissingDataError(f"{where} needs both {FIELDS_FILE} and {TANGENTS_FILE}, or neither")
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
    "digits": _Loader(_nothing, lambda paths: Arrays("digits", *digits(), classes=10)),
    "fashion-mnist": _Loader(
        _files("fashion-mnist", *IDX_FILES),
        lambda paths: Arrays("fashion-mnist", *read_mnist(paths), classes=10),
    ),
    "ijcnn1": _Loader(
        _files("ijcnn1", "ijcnn1", "ijcnn1.t"), lambda paths: libsvm.read("ijcnn1", paths, features=22)
    ),
    "imdb": _Loader(lambda folder: imdb.find(folder / "imdb"), imdb.read, {VOCABULARY: 10_000, LENGTH: 256}),
    "imdb-bag": _Loader(lambda folder: imdb.find(folder / "imdb"), imdb.read_bags, {VOCABULARY: 10_000}),
    "infinite-digits": _Loader(_nothing, lambda paths: InfiniteMNIST("infinite-digits", *digits())),
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
    """The options of the data set called ``name``, by configuration key, and their defaults."""
    return _LOADERS[validation.choice("dataset", name, names())].options


def names() -> tuple[str, ...]:
    """The data sets that :func:`load` knows."""
    return tuple(_LOADERS)


def at_hand(name: str, folder: str | Path | None = None) -> bool:
    """Whether the files of the data set called ``name`` are there; they are not read."""
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
    """The source called ``name``; ``digits`` and ``infinite-digits`` need no files.

    Args:
        name: one of :func:`names`; or ``module:name`` of a function of your own that takes nothing and gives
            a Source, such as :class:`fedpriv.data.Arrays`, the same one in every process.
        folder: where the data lies; None: $FEDPRIV_DATA, else ``~/.cache/fedpriv``.
        image_size: pixels of a side, of pneumonia; 0: the data set's own number, as below.
        vocabulary: words that are told apart, of imdb, imdb-bag and stackoverflow-tags.
        sequence_length: words of a review, of imdb.

    Raises:
        ArgumentError: no such data set, or it has no such option.
        MissingDataError: its files are not there.
        DataError: its files are damaged.
    """
    given = {IMAGE_SIZE: image_size, VOCABULARY: vocabulary, LENGTH: sequence_length}
    if user_code.named(name):
        _require_options(name, given, {})
        return _own(name)
    loader = _LOADERS[
        validation.choice("dataset", name, names(), validation.near(name, names()) or user_code.HINT)
    ]
    _require_options(name, given, loader.options)
    numbers = [given[key] or default for key, default in loader.options.items()]
    return loader.read(loader.find(data_folder(folder)), *numbers)


def _require_options(name: str, given: Mapping[str, int], options: Mapping[str, int]) -> None:
    """Raises ArgumentError for an option that is given and not there, or too small."""
    for key, value in given.items():
        if value and key not in options:
            raise validation.fail(key, value, f"be 0 for {name}, which has no such option")
        if value:
            validation.integer(key, value, _LEAST[key])


def _own(name: str) -> Source:
    """The user's source. Raises ArgumentError where it is none."""
    if user_code.in_memory(name):
        source: Source = user_code.held("dataset", name)
    else:
        source = user_code.called("dataset", name)
    missing = [part for part in _PARTS if not hasattr(source, part)]
    if missing:
        hint = f"it gives {type(source).__name__}, without {missing[0]}"
        raise user_code.fail("dataset", name, "give a source, such as fedpriv.data.Arrays", hint)
    return source
