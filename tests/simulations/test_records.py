"""simulations/records: its table is that of its results, and its settings are runs."""

from __future__ import annotations

import pytest
from helpers.scripts import SIMULATIONS, script

from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config


def test_the_table_is_that_of_the_results() -> None:
    assert script("records/run.py").table() in (SIMULATIONS / "records/README.md").read_text()


def test_every_figure_is_certified_and_has_five_seeds() -> None:
    module = script("records/run.py")
    for name, (config, _) in module.ROWS.items():
        found = [r for r in module.read(module.RESULTS) if (r["name"], r["without"]) == (name, "")]
        assert [r["seed"] for r in found if r["config"] == config] == [*module.SEEDS]
        assert max(r["epsilon"] for r in found) <= config["epsilon"]


@pytest.mark.parametrize("name", ["CIFAR-10, 1", "CIFAR-10, 3"])
def test_cifar_10_is_all_of_it_without_other_data(name: str) -> None:
    module = script("records/run.py")
    found = Config.parse({**module._config(name, ""), "seed": 1})
    assert (found.clients, found.delta, found.initial_weights) == (50_000, 1e-5, "")
    assert found.features == "patches-mirrored"
    assert Config.parse({**module._config(name, "mirror images"), "seed": 1}).features == "patches"


@pytest.mark.parametrize("without", ["", "large cohorts", "features"])
def test_a_row_is_a_run(without: str) -> None:
    module = script("records/run.py")
    plan = make_plan(Config.parse({**module._config("MNIST-60K, 3", without), "seed": 1}))
    assert plan.config.sampling_rate == (1000 if without == "large cohorts" else 4000) / 60_000
    assert (plan.config.features == "none") == (without == "features")
