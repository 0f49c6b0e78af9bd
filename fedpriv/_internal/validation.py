"""Checks of arguments, and the errors that they raise.

Every public entry point checks its arguments with these functions before any work starts. An error names
the argument, its value, the allowed values and, where one is known, a remedy.

>>> probability("sampling-rate", 0.01)
0.01
>>> probability("sampling-rate", 7)
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: sampling-rate is 7; it must lie in [0, 1]
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

_MEANT = "did you mean"
_MANY_WORDS = 8  # more than are read at a glance
_LONGEST_SHOWN = 500  # characters of a value in an error
_ALMOST = 0.85  # of 1, how alike two words are that differ by a letter
_MOST_ENTRIES = 20  # of a list that an error shows


class FedprivError(Exception):
    """A wrong input or a failed resource: the message states the problem and what to do."""

    __module__ = "fedpriv"  # where users import it from, and what a traceback shows


class ArgumentError(FedprivError, ValueError):
    """An argument has a value that is not allowed; the message names both and what to do."""

    __module__ = "fedpriv"


def fail(name: str, value: object, allowed: str, hint: str = "") -> ArgumentError:
    """The error "NAME is VALUE; it must ALLOWED (HINT)".

    Use it where that is a plain sentence. Otherwise raise ``ArgumentError`` with a sentence of its own.

    Args:
        name: the setting or argument.
        value: its value, as :func:`shown` has it.
        allowed: what follows "it must": a verb phrase.
        hint: what to do, or why the value is not allowed.
    """
    return ArgumentError(f"{name} is {shown(value)}; it must {allowed}" + (f" ({hint})" if hint else ""))


def shown(value: object) -> str:
    """A value as an error shows it: its ``repr``, shortened where it is very long.

    Of arrays, and of what has arrays or rows in it, only the kind and the shape are shown: such values may be
    private data.

    >>> shown("a" * 1000)[-10:], shown(10**5000), shown([0.1, 0.2])
    ('aaaaaaa...', 'a number of thousands of digits', '[0.1, 0.2]')
    >>> shown([[1.5, 2.5]]), shown((memoryview(b"ab"), 3))
    ('a list of 1 entry', 'a tuple of 2 entries, the first a memoryview of shape (2,)')
    """
    if kind := _kind_of_data(value):
        return kind
    try:
        text = repr(value)
    except ValueError:  # Python does not write out such numbers
        return "a number of thousands of digits"
    return shortened(text)


def _kind_of_data(value: object) -> str:
    """The kind and the shape of what may hold examples; empty for other values."""
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" or name == "ndarray" else "a"
    shape = getattr(value, "shape", ())
    if not isinstance(value, type) and isinstance(shape, tuple) and shape:
        return f"{article} {name} of shape {tuple(shape)}"
    if not isinstance(value, list | tuple | set | frozenset | dict):
        return ""
    entries = list(value.values()) if isinstance(value, dict) else list(value)
    kinds = [_kind_of_data(entry) for entry in entries[:_MOST_ENTRIES]]
    nested = any(isinstance(entry, list | tuple | dict) for entry in entries)
    if len(entries) <= _MOST_ENTRIES and not any(kinds) and not nested:
        return ""
    first = f", the first {kinds[0]}" if kinds and kinds[0] else ""
    return f"{article} {name} of {len(entries)} entr{'y' if len(entries) == 1 else 'ies'}{first}"


def shortened(text: str) -> str:
    """The beginning of a very long text, such as a library's error that repeats what it was given.

    >>> shortened("as it is"), len(shortened("9" * 5000))
    ('as it is', 500)
    """
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def real(name: str, value: Any, hint: str = "") -> float:
    """``value`` as a float that is not NaN; infinity is allowed."""
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # a whole number beyond all floats
        number = math.nan
    if math.isnan(number):
        raise fail(name, value, "be a number", hint)
    return number


def positive(name: str, value: Any, hint: str = "") -> float:
    """``value`` as a float in (0, inf]."""
    if real(name, value, hint) <= 0:
        raise fail(name, value, "be greater than 0", hint)
    return float(value)


def finite_positive(name: str, value: Any, hint: str = "") -> float:
    """``value`` as a float in (0, inf)."""
    if math.isinf(positive(name, value, hint)):
        raise fail(name, value, "be finite", hint)
    return float(value)


def non_negative(name: str, value: Any, hint: str = "") -> float:
    """``value`` as a float in [0, inf]."""
    if real(name, value, hint) < 0:
        raise fail(name, value, "be 0 or greater", hint)
    return float(value)


def probability(name: str, value: Any, hint: str = "") -> float:
    """``value`` as a float in [0, 1]."""
    if not 0 <= real(name, value, hint) <= 1:
        raise fail(name, value, "lie in [0, 1]", hint)
    return float(value)


def between(name: str, value: Any, low: float, high: float, hint: str = "") -> float:
    """``value`` as a float in the open interval (low, high)."""
    if not low < real(name, value, hint) < high:
        raise fail(name, value, f"lie strictly between {low:g} and {high:g}", hint)
    return float(value)


def integer(name: str, value: Any, minimum: int = 0, hint: str = "") -> int:
    """``value`` as an int of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise fail(name, value, f"be a whole number of at least {minimum}", hint)
    return int(value)


