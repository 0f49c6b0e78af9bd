"""One toy federation that every engine runs, and how its parameters are read back."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet
from safetensors.torch import load_file

from fedpriv.config.builders import make_source, make_task
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine
from fedpriv.node.silo import SiloEngine
from fedpriv.runs.runner import execute
from fedpriv.simulation.run import make_engine

TOY: dict[str, object] = {
    "dataset": "infinite-digits",
    "model": "logistic",
    "clients": 1000,
    "sampling-rate": 0.05,
    "rounds": 4,
    "learning-rate": 0.5,
    "delta": 1e-5,
    "chunk-size": 16,
    "evaluate-every": 4,
    "seed": 3,
}


def pairs(
    cases: Iterable[str],
    engines: Iterable[str],
    slow: Sequence[tuple[str, str]],
    again: Sequence[tuple[str, str]] = (),
) -> list[ParameterSet]:
    """Each case with each engine, some of them among the slow tests, and some that repeat others."""

    def marks(pair: tuple[str, str]) -> list[pytest.MarkDecorator]:
        if pair in again:
            return [pytest.mark.slow, pytest.mark.exhaustive]
        return [pytest.mark.slow] if pair in slow else []

    return [pytest.param(*pair, marks=marks(pair)) for pair in itertools.product(cases, engines)]


def params_from(config: Config, engine: Engine | SiloEngine) -> torch.Tensor:
    """The parameters (d,) after the run on this engine."""
    return execute(make_plan(config), engine).params


def in_process(config: Config) -> torch.Tensor:
    """The parameters (d,) after the run in this process, vectorised, without any grid."""
    return params_from(config, make_engine(config.changed(engine="in-process")))


def saved_params(folder: Path, config: Config) -> torch.Tensor:
    """The parameters (d,) in a run's folder."""
    task = make_task(config, make_source(config))
    return task.layout.join(load_file(folder / "model.safetensors"))
