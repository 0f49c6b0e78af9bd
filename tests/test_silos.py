"""Silos that train by themselves: the same loop as everywhere, charged ahead, remembered, and checked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from small import small

from fedpriv import silos
from fedpriv.accounting import Event
from fedpriv.config import Config
from fedpriv.node import client_side, initial_params
from fedpriv.plan import Plan, make_plan
from fedpriv.rng import Key
from fedpriv.round import run as run_loop
from fedpriv.runs import Result, execute
from fedpriv.silos import SiloSide, Training, silo_side

SILOS: dict[str, object] = {
    "level": "client",
    "unit": "example",
    "clients": 3,
    "examples_per_client": 60,
    "silo_steps": 4,
    "optimizer": "dp-sgd",
    "learning_rate": 0.2,
    "rounds": 3,
    "epsilon": 8.0,
    "delta": 1e-4,
    "seed": 5,
}
OPTIMIZERS: dict[str, dict[str, object]] = {
    "dp-sgd": {},
    "momentum": {"momentum": 0.5},
    "dp-adam": {"optimizer": "dp-adam", "learning_rate": 0.01},
    "dp-rmsprop": {"optimizer": "dp-rmsprop", "learning_rate": 0.01},
    "dp-adagrad": {"optimizer": "dp-adagrad", "learning_rate": 0.01},
    "dp-yogi": {"optimizer": "dp-yogi", "learning_rate": 0.01},
    "dynamic": {"optimizer": "dynamic-dp-adam", "learning_rate": 0.01},
    "adaptive clip": {"adaptive_quantile": 0.5},
    "adp-sgd": {"optimizer": "adp-sgd", "learning_rate": 1.0},
    "adaptive adp-sgd": {"optimizer": "adaptive-adp-sgd", "learning_rate": 1.0},
    "dp2-adam": {"optimizer": "dp2-adam", "dp2_sgd_steps": 3, "dp2_adaptive_steps": 2},
    "dp2 corrected": {
        "optimizer": "dp2-yogi",
        "dp2_sgd_steps": 3,
        "dp2_adaptive_steps": 2,
        "dp2_noise_correction": True,
    },
    "dp2 extra query": {"optimizer": "dp2-rmsprop", "dp2_variant": "extra-query", "dp2_sgd_steps": 3},
    "adadp": {"optimizer": "adadp", "learning_rate": 0.1},
    "dp-srm": {"optimizer": "dp-srm", "learning_rate": 0.1, "srm_first_cohort": 3.0},
}


def config_of(**changes: object) -> Config:
    return small(**{**SILOS, **changes})


def plan_of(**changes: object) -> Plan:
    return make_plan(config_of(**changes))


def side_of(**changes: object) -> SiloSide:
    return silo_side(config_of(**changes).table())


def ask_of(side: SiloSide, number: int = 0, asked: Sequence[int] = (0,)) -> Training:
    params = initial_params(side.side.task, Key.from_seed(9))
    return Training(params, number, silos.round_events(side.plan, number), tuple(asked))


def trained(**changes: object) -> Result:
    config = config_of(**changes)
    return execute(make_plan(config), silo_side(config.table()))


class Paid:
    """Books that let everything pass."""

    def affords(self, event: Event, releases: int = 1) -> bool:
        return True

    def charge(self, event: Event, release: int) -> None:
        pass


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp-srm", "dynamic"])
@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_one_silo_of_one_step_a_round_is_the_centralised_trajectory_bit_for_bit(
    optimizer: str, sampler: str
) -> None:
    changes = {**OPTIMIZERS[optimizer], "clients": 1, "silo_steps": 1, "rounds": 5, "sampler": sampler}
    alone = make_plan(config_of(**changes, level="aggregation"))
    side = client_side(alone.config.table())
    key = Key.from_seed(5).child("silo", 0)  # the same draws
    params = initial_params(side.task, alone.key())
    central = run_loop(alone.setup, params, side, Paid(), key, alone.cohorts(key))
    assert torch.equal(trained(**changes).params, central.state.params)
