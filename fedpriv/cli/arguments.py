"""The settings on a command line, before they are parsed: ``--set KEY=VALUE`` and the options that set a key.

>>> require_pairs(["--set", "clients", "10"])
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: --set is 'clients'; it must be KEY=VALUE in one word \
(write --set clients=10)
>>> args, replaced = last_of_each(["--set", "epsilon=1", "--seed", "3", "--set", "epsilon=2"])
>>> args
['--seed', '3', '--set', 'epsilon=2']
>>> print(*replaced)
--set epsilon=1 is replaced by --set epsilon=2, which comes later
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from fedpriv._internal import validation

_SET = "--set"
# Options that set a key of the same name, and whether a value follows.
_OPTIONS = {"--out": True, "--seed": True, "--overwrite": False}


@dataclass(frozen=True)
class _Given:
    """One setting as it was typed: where it begins, how many words it has, its key and its value."""

    start: int
    words: int
    key: str
    value: str
    text: str


def require_pairs(args: Sequence[str]) -> None:
    """Raises ArgumentError where a word after ``--set`` has no "=", with what was most likely meant."""
    for at, (option, pair) in enumerate(pairwise(args)):
        if option == _SET and "=" not in pair:
            near_by = takewhile(lambda word: not word.startswith("--"), args[at + 1 : at + 4])
            key, value = [*re.findall(r"[^\s=:]+", " ".join(near_by)), "VALUE"][:2]
            raise validation.fail(_SET, pair, "be KEY=VALUE in one word", f"write --set {key}={value}")


def last_of_each(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with the last occurrence of each setting only, and a sentence for each value that this
    replaces by another."""
    given = list(_settings(args))
    last = {one.key: one for one in given}
    dropped = {one.start: one for one in given if one is not last[one.key]}
    replaced = [
        f"{one.text} is replaced by {last[one.key].text}, which comes later"
        for one in dropped.values()
        if one.value != last[one.key].value
    ]
    left_out = {at for one in dropped.values() for at in range(one.start, one.start + one.words)}
    return [word for at, word in enumerate(args) if at not in left_out], replaced


def _settings(args: Sequence[str]) -> Iterator[_Given]:
    at = 0
    while at < len(args) and args[at] != "--":
        option, equals, value = args[at].partition("=")
        words = 1
        if option == _SET or _OPTIONS.get(option):
            if not equals and at + 1 < len(args):
                value, words = args[at + 1], 2
            key, _, setting = value.partition("=") if option == _SET else (option[2:], "", value)
            yield _Given(at, words, validation.normalised(key), setting.strip(), f"{option} {value}")
        elif option in _OPTIONS:
            yield _Given(at, 1, option[2:], "true", option)
        at += words
