"""Settings: frozen groups of checked scalars. Their keys are flat and kebab-case wherever they are written.

>>> class TemperatureSettings(Settings):
...     heating: bool = setting(False, "whether the heating is on")
...     target_degrees: float = setting(20.0, "what it heats to", gt=0, needs=needs(heating=True))
>>> TemperatureSettings.read({"target-degrees": 21}).table()
{'heating': False, 'target-degrees': 21.0}
>>> TemperatureSettings.read({"target-degrees": -1})
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: target-degrees is -1; it must be greater than 0
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedpriv._internal import hints, validation
from fedpriv._internal.registry import Registry

Scalar = str | int | float | bool
_TOO_LARGE = 2**256  # the longest seed has so many bits, and every smaller number is a float


def kebab(name: str) -> str:
    """The key of an attribute."""
    return name.replace("_", "-")


def snake(key: str) -> str:
    """The attribute of a key."""
    return key.replace("-", "_")


@dataclass(frozen=True)
class Needs:
    """What a run must be for a setting to have an effect.

    Attributes:
        text: the condition in words, for errors and help: "srm-step=normalised".
        holds: whether a run, given as all its settings by key, meets it.
        strict: whether a run that does not meet it refuses a value other than the default.
    """

    text: str
    holds: Callable[[Mapping[str, Any]], bool]
    strict: bool = True


def needs(**allowed: Scalar | tuple[Scalar, ...]) -> Needs:
    """The condition that each of these settings has its value, or one of its values."""
    wanted = {
        kebab(name): values if isinstance(values, tuple) else (values,) for name, values in allowed.items()
    }
    parts = [f"{key}={' or '.join(str(toml_word(v)) for v in values)}" for key, values in wanted.items()]
    return Needs(" and ".join(parts), lambda run: all(run[key] in values for key, values in wanted.items()))


def setting(
    default: Any,
    description: str,
    *,
    needs: Needs | None = None,
    filled: bool = False,
    words: Registry[Any] | None = None,
    at_least: int = 0,
    **limits: Any,
) -> Any:
    """A field of a :class:`Settings` class.

    Args:
        default: its value where none is given.
        description: one sentence for people; it says what 0 means where 0 is special.
        needs: the condition under which the setting has an effect; None: always.
        filled: whether the default stands for a value that follows from the other settings.
        words: the registry whose names the setting may be; None: any text, or the words of its Literal.
        at_least: the least value besides 0, which stands for another number.
        limits: gt, ge, lt, le and allow_inf_nan, as of pydantic's Field.
    """
    # Pydantic keeps what it does not know: only a JSON schema, which nothing here makes, would read it.
    extra: Any = {"needs": needs, "filled": filled, "words": words, "at_least": at_least}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Settings(BaseModel):
    """A group of settings. Attributes are the keys with underscores for hyphens."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # neither "1" nor true is the number 1
        alias_generator=kebab,
        populate_by_name=True,
        allow_inf_nan=False,
        defer_build=True,  # validators are made for the groups that are read
    )

    # Values besides the default that mean "not set", by key: earlier versions wrote them into config.toml of
    # runs that do not use the key.
    UNSET: ClassVar[Mapping[str, Scalar]] = {}

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """The settings by key, in order; one dictionary for all calls, which must not be changed."""
        return _fields(cls)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The checked settings, from values by key. Raises ArgumentError, in one line, on the first error."""
        fields = cls.fields()
        for key, value in values.items():
            if isinstance(value, int) and abs(value) >= _TOO_LARGE:
                raise validation.fail(key, value, "be a number of at most 256 bits")
            if (registry := _extra(fields[key]).get("words")) is not None:
                registry.require(value)
        try:
            settings = cls.model_validate({key: _whole(value, fields[key]) for key, value in values.items()})
        except ValidationError as error:
            first = error.errors()[0]
            [key] = (str(part) for part in first["loc"])
            raise _refusal(key, values[key], first, fields[key]) from None
        for key, value in values.items():
            least = _extra(fields[key]).get("at_least", 0)
            if least and value and value < least:
                raise validation.fail(key, value, f"be 0 or at least {least}")
        return settings

    def table(self) -> dict[str, Scalar]:
        """The values by key."""
        return {key: getattr(self, snake(key)) for key in self.fields()}

    def filled_in(self, **values: Scalar) -> Self:
        """A copy with these attributes set, where they are 0; they are not checked again."""
        return self.model_copy(update={name: getattr(self, name) or value for name, value in values.items()})


def own_settings(registry: Registry[Any]) -> dict[type[Settings], list[str]]:
    """The types of settings that entries of a registry have of their own, each with the names of these."""
    found: dict[type[Settings], list[str]] = {}
    for name, entry in registry.items():
        if entry.settings is not Settings:
            found.setdefault(entry.settings, []).append(name)
    return found


def joined(name: str, description: str, *groups: type[Settings]) -> type[Settings]:
    """One type of all settings of these groups, in their order."""
    # Pydantic puts the fields of the last base first.
    module = groups[0].__module__
    return create_model(name, __base__=groups[::-1], __doc__=description, __module__=module)


@functools.cache
def _fields(group: type[Settings]) -> dict[str, FieldInfo]:
    return {kebab(name): field for name, field in group.model_fields.items()}


def condition(field: FieldInfo) -> Needs | None:
    """The condition under which a setting has an effect; None: always."""
    found: Needs | None = _extra(field).get("needs")
    return found


def is_filled(field: FieldInfo) -> bool:
    """Whether the default stands for a value that follows from the other settings."""
    return bool(_extra(field).get("filled"))


def choices(field: FieldInfo) -> dict[str, str]:
    """The words that a setting may be, with what each is where that is known; none where it may be any."""
    if (registry := _extra(field).get("words")) is not None:
        return {word: getattr(entry, "summary", "") for word, entry in registry.items()}
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return dict.fromkeys(words, "")


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def by_key(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by their keys, which may be written with underscores. Raises ArgumentError for a key that is
    given in both ways."""
    found = {kebab(key): value for key, value in values.items()}
    for key in values:
        if len(found) < len(values) and kebab(key) in values and kebab(key) != key:
            raise validation.ArgumentError(f"{kebab(key)} is given twice, with hyphens and with underscores")
    return found


