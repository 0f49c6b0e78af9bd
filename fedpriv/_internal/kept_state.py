"""What own code keeps between calls: tensors in variables of modules, closures and objects.

A loss that appends its examples to a list, or remembers the last one, carries them out of the computation
whose result is bounded and noisy. So the tensors and arrays that own code can reach are compared before and
after a call. What changes only in the first call, as a constant that is computed when it is needed, is
allowed. Numbers and shapes are allowed, too: own code gets each example under ``vmap``, which gives no
numbers of it. Code that keeps examples from some later call on is not found.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

_DEPTH = 5  # from a function to the variables of those that it calls
_MOST = 200  # elements of a container that are looked at, at its end

State = dict[str, tuple[Any, object]]


def reachable(code: Callable[..., Any]) -> State:
    """{where: the tensor or array, and what it was} of all that a function or a callable object can change.

    The result holds references, so that an object that took another's place is not taken for it.
    """
    found: State = {}
    _walk("", code, found, set(), _DEPTH)
    return found


def of_module(module: nn.Module) -> State:
    """The same of a module's own code, and the numbers and texts that its parts keep; not its parameters and
    buffers, which are torch's."""
    found: State = {}
    for place, part in module.named_modules():
        for name, value in _attributes(part) if _own(type(part)) else ():
            where = ".".join(filter(None, (place, name)))
            if value is None or isinstance(value, bool | int | float | str):
                found[where] = None, value
            else:
                _walk(where, value, found, set(), _DEPTH)
    return found


def changed(before: State, after: State) -> str | None:
    """The name of a variable that has another tensor or array, or other numbers in it; None if none has."""
    for where, (value, was) in after.items():
        if where not in before or before[where][0] is not value or before[where][1] != was:
            return where.split(" ")[0]
    return None


def _walk(where: str, value: Any, found: State, met: set[int], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found[where] = value, value._version
    elif isinstance(value, np.ndarray):
        found[where] = value, value.tobytes()
    elif depth >= 0 and id(value) not in met:
        met.add(id(value))
        for name, part in _parts(value):
            _walk(f"{where} {name}".strip(), part, found, met, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object that own code can change, by name."""
    if isinstance(value, Mapping):
        yield from ((str(key), value[key]) for key in list(value)[-_MOST:])
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((str(place), part) for place, part in enumerate(list(value)[-_MOST:]))
    elif isinstance(value, types.MethodType):
        yield from (("", value.__func__), (type(value.__self__).__name__, value.__self__))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("arguments", value.args), ("arguments", value.keywords))
    elif isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, type):
        if _own(value):
            yield from ((k, v) for k, v in vars(value).items() if not k.startswith("__"))
    elif _own(type(value)):
        yield from _attributes(value)
        yield "", vars(type(value)).get("__call__")


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Global and closed-over variables, defaults and attributes of own functions."""
    if not _own(function):
        return
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif value.__name__.split(".")[0] == function.__module__.split(".")[0]:
            yield from ((n, vars(value)[n]) for n in sorted(names & vars(value).keys()))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    yield "defaults", function.__defaults__
    yield "defaults", function.__kwdefaults__
    yield "", vars(function)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """An object's attributes; torch's own tables of a layer begin with an underscore."""
    table = getattr(value, "__dict__", {})
    torchs = vars(nn.Module()).keys() if isinstance(value, nn.Module) else ()
    return [(name, part) for name, part in table.items() if name not in torchs]


def _own(value: Any) -> bool:
    """Whether a function or a class is neither Python's, nor a library's, nor of this package."""
    room = str(getattr(value, "__module__", "")).split(".")[0]
    return room not in ("torch", "numpy", "fedpriv", "builtins", "functools", "collections", "typing", "")
