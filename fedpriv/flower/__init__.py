"""fedpriv on Flower's message API: ServerApp, ClientApp, messages, and two grids for simulations.

A :class:`~fedpriv.flower.grid_engine.GridEngine` requests one bounded sum from each node of any Flower
``Grid``. The ClientApp in :mod:`fedpriv.flower.client_app` answers for all virtual clients of its node.

:class:`~fedpriv.flower.private_strategy.PrivateStrategy` trains the model of any other Flower app privately.
With :data:`~fedpriv.flower.noise_mod.private_mod` the app's clients add the noise.
:class:`~fedpriv.flower.silo_app.Silo` trains privately inside any other ClientApp.
:func:`~fedpriv.flower.virtual_app.virtual_clients` makes an app whose nodes answer for many clients each.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.flower.noise_mod import PrivateMod, private_mod
    from fedpriv.flower.private_strategy import PrivateStrategy
    from fedpriv.flower.silo_app import Silo
    from fedpriv.flower.virtual_app import virtual_clients

__all__ = ["PrivateMod", "PrivateStrategy", "Silo", "private_mod", "virtual_clients"]

_HOMES = {
    "PrivateMod": "noise_mod",
    "PrivateStrategy": "private_strategy",
    "Silo": "silo_app",
    "private_mod": "noise_mod",
    "virtual_clients": "virtual_app",
}

# Flower and Ray report usage by default; fedpriv reports nothing. They read this when they are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def __getattr__(name: str) -> Any:
    """The public name, imported now: the apps of fedpriv do not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
