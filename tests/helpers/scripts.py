"""Loads the scripts of simulations/, which is not a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SIMULATIONS = Path(__file__).parents[2] / "simulations"


def script(path: str) -> ModuleType:
    """The module of a script, by its path under simulations/."""
    name = "simulation_" + path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, SIMULATIONS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
