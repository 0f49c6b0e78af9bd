"""Code of a user's own that a setting names, as ``module:name``.

A module is looked for where Python is installed, and then in the current folder. Nothing is imported that a
setting does not name; a node that owns its data imports what its owner accepts (:mod:`fedpriv.node.policy`).

>>> called("model", "torch.nn:Flatten")
Flatten(start_dim=1, end_dim=-1)
>>> called("model", "torch.nn:Flaten")
Traceback (most recent call last):
    ...
fedpriv._internal.user_code.UserCodeError: model is 'torch.nn:Flaten'; it must name something in torch.nn \
(did you mean 'Flatten'?)
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedpriv._internal import validation


class UserCodeError(validation.ArgumentError):
    """Code of a user's own is not there, or failed; the text may quote what it said."""


HINT = "one of your own is named module:name"


def named(value: object) -> bool:
    """Whether a setting's value names code."""
    return isinstance(value, str) and ":" in value


def called(key: str, reference: str, *arguments: Any) -> Any:
    """What the function (or class) at ``module:name`` gives.

    Args:
        key: the setting, for errors.
        reference: ``module:name``.
        arguments: what it is called with, where it has parameters without a default.

    Raises UserCodeError where there is nothing to call, or calling it fails.
    """
    make = found(key, reference)
    return _call(key, reference, lambda: make(*(arguments if _takes_any(make) else ())))


def called_with(key: str, reference: str, arguments: Mapping[str, Any]) -> Any:
    """What the function (or class) at ``module:name`` gives for these keyword arguments.

    Raises UserCodeError as :func:`called` does.
    """
    make = found(key, reference)
    return _call(key, reference, lambda: make(**arguments))


def _call(key: str, reference: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise fail(key, reference, "work when it is called", said(error)) from error


def found(key: str, reference: str) -> Callable[..., Any]:
    """What ``module:name`` names. Raises UserCodeError where there is nothing that can be called."""
    module_name, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise fail(key, reference, "be written module:name, as in mymodel:build")
    here = str(Path.cwd())
    if here not in sys.path:  # at the end: a file in this folder never stands in for an installed module
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        owner: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = f"{said(error)}; modules are looked for where Python is installed, and in {here}"
        raise fail(key, reference, "name a module that can be imported", hint) from error
    for part in name.split("."):
        if not hasattr(owner, part):
            hint = validation.near(part, dir(owner)) or f"it is {getattr(owner, '__file__', None) or owner}"
            raise fail(key, reference, f"name something in {module_name}", hint)
        owner = getattr(owner, part)
    if not callable(owner):
        raise fail(key, reference, "name a function or a class")
    return owner  # type: ignore[no-any-return]


@cache
def source_digest(key: str, reference: str) -> str:
    """A digest of the file that the code at ``module:name`` is in, as it was when it was first asked for in
    this process; empty where there is no file.

    Raises UserCodeError as :func:`called` does, where there is nothing to call.
    """
    found(key, reference)
    file = getattr(sys.modules[reference.partition(":")[0]], "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _takes_any(make: Callable[..., Any]) -> bool:
    """Whether it has positional parameters without a default."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some of C
        return False
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in by_place and p.default is p.empty for p in parameters)


def fail(key: str, reference: str, allowed: str, hint: str = "") -> UserCodeError:
    """As :func:`fedpriv._internal.validation.fail`, for what code of a user's own does."""
    return UserCodeError(str(validation.fail(key, reference, allowed, hint)))


def said(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
