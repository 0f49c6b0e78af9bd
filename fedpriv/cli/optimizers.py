"""``fedpriv optimizers``."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import Annotated, Any

import typer

from fedpriv.cli.app import AsJson, app, refusing

_HELP = """List the private optimizers, or show one with its source and settings.

\b
Examples:
  fedpriv optimizers
  fedpriv optimizers dp-srm
"""


@app.command(help=_HELP, short_help="List the private optimizers and their settings.")
def optimizers(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", show_default=False, help="An optimizer, or module:name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    from fedpriv.cli.settings_help import optimizer_help, require_method
    from fedpriv.optimizers import METHODS

    if name is None:
        methods = METHODS.values()
        typer.echo(json.dumps([described(m) for m in methods]) if as_json else listed())
        return
    with refusing():
        method = require_method(name)
    typer.echo(json.dumps(described(method)) if as_json else optimizer_help(method))


def described(method: Any) -> dict[str, Any]:
    """An optimizer as data: its name, what it is, its source, and its settings with their defaults."""
    from fedpriv.cli.settings_help import own_default, settings_of

    return {
        "optimizer": method.name,
        "summary": method.summary,
        "source": method.paper,
        "settings": {
            key: {
                "default": field.default,
                "description": field.description,
                "default is": own_default(key, method),
            }
            for key, field in settings_of(method).items()
        },
    }


def listed() -> str:
    """All optimizers with what they are and their sources, at most 80 columns wide."""
    from fedpriv.optimizers import METHODS

    width = max(map(len, METHODS)) + 2
    lines = []
    for method in METHODS.values():
        text = wrap(method.summary, 80 - width) + wrap(method.paper, 80 - width)
        lines += [
            f"{name:{width}}{line}"
            for name, line in zip([method.name, *[""] * len(text)], text, strict=False)
        ]
    return "\n".join((*lines, "", "`fedpriv optimizers NAME` shows the settings of one."))
