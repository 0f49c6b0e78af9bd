"""An optimizer of the user's own, named ``module:name``, as a method beside those that come with fedpriv.

It is a class with the four functions of :class:`fedpriv.optimizers.base.PrivateOptimizer`. Its constructor is
given each common setting (``learning_rate``, ``clip_norm``, ``momentum``, ...) that is one of its parameters,
and ``rounds``, the releases that the run is planned for. A setting that is not given is the constructor's
default, if it has one.

>>> user_method("fedpriv.optimizers.first_order:dp_adam").uses
('learning-rate', 'clip-norm', 'beta1', 'beta2')
"""

from __future__ import annotations

import inspect
import math
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fedpriv._internal import user_code, validation
from fedpriv._internal.settings import Scalar, Settings, kebab
from fedpriv.optimizers.base import BaseOptimizer
from fedpriv.optimizers.registry import METHODS, BuildContext, Method
from fedpriv.optimizers.schedules import Constant
from fedpriv.optimizers.settings import CommonSettings

if TYPE_CHECKING:
    from fedpriv.optimizers.base import PrivateOptimizer

_COMMON = set(CommonSettings.fields())
_LONGEST = 200  # characters of a setting in a report
_PARTS = ("init", "query", "update", "planned")


def user_method(reference: str) -> Method:
    """The method at ``module:name``. Raises UserCodeError where it cannot be imported."""
    parameters = _parameters(user_code.found("optimizer", reference))
    rate = parameters.get("learning_rate")
    default: float = 0.0 if rate is None or rate.default is rate.empty else rate.default
    return Method(
        name=reference,
        summary="your own",
        paper="",
        build=partial(_build, reference, tuple(parameters)),
        uses=tuple(kebab(name) for name in parameters if kebab(name) in _COMMON),
        learning_rate=default,
        clip_norms=("clip-norm",) if "clip_norm" in parameters else (),
    )


def own_defaults(reference: str) -> dict[str, Scalar]:
    """The defaults that the constructor at ``module:name`` has for common settings.

    Raises UserCodeError where it cannot be imported.
    """
    parameters = _parameters(user_code.found("optimizer", reference)).items()
    found = {kebab(name): parameter.default for name, parameter in parameters}
    return {key: value for key, value in found.items() if key in _COMMON and isinstance(value, Scalar)}


def given_method(name: str, optimizer: PrivateOptimizer) -> Method:
    """An optimizer that was handed over as an object. Raises UserCodeError unless it is of the protocol.

    An object of ours hands out an average of its models by default, and refuses wrappers, as it does by name.
    """
    require_optimizer(name, optimizer)
    ours = METHODS.get(name_of(optimizer))
    return Method(
        name=name,
        summary="your own",
        paper="",
        build=lambda own, context: optimizer,
        uses=(),
        learning_rate=0.0,
        check=partial(_check_whole_steps, optimizer),
        averaging=ours.averaging if ours else 0.0,
        adaptive_clipping=ours.adaptive_clipping if ours else "",
        regularisers=ours.regularisers if ours else "",
        clip_norms=(),
    )


def _check_whole_steps(optimizer: PrivateOptimizer, own: Settings, context: BuildContext) -> None:
    """Raises ArgumentError where a silo's round ends within a step of several releases."""
    if context.by_silo and len(optimizer.planned(context.silo_steps)) < context.silo_steps:
        allowed = f"make whole steps of {name_of(optimizer)}"
        hint = "its step is several releases"
        raise validation.fail("silo-steps", context.silo_steps, allowed, hint)


def require_optimizer(reference: str, optimizer: Any) -> PrivateOptimizer:
    """``optimizer`` as one of the protocol. Raises UserCodeError where it lacks a part of it."""
    missing = [part for part in _PARTS if not callable(getattr(optimizer, part, None))]
    if missing:
        hint = f"{type(optimizer).__name__} has no method {missing[0]}"
        raise user_code.fail("optimizer", reference, f"have the methods {', '.join(_PARTS)}", hint)
    if type(optimizer).update is BaseOptimizer.update:
        hint = f"{type(optimizer).__name__} has only the one of BaseOptimizer"
        raise user_code.fail("optimizer", reference, "have a method update of its own", hint)
    return optimizer  # type: ignore[no-any-return]


def name_of(optimizer: PrivateOptimizer) -> str:
    """What an optimizer that was handed over as an object is called: the name of a method of ours; of another
    class module:name where it can be imported, else its name.

    >>> from fedpriv.optimizers.first_order import dp_adam
    >>> name_of(dp_adam(1e-3, clip_norm=1))
    'dp-adam'
    """
    name, kind = getattr(optimizer, "name", None), type(optimizer)
    if isinstance(name, str) and name:
        return name
    module = sys.modules.get(kind.__module__)
    importable = kind.__module__ != "__main__" and getattr(module, kind.__qualname__, None) is kind
    return f"{kind.__module__}:{kind.__qualname__}" if importable else kind.__name__


def settings_of(optimizer: PrivateOptimizer) -> dict[str, Scalar | None]:
    """The attributes of an optimizer that was handed over as an object, as far as they can be written down.

    >>> from fedpriv.optimizers.first_order import dp_sgd
    >>> settings_of(dp_sgd(0.5, clip_norm=1.0))["learning_rate"]
    0.5
    """
    written = {name: _written(value) for name, value in getattr(optimizer, "__dict__", {}).items()}
    return {name: value for name, value in written.items() if value is not ... and name[0] != "_"}


def _written(value: Any) -> Any:
    """A value of JSON: a scalar, or the text of schedules and of other parts; ``...`` for what is none.

    A text has at most ``_LONGEST`` characters.
    """
    if isinstance(value, Constant):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."
    if value is None or isinstance(value, Scalar):
        return value
    return textwrap.shorten(repr(value), _LONGEST) if is_dataclass(value) else ...


def _parameters(make: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some of C
        return {}


def _build(
    reference: str, parameters: tuple[str, ...], own: Settings, context: BuildContext
) -> PrivateOptimizer:
    given = {name: getattr(context.common, name) for name in parameters if kebab(name) in _COMMON}
    if "learning_rate" in given and not given["learning_rate"]:
        raise validation.fail("learning-rate", 0.0, f"be given: {reference} has no default for it")
    if "rounds" in parameters:
        given["rounds"] = context.rounds
    made = user_code.called_with("optimizer", reference, given)
    return require_optimizer(reference, made)
