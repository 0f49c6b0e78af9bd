"""The settings as the commands' help and ``fedpriv optimizers`` show them, at most 80 columns wide."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from pydantic.fields import FieldInfo

from fedpriv._internal import user_code, validation
from fedpriv._internal.settings import choices, condition, snake
from fedpriv.config.schema import GROUPS, Config
from fedpriv.data.loaders import DATA_SETS, options
from fedpriv.data.loaders import own_settings as of_data_sets
from fedpriv.mechanism.settings import owned
from fedpriv.optimizers import METHODS, DefaultRate, Method, OptimizerSettings
from fedpriv.optimizers.settings import WRAPPER_KEYS

WIDTH = 80
_MANY = 8  # of so many words a setting's help says only the names
_COMMON = "Optimizer: common"


def settings_help(args: Sequence[str]) -> str:
    """All settings that a command takes, by group; of optimizers, data sets, samplers and placements those
    of the ones that ``args`` choose."""
    method: Method | None = METHODS.get(_chosen(args, "optimizer"))
    others = _of_other_data_sets(_chosen(args, "dataset")) | _of_other_choices(args)
    lines = ["Settings (in CONFIG.toml, or --set KEY=VALUE), with their defaults:"]
    for title, group in GROUPS.items():
        if title != _COMMON:
            lines += _group(title, {key: field for key, field in group.fields().items() if key not in others})
            continue
        fields = group.fields()
        used = {"optimizer", *WRAPPER_KEYS, *(method.uses if method else fields)}
        lines += _group(title, {key: field for key, field in fields.items() if key in used}, method)
        if method and method.settings.model_fields:
            lines += _group(f"Optimizer: {method.name}", method.settings.fields(), method)
    return "\n".join((*lines, "", *_others(method)))


def optimizer_help(method: Method) -> str:
    """What is known of one optimizer: what it is, its source, and every setting that it uses."""
    fields = settings_of(method)
    lines = [*_wrapped(f"{method.name}: {method.summary}", ""), *_wrapped(f"source: {method.paper}", "")]
    lines += _group("Settings", fields, method)
    if method.adaptive_clipping:
        lines += ["", *_wrapped(f"adaptive-quantile must be 0: {method.adaptive_clipping}", "")]
    return "\n".join(lines)


def settings_of(method: Method) -> dict[str, FieldInfo]:
    """The settings that one optimizer uses, by key; averaging is among them where its default averages."""
    common = OptimizerSettings.fields()
    keys = (*method.uses, "averaging") if method.averaging else method.uses
    return {key: common[key] for key in keys} | method.settings.fields()


def own_default(key: str, method: Method | None) -> str:
    """What a shared setting's default stands for with this optimizer; empty where it is what it says."""
    if method is None:
        return ""
    if key == "learning-rate":
        rate = method.learning_rate
        return rate.text if isinstance(rate, DefaultRate) else f"{rate:g}"
    if key == "averaging":
        return f"{method.averaging:g}"
    return f"{method.defaults[snake(key)]:g}" if snake(key) in method.defaults else ""


def _chosen(args: Sequence[str], setting: str) -> str:
    """What these arguments choose for a setting, or its default."""
    name: str = Config.fields()[setting].default
    for word in args:
        key, equals, value = word.removeprefix("--set=").partition("=")
        if equals and validation.normalised(key) == setting:
            name = value.strip().strip("\"'")
    return name


def _of_other_data_sets(name: str) -> set[str]:
    """The settings that only data sets other than this one have; none where the data set is unknown."""
    if name not in DATA_SETS and not user_code.named(name):
        return set()
    return {key for kind in of_data_sets() for key in kind.fields()} - set(options(name))


def _of_other_choices(args: Sequence[str]) -> set[str]:
    """The settings of placements and samplers that are not chosen."""
    run = {setting: _chosen(args, setting) for setting in ("placement", "sampler")}
    return {key for key, need in owned().items() if not need.holds(run)}


def _others(method: Method | None) -> Iterator[str]:
    """Where the settings of the other optimizers are listed."""
    name = "NAME" if method is None else method.name
    text = f"Above are the settings of {name}. " if method else ""
    other = "`--help --set optimizer=NAME` shows those of another optimizer"
    yield from _wrapped(f"{text}{other}; `fedpriv optimizers` lists all of them.", "")


def _group(title: str, fields: Mapping[str, FieldInfo], method: Method | None = None) -> Iterator[str]:
    yield from ("", f"{title}:")
    for key, field in fields.items():
        yield f"  {key} = {json.dumps(field.default)}"
        yield from _wrapped(field.description or "", "      ")
        if text := own_default(key, method):
            yield from _wrapped(f"{field.default:g} is {text}", "      ")
        if words := choices(field):
            short = len(words) < _MANY and all(words.values())
            texts = [f"{word} ({text})" for word, text in words.items()] if short else list(words)
            yield from _wrapped(f"one of: {', '.join(texts)}", "      ")
        need = condition(field) or (method.needs.get(key) if method else None)
        if need is not None and need.strict:
            yield from _wrapped(f"needs {need.text}", "      ")


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )  # a setting's name stays whole


def require_method(name: str) -> Method:
    """The optimizer of that name, or at ``module:name``. Raises ArgumentError where there is none."""
    from fedpriv.optimizers import user_method

    return user_method(name) if user_code.named(name) else METHODS[name]
