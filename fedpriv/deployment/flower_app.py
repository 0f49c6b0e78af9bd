"""The Flower app that a deployment's runs ship.

It holds two modules that import fedpriv's apps, and all settings with their defaults. So nobody needs a
clone of fedpriv, a run ships no copy of the package, and every party executes the fedpriv that it has
installed. The app's files, and with them its hash, depend only on fedpriv's version.
"""

from __future__ import annotations

from pathlib import Path

from fedpriv._internal.settings import toml_value
from fedpriv._internal.version import __version__
from fedpriv.config.schema import Config

NAME = "fedpriv_app"
FOLDER = "fedpriv-app"
_LICENSE = "SPDX-License-Identifier: Apache-2.0\n"
_MODULE = """\
\"\"\"fedpriv's {app}, as it is installed.\"\"\"

from fedpriv.flower import {module}

app = {module}.app
"""
_PYPROJECT = """\
[project]
name = "fedpriv-app"
version = "{version}"
description = "The apps of the installed fedpriv"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "fedpriv"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "{name}.server:app"
clientapp = "{name}.client:app"

[tool.flwr.app.config]
"""


def files(config: Config | None = None, server: str = "") -> dict[str, str]:
    """{relative path: content} of the app.

    Args:
        config: its settings; None: their defaults.
        server: the text of the module of its ServerApp; "": fedpriv's own.
    """
    table = {} if config is None else config.table()
    values = {key: table.get(key, field.default) for key, field in Config.all_fields().items()}
    defaults = "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())
    return {
        "pyproject.toml": _PYPROJECT.format(version=__version__, name=NAME) + defaults,
        "LICENSE": _LICENSE,
        f"{NAME}/__init__.py": '"""fedpriv\'s apps."""\n',
        f"{NAME}/server.py": server or _MODULE.format(app="ServerApp", module="server_app"),
        f"{NAME}/client.py": _MODULE.format(app="ClientApp", module="client_app"),
    }


def write(folder: Path, config: Config | None = None, server: str = "") -> None:
    """Writes the app of the installed version, over an app of another version; arguments as :func:`files`."""
    for name, content in files(config, server).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != content:
            path.write_text(content)
