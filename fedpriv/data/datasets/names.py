"""NAME: surnames of 18 languages, character by character.

The files of PyTorch's tutorial on classifying names with a character-level RNN, one a language with one
name a line. As there, a name is brought to plain letters (accents fall away, and so does what is left
outside ``LETTERS``). Tokens are 1 + the letter's place in ``LETTERS``, and 0 is the padding. Labels are the
languages in alphabetical order.

Du 2021 (appendix A.9) train with the settings of Opacus' example on these files, and publish neither a
split nor its size; that example trains on a random 80 % of the names. So do we, by our public split
(:mod:`fedpriv.data.splits`): 16,059 names for training and 4,015 for the test.

>>> encode(["Ślusàrski", "O'Néàl"])[:, :7].tolist()
[[45, 12, 21, 19, 1, 18, 19], [41, 57, 40, 5, 1, 12, 0]]
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv.data.arrays import Arrays
from fedpriv.data.files import content
from fedpriv.data.source import Bytes, DataError
from fedpriv.data.splits import split

LETTERS = string.ascii_letters + " .,;'"
LENGTH = 20  # the longest of the public names has 19 letters; longer ones are cut
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
    """``name`` in ``LETTERS`` alone: decomposed, without accents and without anything else."""
    return "".join(letter for letter in unicodedata.normalize("NFD", name) if letter in LETTERS)


def encode(names: Sequence[str]) -> Bytes:
    """Tokens uint8 (n, LENGTH), padded with 0."""
    letters = np.zeros((len(names), LENGTH), np.uint8)
    for row, name in enumerate(names):
        tokens = [1 + LETTERS.index(letter) for letter in plain(name)[:LENGTH]]
        letters[row, : len(tokens)] = tokens
    return letters


def read_names(path: Path) -> list[str]:
    """The names in one language's file. Raises DataError when it is not text, or empty."""
    try:
        names = content(path).decode("utf-8").replace("\r\n", "\n").strip().split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text; fetch it again") from None
    if not any(names):
        raise DataError(f"{path}: has no names; fetch it again")
    return names


def read(paths: Sequence[Path]) -> Arrays:
    """The source of the languages' files, in the order of ``LANGUAGES``. Raises DataError if damaged."""
    names = [read_names(path) for path in paths]
    x = encode([name for some in names for name in some])
    y = np.repeat(np.arange(len(names)), [len(some) for some in names])
    train, test = split(len(x))
    return Arrays(
        "names", x[train], y[train], x[test], y[test], classes=len(LANGUAGES), tokens=(1 + len(LETTERS),)
    )
