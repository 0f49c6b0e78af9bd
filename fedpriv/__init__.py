"""Differentially private federated learning on PyTorch.

The front door. Each name is imported when it is first used, so that ``import fedpriv`` is fast and does not
import torch.

- :func:`simulate` runs a federation, :func:`train` trains without one, :func:`compare` runs the same
  federation under several placements of the noise, :func:`sweep` a grid of settings, :func:`audit` attacks a
  run, :func:`resume` continues one.
- :func:`account` computes epsilon, :func:`calibrate` the noise for a budget.
- :class:`Config` holds all settings of a run; :class:`Result` is what a run returns, and :func:`load_result`
  opens the folder of an earlier run. A :class:`Callback` follows a run while it goes on.
- ``optimizers``, ``data``, ``accounting`` and ``clipping`` are the packages with the parts.

>>> import fedpriv
>>> result = fedpriv.simulate(
...     model="logistic", clients=2000, sampling_rate=0.05, rounds=3, engine="in-process"
... )
>>> result.epsilon <= 3
True

docs/guides/python.md goes through them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedpriv._internal.version import __version__ as __version__

if TYPE_CHECKING:
    from fedpriv import accounting, clipping, data, optimizers
    from fedpriv._internal.user_code import UserCodeError
    from fedpriv._internal.validation import ArgumentError, FedprivError
    from fedpriv.accounting.answers import account, calibrate
    from fedpriv.config.schema import Config
    from fedpriv.runs.callbacks import Callback
    from fedpriv.runs.result import Result, load_result
    from fedpriv.simulation.api import audit, compare, resume, simulate, train
    from fedpriv.simulation.sweeps.api import sweep

__all__ = [
    "ArgumentError",
    "Callback",
    "Config",
    "FedprivError",
    "Result",
    "UserCodeError",
    "account",
    "accounting",
    "audit",
    "calibrate",
    "clipping",
    "compare",
    "data",
    "load_result",
    "optimizers",
    "resume",
    "simulate",
    "sweep",
    "train",
]

_PACKAGES = ("accounting", "clipping", "data", "optimizers")
# Where each of the other names is.
_HOMES = {
    "ArgumentError": "_internal.validation",
    "Callback": "runs.callbacks",
    "Config": "config.schema",
    "FedprivError": "_internal.validation",
    "Result": "runs.result",
    "UserCodeError": "_internal.user_code",
    "account": "accounting.answers",
    "audit": "simulation.api",
    "calibrate": "accounting.answers",
    "compare": "simulation.api",
    "load_result": "runs.result",
    "resume": "simulation.api",
    "simulate": "simulation.api",
    "sweep": "simulation.sweeps.api",
    "train": "simulation.api",
}


def __getattr__(name: str) -> Any:
    """The public name, imported now (PEP 562)."""
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found  # the next use does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
