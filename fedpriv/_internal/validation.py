"""Validation that names the argument, the value, what is allowed and what to do.

Every public entry point checks its arguments with these functions before any work starts.

>>> probability("sampling-rate", 0.01)
0.01
>>> probability("sampling-rate", 7)
Traceback (most recent call last):
    ...
fedpriv._internal.validation.ArgumentError: sampling-rate is 7; it must lie in [0, 1]
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


class FedprivError(Exception):
    """What people can get wrong, or what failed outside: the message says what, and what to do."""


class ArgumentError(FedprivError, ValueError):
    """An argument is outside what is allowed; the message says which, and what to do."""


def fail(name: str, value: object, allowed: str, hint: str = "") -> ArgumentError:
    """The error for ``name`` having ``value`` where only ``allowed`` will do."""
    return ArgumentError(f"{name} is {value!r}; it must {allowed}" + (f" ({hint})" if hint else ""))


def real(name: str, value: Any, hint: str = "") -> float:
    """``value`` as a float that is not NaN; infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(float(value)):
        raise fail(name, value, "be a number", hint)
    return float(value)


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
        raise fail(name, value, "be one of " + ", ".join(words), hint or near(value, words))
    return str(value)


def near(value: Any, words: Iterable[str]) -> str:
    """A question whether the word most like ``value`` was meant, or nothing where none is like it.

    >>> near("dp-sdg", ["dp-sgd", "adadp"])
    "did you mean 'dp-sgd'?"
    """
    close = difflib.get_close_matches(str(value), words, n=1)
    return f"did you mean {close[0]!r}?" if close else ""
