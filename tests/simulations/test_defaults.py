"""The defaults of the optimizers are those that simulations/defaults measured."""

from __future__ import annotations

import json

import pytest
from helpers.scripts import SIMULATIONS

from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config

TASK = {"dataset": "infinite-mnist", "clients": 250_000, "rounds": 100, "epsilon": 1.0}
MEASURED = {  # the accuracy of the run whose settings became the defaults
    "dp-adam": 0.9566,
    "dp-srm": 0.9461,
    "dp2-rmsprop": 0.9411,
    "adp-sgd": 0.9438,
    "adadp": 0.9408,
    "dynamic-dp-sgd": 0.9384,
    "dynamic-dp-adam": 0.9546,
    "dynamic-dp-yogi": 0.9617,
    "dp-yogi": 0.9666,
    "adadps": 0.9422,
    "pda-dpmd": 0.937807881773399,
}
RUNS = [json.loads(line) for line in (SIMULATIONS / "defaults/results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("optimizer", MEASURED)
def test_the_defaults_are_the_settings_that_were_measured(optimizer: str) -> None:
    [run] = [
        run
        for run in RUNS
        if run["task"] == "infinite-mnist"
        and run["settings"].get("optimizer") == optimizer
        and run["accuracy"][-1] == [100, MEASURED[optimizer]]
    ]
    public = {key: value for key, value in run["settings"].items() if key == "public-examples"}
    now = make_plan(Config.parse({**TASK, "optimizer": optimizer, **public})).config.table()
    for key, value in run["settings"].items():
        assert now[key] == (pytest.approx(value, rel=1e-2) if isinstance(value, float) else value), key
