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

from pathlib import Path

from fedpriv._internal import user_code, validation
from fedpriv._internal.registry import import_modules
from fedpriv._internal.settings import by_key
from fedpriv.data import datasets
from fedpriv.data.files import MissingDataError, data_folder
from fedpriv.data.readers import hugging_face
from fedpriv.data.registry import DATA_SETS, options, own_settings
from fedpriv.data.source import Source

__all__ = ["DATA_SETS", "at_hand", "load", "names", "options", "own_settings"]

import_modules(datasets.__name__, datasets.__path__)  # each registers its data sets

_SOURCE_ATTRIBUTES = tuple(part for part in vars(Source) if not part.startswith("_"))


def names() -> tuple[str, ...]:
    """The names of the built-in data sets, for :func:`load`."""
    return tuple(sorted(DATA_SETS))


def at_hand(name: str, folder: str | Path | None = None) -> bool:
    """Whether the files of the data set called ``name`` exist. They are not read."""
    try:
        DATA_SETS[name].find(data_folder(folder))
    except MissingDataError:
        return False
    return True


def load(name: str, folder: str | Path | None = None, **own: int) -> Source:
    """The source called ``name``. ``digits`` and ``infinite-digits`` need no files.

    Args:
        name: one of :func:`names`; or ``hf:PATH`` of a data set of Hugging Face ``datasets``
            (:func:`fedpriv.data.hugging_face`); or ``module:name`` of a custom function without arguments
            that returns a Source, such as :class:`fedpriv.data.Arrays`. It must return the same data in every
            process.
        folder: the data folder; None: $FEDPRIV_DATA, otherwise ``~/.cache/fedpriv``.
        own: the data set's own settings, such as ``vocabulary``, which ``fedpriv data info`` lists; 0 is the
            data set's default.

    Raises:
        ArgumentError: unknown data set, or it has no such setting.
        MissingDataError: its files do not exist.
        DataError: its files are damaged.
    """
    given = by_key(own)
    for key, value in given.items():
        if value and key not in options(name):
            raise validation.ArgumentError(
                f"{key}={value} has no effect: the data set {name} has no such option. Leave it at 0."
            )
    if hugging_face.is_path(name):
        return hugging_face.hugging_face(name.removeprefix(hugging_face.PREFIX))
    if user_code.named(name):
        return _custom(name)
    loader = DATA_SETS[name]
    loader.settings.read({key: value for key, value in given.items() if key in loader.options})
    numbers = [given.get(key) or default for key, default in loader.options.items()]
    return loader.read(loader.find(data_folder(folder)), *numbers)


def _custom(name: str) -> Source:
    """The custom source. Raises ArgumentError if it is something else."""
    if user_code.in_memory(name):
        source: Source = user_code.object_in_memory("dataset", name)
    else:
        source = user_code.called("dataset", name)
    missing = [part for part in _SOURCE_ATTRIBUTES if not hasattr(source, part)]
    if missing:
        hint = f"it returns {type(source).__name__}, which has no attribute {missing[0]}"
        raise user_code.fail("dataset", name, "return a source, such as fedpriv.data.Arrays", hint)
    return source
