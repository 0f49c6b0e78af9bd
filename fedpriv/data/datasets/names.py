"""NAME: surnames from 18 languages as sequences of characters.

The data is that of PyTorch's tutorial on classifying names with a character-level RNN: one file per language
with one name per line. As there, names are reduced to plain letters: accents and all characters outside
``LETTERS`` are removed. A token is 1 + the letter's position in ``LETTERS``, and 0 is the padding. Labels are
the languages in alphabetical order.

Du 2021 (appendix A.9) use the settings of Opacus' example on these files and publish neither a split nor its
size. That example trains on a random 80 % of the names. Here 80 % are chosen by the public split of
:mod:`fedpriv.data.splits`: 16,059 names for training and 4,015 for the test.

>>> encode(["Ślusàrski", "O'Néàl"])[:, :7].tolist()
[[45, 12, 21, 19, 1, 18, 19], [41, 57, 40, 5, 1, 12, 0]]
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import content
from fedpriv.data.registry import files, register
from fedpriv.data.source import Bytes, DataError
from fedpriv.data.splits import split

LETTERS = string.ascii_letters + " .,;'"
LENGTH = 20  # the longest public name has 19 letters; longer names are truncated
LANGUAGES = (
    "Arabic",
    "Chinese",
    "Czech",
    "Dutch",
    "English",
    "French",
    "German",
    "Greek",
    "Irish",
    "Italian",
    "Japanese",
    "Korean",
    "Polish",
    "Portuguese",
    "Russian",
    "Scottish",
    "Spanish",
    "Vietnamese",
)


def plain(name: str) -> str:
    """``name`` without accents and without any other character outside ``LETTERS``."""
    return "".join(letter for letter in unicodedata.normalize("NFD", name) if letter in LETTERS)


def encode(names: Sequence[str]) -> Bytes:
    """Tokens uint8 (n, LENGTH), padded with 0."""
    letters = np.zeros((len(names), LENGTH), np.uint8)
    for row, name in enumerate(names):
        tokens = [1 + LETTERS.index(letter) for letter in plain(name)[:LENGTH]]
        letters[row, : len(tokens)] = tokens
    return letters


def read_names(path: Path) -> list[str]:
    """The names in one language's file. Raises DataError if it is not UTF-8 text or is empty."""
    try:
        names = content(path).decode("utf-8").replace("\r\n", "\n").strip().split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; fetch it again") from None
    if not any(names):
        raise DataError(f"{path} has no names; fetch it again")
    return names


def read(paths: Sequence[Path]) -> Arrays:
    """The source of the languages' files, in the order of ``LANGUAGES``.

    Raises DataError for a damaged file.
    """
    names = [read_names(path) for path in paths]
    x = encode([name for some in names for name in some])
    y = np.repeat(np.arange(len(names)), [len(some) for some in names])
    train, test = split(len(x))
    return Arrays(
        "names",
        x[train],
        y[train],
        x[test],
        y[test],
        classes=len(LANGUAGES),
        tokens=(1 + len(LETTERS),),
        vocabulary=("", *LETTERS),
        class_names=LANGUAGES,
    )


register("names", files("names", *(f"{language}.txt" for language in LANGUAGES)), read)
