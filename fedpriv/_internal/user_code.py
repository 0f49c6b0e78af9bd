"""User code: functions and classes that a setting names as ``module:name``, and objects in memory.

A module is searched in Python's path, and then in the current folder. Only modules that a setting names are
imported. A node that owns its data imports only code that its owner accepts (:mod:`fedpriv.node.policy`).

An object that is passed to ``fedpriv.simulate`` has the name ``in-memory:NAME`` in the configuration. It
exists in this process only, within :func:`objects`; it is never pickled or sent to another process.

>>> called("model", "torch.nn:Flatten")
Flatten(start_dim=1, end_dim=-1)
>>> called("model", "torch.nn:Flaten")
Traceback (most recent call last):
    ...
fedpriv.UserCodeError: model is 'torch.nn:Flaten'; it must name something in torch.nn \
(did you mean 'Flatten'?)
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, cast

from fedpriv._internal import validation


class UserCodeError(validation.ArgumentError):
    """User code is missing or failed; the message may quote its error."""

    __module__ = "fedpriv"


SETTINGS = ("dataset", "model", "loss", "optimizer")  # that may name code
HINT = "your own is named module:name"
IN_MEMORY = "in-memory"  # not an identifier, so no module has this name

_objects: ContextVar[Mapping[str, Any]] = ContextVar("fedpriv-objects", default={})  # noqa: B039
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_STANDARD = str(Path(os.__file__).parent) + os.sep  # Python's own modules
_GENERATED = ("<string>", "<frozen", "<__array")  # files of code that a library made, as of dataclasses


def named(value: object) -> bool:
    """Whether a setting's value names code or an object in memory."""
    return isinstance(value, str) and ":" in value


def in_memory(value: object) -> bool:
    """Whether a setting's value names an object in memory."""
    return isinstance(value, str) and value.startswith(f"{IN_MEMORY}:")


def reference(value: Any) -> str:
    """The name of an object in a configuration: its ``__name__`` or ``name``, otherwise its class's name.

    >>> reference(sum), reference(3)
    ('in-memory:sum', 'in-memory:int')
    """
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return f"{IN_MEMORY}:{name if isinstance(name, str) and name else type(value).__name__}"


@contextmanager
def objects(by_key: Mapping[str, Any]) -> Iterator[None]:
    """Within this block, settings that name an object in memory refer to these, by the setting's key."""
    token = _objects.set({**_objects.get(), **by_key})
    try:
        yield
    finally:
        _objects.reset(token)


def given() -> Mapping[str, Any]:
    """The objects of the innermost :func:`objects` blocks, by the setting's key."""
    return _objects.get()


def object_in_memory(key: str, name: str) -> Any:
    """The object in memory that the setting ``key`` names. Raises UserCodeError if there is none."""
    given = _objects.get()
    if key not in given or reference(given[key]) != name:
        hint = "it was an object in memory; pass it again from Python"
        raise fail(key, name, "be an object that exists in this process", hint)
    return given[key]


def called(key: str, reference: str, *arguments: Any) -> Any:
    """The result of calling the function (or class) at ``module:name``.

    Args:
        key: the setting, for errors.
        reference: ``module:name``, or ``in-memory:name`` of a callable object.
        arguments: its arguments, if it has parameters without a default.

    Raises UserCodeError if there is nothing to call, or the call fails.
    """
    make = found(key, reference)
    return _call(key, reference, lambda: make(*(arguments if _takes_any(make) else ())))


def called_with(key: str, reference: str, arguments: Mapping[str, Any]) -> Any:
    """The result of calling the function (or class) at ``module:name`` with these keyword arguments.

    Raises UserCodeError as :func:`called` does.
    """
    make = found(key, reference)
    return _call(key, reference, lambda: make(**arguments))


def _call(key: str, reference: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise fail(key, reference, "work when it is called", described(error)) from error


def found(key: str, reference: str) -> Callable[..., Any]:
    """The callable at ``module:name``, or the object ``in-memory:name``. Raises UserCodeError if there is
    none."""
    if in_memory(reference):
        return object_in_memory(key, reference)  # type: ignore[no-any-return]
    module_name, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise fail(key, reference, "be written module:name, as in mymodel:build")
    here = str(Path.cwd())
    if here not in sys.path:  # at the end, so that a file in this folder never hides an installed module
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        owner: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = f"{described(error)}; modules are looked for where Python is installed, and in {here}"
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
    """The SHA-256 digest of the file of ``module:name``, read on the first call in this process.

    It is empty for an object in memory (:func:`content_digest`), and for a module without a file. Raises
    UserCodeError if there is nothing to call.
    """
    if in_memory(reference):
        return ""
    found(key, reference)
    file = getattr(sys.modules[reference.partition(":")[0]], "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def content_digest(given: Any) -> str:
    """The SHA-256 digest of what is public of an object in memory; empty where nothing is known to be.

    Checkpoints keep it, so it must not tell anything of private examples: whoever guesses them could confirm
    it. A data set says it by its method ``public_digest``; of a model it is that of the values at the start.
    """
    if callable(own := getattr(given, "public_digest", None)):
        return str(own())
    if not callable(state := getattr(given, "state_dict", None)):
        return ""
    found = hashlib.sha256(repr(given).encode())
    for name, tensor in state().items():
        found.update(name.encode())
        if hasattr(tensor, "detach"):
            found.update(tensor.detach().cpu().double().numpy().tobytes())
    return found.hexdigest()


def _takes_any(make: Callable[..., Any]) -> bool:
    """Whether ``make`` has positional parameters without a default."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in by_place and p.default is p.empty for p in parameters)


def fail(key: str, reference: str, allowed: str, hint: str = "") -> UserCodeError:
    """As :func:`fedpriv._internal.validation.fail`, for failures of user code."""
    return UserCodeError(str(validation.fail(key, reference, allowed, hint)))


def described(error: BaseException) -> str:
    """An exception in one line, with its place in the user's code.

    >>> try:
    ...     int("seven")
    ... except ValueError as error:
    ...     described(error).split(" at ")[0]
    "ValueError: invalid literal for int() with base 10: 'seven',"
    """
    text = " ".join(str(error).split())
    place = _place(error)
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__) + (place and f", at {place}")


def trace(error: BaseException) -> str:
    """The part of an error's traceback that is in user code; empty if there is none.

    Frames of libraries, of Ray and of this package are left out. For a :class:`UserCodeError` it is the
    traceback of its cause.
    """
    inner = error.__cause__ if isinstance(error, UserCodeError) and error.__cause__ else error
    found = traceback.TracebackException.from_exception(inner)
    in_users_code, part = isinstance(inner, SyntaxError), cast("traceback.TracebackException | None", found)
    while part is not None:
        part.stack = traceback.StackSummary.from_list([f for f in part.stack if _is_users(f.filename)])
        in_users_code = in_users_code or bool(part.stack)
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(found.format()).rstrip() if in_users_code else ""


def _place(error: BaseException) -> str:
    """File, line and function of the last frame in user code; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""


def _is_users(file: str) -> bool:
    library = any(part in ("site-packages", "dist-packages") for part in Path(file).parts)
    return not (library or file.startswith((_PACKAGE, _STANDARD, *_GENERATED)))
