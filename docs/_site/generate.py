"""The pages of the documentation that are made from the code: command line, settings, optimizers, Python API.

``pages()`` gives them as Markdown by their path in the site. Nothing here needs mkdocs.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

import fedpriv
from fedpriv._internal.settings import choices
from fedpriv.models import MODELS

ROOT = Path(__file__).resolve().parents[2]

# Packages that are not for users: helpers, and the commands, whose own page is the command line.
_PRIVATE = {"_internal", "cli", "__main__"}


def pages() -> dict[str, str]:
    """All generated pages: Markdown text by path, such as ``reference/settings.md``."""
    return {
        "reference/command-line.md": command_line(),
        "reference/settings.md": settings(),
        "reference/optimizers.md": optimizers(),
        "reference/models.md": models(),
        **{f"reference/api/{name}.md": text for name, text in api()},
    }


def command_line() -> str:
    """Every command with its help text, as ``fedpriv COMMAND --help`` prints it."""
    from fedpriv.cli import app

    root = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "This page is generated from the commands. `fedpriv COMMAND --help` prints the same.",
        "The settings that `--set` and a TOML file take are listed on [Settings](settings.md).",
    ]
    for name, command in _commands(root, "fedpriv"):
        lines += ["", f"## {name}", "", "```text", _help(name, command), "```"]
    return "\n".join(lines) + "\n"


def _commands(group: click.Command, prefix: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield prefix, group
        return
    for name, command in group.commands.items():
        yield from _commands(command, f"{prefix} {name}")


def _help(name: str, command: click.Command) -> str:
    with click.Context(command, info_name=name, max_content_width=100, terminal_width=100) as context:
        return command.get_help(context).rstrip()


def settings() -> str:
    """Every setting of a run with its default, its values and its meaning, by group."""
    lines = [
        "# Settings",
        "",
        "This page is generated from the code. A run's settings go into a TOML file, after `--set` on the",
        "command line, into `--run-config` of `flwr run`, and, with underscores for hyphens, into",
        "`fedpriv.simulate(...)`.",
    ]
    for group, rows in _groups():
        lines += ["", f"## {group}", "", "| setting | default | values | meaning |", "|---|---|---|---|"]
        lines += [" | ".join(("", *map(_cell, row), "")).strip() for row in rows]
    return "\n".join(lines) + "\n"


def _groups() -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    from fedpriv.config.schema import Config

    for title, fields in Config.groups().items():
        yield (
            title,
            [
                (f"`{key}`", f"`{_toml(field.default)}`", _values(field), field.description or "")
                for key, field in fields.items()
            ],
        )


def _values(field: Any) -> str:
    if words := choices(field):
        return ", ".join(f"`{word}`" + (f" ({text})" if text else "") for word, text in words.items())
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [
        f"{text} {getattr(limit, sign):g}"
        for limit in field.metadata
        for sign, text in signs.items()
        if getattr(limit, sign, None) is not None
    ]
    return ", ".join(
        [
            {str: "text", int: "whole number", float: "number", bool: "true, false"}.get(
                field.annotation, "value"
            ),
            *limits,
        ]
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def optimizers() -> str:
    """The table of README between its markers."""
    text = (ROOT / "README.md").read_text()
    table = text.partition("<!-- optimizers:begin -->")[2].partition("<!-- optimizers:end -->")[0]
    return f"# Optimizers\n\nThis page is generated from the code.\n{table}"


def models() -> str:
    """Every built-in model with its inputs, its size and its source."""
    lines = ["# Models", "", "This page is generated from the code.", ""]
    lines += ["| `model` | inputs | what it is | parameters | source |", "|---|---|---|---|---|"]
    lines += [
        f"| `{model.name}` | {model.inputs} | {model.summary} | {model.parameters} | {model.source} |"
        for model in MODELS.values()
    ]
    return "\n".join(lines) + "\n"


def api() -> list[tuple[str, str]]:
    """A page for the front door and one for each package: (name, Markdown), in the order of the site.

    Each object is documented once; where it is public under a second name, that name leads to it.
    """
    packages = [info.name for info in pkgutil.iter_modules(fedpriv.__path__) if info.name not in _PRIVATE]
    documented: set[str] = set()
    return [(name, _page(name, documented)) for name in ("fedpriv", *packages)]


def public_names(module: types.ModuleType) -> list[str]:
    """What a module offers: its ``__all__``, in its order."""
    return list(getattr(module, "__all__", []))


def _page(name: str, documented: set[str]) -> str:
    """The names of a package's ``__all__``; where it has none, those of all of its modules."""
    module = fedpriv if name == "fedpriv" else importlib.import_module(f"fedpriv.{name}")
    own = f"::: {module.__name__}\n    options: {{members: false, show_root_heading: false}}"
    entries = [own] if hasattr(module, "__path__") else []
    if names := public_names(module):
        entries += [_entry(module, each, documented) for each in names]
    else:
        entries += [_module(each, documented) for each in _modules(module)]
    return "\n\n".join([f"# {module.__name__}", *entries]) + "\n"


def _modules(package: types.ModuleType) -> Iterator[str]:
    if not hasattr(package, "__path__"):
        yield package.__name__
        return
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.ispkg and not any(part.startswith("_") for part in info.name.split(".")):
            yield info.name


def _module(name: str, documented: set[str]) -> str:
    """A module with the public classes and functions that are defined in it and not documented yet."""
    members = [
        key
        for key, value in vars(importlib.import_module(name)).items()
        if not key.startswith("_") and _home(value) == f"{name}.{key}" and f"{name}.{key}" not in documented
    ]
    documented.update(f"{name}.{key}" for key in members)
    return f"::: {name}\n    options: {{members: {members or 'false'}}}"


def _home(found: Any) -> str:
    """Where a class or function is defined; empty for anything else."""
    is_code = inspect.isclass(found) or inspect.isroutine(found)
    return f"{found.__module__}.{found.__qualname__}" if is_code else ""


def _entry(module: types.ModuleType, name: str, documented: set[str]) -> str:
    """One public name: documented where it is defined, under the name that people import."""
    found = getattr(module, name)
    heading = f"{module.__name__}.{name}"
    if inspect.ismodule(found):
        return f"## {heading}\n\nThe package [`{found.__name__}`]({found.__name__.split('.')[1]}.md)."
    home = _home(found)
    if home in documented:
        return f"## {heading}\n\nSee [`{home}`][{home}]."
    if home:
        documented.add(home)
        return f'::: {home}\n    options: {{heading: "{heading}"}}'
    return f"::: {heading}"