def toml_word(value: Scalar) -> str:
    """A value as TOML text; a text of plain letters stands without quotes, as people write it after --set."""
    return value if isinstance(value, str) else toml_value(value)


def assignments(values: Mapping[str, Scalar]) -> list[str]:
    """Settings as names of runs have them, key=value.

    >>> assignments({"epsilon": 3.0, "sampling-rate": 0.1, "optimizer": "dp-sgd"})
    ['epsilon=3', 'sampling-rate=0.1', 'optimizer=dp-sgd']
    """
    return [f"{key}={shown_word(value)}" for key, value in values.items()]


def shown_word(value: Scalar) -> str:
    """A value as people read it: a whole number is written as one, whatever its type."""
    return toml_word(int(value) if isinstance(value, float) and value.is_integer() else value)


def toml_value(value: Scalar) -> str:
    """A value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _whole(value: Any, field: FieldInfo) -> Any:
    """The value, as an int where the field wants one and a whole number is written as 1e6 is."""
    floats = field.annotation is int and isinstance(value, float)
    return int(value) if floats and value.is_integer() and abs(value) < 2**53 else value


def _refusal(key: str, value: Any, error: ErrorDetails, field: FieldInfo) -> validation.ArgumentError:
    """What pydantic found wrong with a setting, in our words and with what was most likely meant."""
    kind = error["type"]
    if kind == "literal_error":
        words = get_args(field.annotation)
        return validation.not_among(key, value, words, hints.of_value(key, value, words))
    if kind == "int_type" and isinstance(value, float) and value.is_integer():  # too large for _whole
        most = next((limit.le for limit in field.metadata if hasattr(limit, "le")), 2**53)
        return validation.fail(key, value, f"be at most {most:,}")
    allowed = {
        "bool_type": "be true or false",
        "finite_number": "be finite",
        "float_type": "be a number",
        "greater_than": "be greater than {gt:g}",
        "greater_than_equal": "be at least {ge:g}",
        "int_type": "be a whole number",
        "less_than": "be less than {lt:g}",
        "less_than_equal": "be at most {le:g}",
        "string_type": "be a text",
    }.get(kind, error["msg"])
    allowed = allowed.format(**error.get("ctx", {}))
    return validation.fail(key, value, allowed, hints.of_number(key, value))
