"""The command that makes a run like one from a folder: its settings that are not as by default.

>>> command(Config.parse({"epsilon": 1, "dataset": "my data:load"}))
"fedpriv simulate --set 'dataset=my data:load' --set epsilon=1.0"
"""

from __future__ import annotations

import shlex

from fedpriv._internal import user_code
from fedpriv.config import centralised
from fedpriv.config.schema import Config

_NOT_REPEATED = ("out", "overwrite", "ledger-anchor", "ledger-anchor-command")


def command(config: Config) -> str:
    """The command; empty where a setting is an object in memory, or nodes own their data."""
    if config.nodes_own_data or any(user_code.in_memory(value) for value in config.table().values()):
        return ""
    changed = changes(config)
    verb = "train" if config.centralised else "simulate"
    if config.centralised:
        changed = {key: value for key, value in changed.items() if key not in centralised.SET}
    words = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changed.items()
    ]
    return " ".join(["fedpriv", verb, *(part for word in words for part in ("--set", shlex.quote(word)))])


def changes(config: Config) -> dict[str, object]:
    """The settings that have an effect and are not as by default."""
    defaults, derived, idle = Config.parse({}).table(), config.derived(), config.without_effect()
    return {
        key: value
        for key, value in config.table().items()
        if key not in (*_NOT_REPEATED, *idle) and value not in (defaults.get(key), derived.get(key))
    }
