"""Torch, SciPy and NumPy, imported when they are first used.

Modules that hold settings take them from here, so that a setting is checked, and a typing error refused,
without the seconds that importing them takes. Type checkers see the modules themselves.

>>> torch.zeros(2).tolist()
[0.0, 0.0]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as numpy
    import scipy as scipy
    import torch as torch
    from torch import nn as nn
else:

    class _Module:
        """Stands for a module until one of its attributes is asked for."""

        _module: Any = None

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            if self._module is None:  # looking it up again would take ten times as long
                self._module = importlib.import_module(self._name)
            return getattr(self._module, attribute)

    numpy = _Module("numpy")
    scipy = _Module("scipy")
    torch = _Module("torch")
    nn = _Module("torch.nn")