def choice(name: str, value: Any, allowed: Iterable[str], hint: str = "") -> str:
    """``value`` as one of the ``allowed`` words."""
    words = list(allowed)
    if value not in words:
        raise not_among(name, value, words, hint or near(value, words))
    return str(value)


def not_among(name: str, value: object, words: Sequence[str], hint: str = "") -> ArgumentError:
    """The error for a value that is none of the ``words``; of many, they are left out where one was meant.

    >>> print(not_among("unit", "user", ["client", "example"]))
    unit is 'user'; it must be one of client, example
    >>> print(not_among("model", "CNN", ["cnn", *"abcdefgh"], "did you mean 'cnn'?"))
    model is 'CNN'; did you mean 'cnn'?
    """
    if len(words) > _MANY_WORDS and hint.startswith(_MEANT):
        return ArgumentError(f"{name} is {shown(value)}; {hint}")
    return fail(name, value, f"be one of {', '.join(words)}", hint)


def meant(word: str) -> str:
    """The question whether this word was meant."""
    return f"{_MEANT} {word!r}?"


def normalised(value: object) -> str:
    """A word as keys and names are written: in small letters, with hyphens.

    >>> normalised(" DP_SGD")
    'dp-sgd'
    """
    text = str(value) if isinstance(value, str) else shown(value)
    return re.sub(r"[\s_]+", "-", text.strip()).lower()


def near(value: Any, words: Iterable[str]) -> str:
    """The question whether the most similar of ``words`` was meant; empty if none is similar.

    Case, blanks and underscores do not matter. A word that is spelled nearly the same comes first, then one
    with ``value`` for one of its parts, at best the first, then one that is spelled like it.

    >>> near("dp-sdg", ["dp-sgd", "adadp"]), near("DP_SGD", ["adadp", "dp-sgd"])
    ("did you mean 'dp-sgd'?", "did you mean 'dp-sgd'?")
    >>> near("sgd", ["rrpsgd", "dp-sgd"]), near("round", ["round-deadline", "rounds"])
    ("did you mean 'dp-sgd'?", "did you mean 'rounds'?")
    >>> near("sampling", ["silo-sampling", "sampling-rate"])
    "did you mean 'sampling-rate'?"
    """
    wanted, known = normalised(value), {normalised(word): word for word in words}
    of_parts = [name for name in known if wanted in name.split("-")]
    of_parts.sort(key=lambda name: not name.startswith(f"{wanted}-"))
    almost = difflib.get_close_matches(wanted, known, n=1, cutoff=_ALMOST)
    close = almost or of_parts or difflib.get_close_matches(wanted, known, n=1)
    return meant(known[close[0]]) if close else ""


@contextmanager
def python_names(keys: Iterable[str], words: Iterable[str] = ()) -> Iterator[None]:
    """Errors of this block name settings as Python writes them: sampling_rate, not sampling-rate.

    Args:
        keys: the settings, as they are written on the command line.
        words: those of them that are also values of settings; they are changed only where a message begins
            with them.
    """
    try:
        yield
    except FedprivError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (in_python(error.args[0], keys, words), *error.args[1:])
        raise


def in_python(text: str, keys: Iterable[str], words: Iterable[str]) -> str:
    """The text with the keys as Python's names.

    >>> in_python("clip-norm is 0; it must be greater than 0 (see --clip-norm)", ["clip-norm"], [])
    'clip_norm is 0; it must be greater than 0 (see clip_norm)'
    >>> in_python("out is 'a'; it must be a new or empty folder (or give --overwrite)", [], [])
    "folder is 'a'; it must be a new or empty folder (or give overwrite=True)"
    """
    text = re.sub("^(?:FOLDER|out) is ", "folder is ", text)
    text = text.replace("or give --overwrite", "or give overwrite=True")
    words = list(words)
    hyphened = sorted((key for key in keys if "-" in key), key=len, reverse=True)
    anywhere = "|".join(map(re.escape, (key for key in hyphened if key not in words))) or "(?!)"
    first = "|".join(map(re.escape, hyphened)) or "(?!)"
    pattern = rf"^(?:--)?(?:{first})(?![\w-])|(?<![\w/.:-])(?:--)?(?:{anywhere})(?![\w/:-]|\.\w)"
    return re.sub(pattern, lambda found: found[0].removeprefix("--").replace("-", "_"), text)
