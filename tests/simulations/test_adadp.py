"""simulations/adadp: the paper's setting, and the sign of the effect on the bundled digits."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from types import ModuleType

import pytest
from helpers.scripts import script

needs_mnist = pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs MNIST under FEDPRIV_DATA")


@pytest.fixture(scope="module")
def adadp() -> ModuleType:
    return script("adadp/run.py")


def on_digits(method: str, sigma: float, learning_rate: float, seed: int) -> float:
    """The accuracy after 200 releases, softmax regression."""
    from batches import Cell, run

    config = {
        "dataset": "digits",
        "model": "logistic",
        "sampling-rate": 0.1,
        "rounds": 200,
        "optimizer": method,
        "learning-rate": learning_rate,
        "delta": 1e-5,
        "evaluate-every": 200,
    }
    return float(run(Cell("short", method, config, sigma), seed)["accuracy"])


@pytest.mark.slow
@pytest.mark.usefixtures("adadp")  # brings the scripts' folder onto the path
def test_a_step_size_that_suits_little_noise_loses_to_adadp_where_there_is_much() -> None:
    """Section 5.4 in small: DP-SGD's step size is good at sigma = 1; ADADP starts from 0.1, untuned."""
    assert on_digits("dp-sgd", 1.0, 4.0, seed=0) > 0.9
    assert on_digits("adadp", 20.0, 0.1, seed=0) > on_digits("dp-sgd", 20.0, 4.0, seed=0) + 0.05


@needs_mnist
@pytest.mark.data
@pytest.mark.slow
def test_adadp_is_run_in_the_papers_setting(adadp: ModuleType) -> None:
    """Koskela & Honkela 2020, sections 5 and 5.2: 100 epochs of 200, half of them adaptive; tau = 1 beside
    the one that follows from the starting weights."""
    from batches import make_plan

    plan = make_plan(adadp.adadp(2.0, epochs=100), seed=0)
    optimizer = plan.mechanism.optimizer
    assert (plan.mechanism.rounds, plan.mechanism.scale, plan.config.delta) == (30_000, 2.0, 1e-6)
    assert plan.config.sampling_rate == pytest.approx(200 / 60_000)
    assert (optimizer.decay_after, optimizer.epoch, optimizer.decay) == (15_000, 300, 0.1)
    assert (optimizer.tolerance, optimizer.steps) == (None, 7_500)
    assert (optimizer.alpha_min, optimizer.alpha_max) == (0.9, 1.1)
    assert optimizer.step_size == 0.1
    papers = make_plan(adadp.adadp(2.0, 100, adadp.PAPERS), seed=0).mechanism.optimizer
    assert papers == replace(optimizer, tolerance=1.0)


@needs_mnist
@pytest.mark.slow
@pytest.mark.data
def test_untuned_adadp_beats_dp_sgd_tuned_for_less_noise_on_mnist(adadp: ModuleType) -> None:
    from batches import run

    accuracy = {made.method: run(made, seed)["accuracy"] for made, seed in adadp.short()}
    assert accuracy["ADADP"] > accuracy["DP-SGD"] + 0.02


def test_cifar_10_is_run_with_the_papers_grid_and_scored_on_other_images_than_chose() -> None:
    cifar = script("adadp/cifar.py")
    for setting in cifar.SETTINGS.values():
        table = {(made.method, made.noise_multiplier): made for made in cifar.cells(setting)}
        assert len(table) == len(cifar.METHODS) * len(cifar.SIGMAS)
        for made in table.values():
            assert made.config["test-part"] == "rest"
            assert [r["seed"] for r in cifar.records_of(cifar.RESULTS, made)] == list(cifar.FRESH)
        for method in cifar.GRIDS:
            assert {made.config["test-part"] for made in cifar.grid(setting, method, 2.0)} == {"tuning"}
        small, large = (table["DP-SGD", sigma].config for sigma in cifar.SIGMAS)
        assert small["learning-rate"] == large["learning-rate"]  # tuned at sigma = 2, section 5.4


def test_on_cifar_10_untuned_adadp_is_near_dp_adam_and_beats_dp_sgd_beyond_its_sigma() -> None:
    """The network's recorded runs, by seed: Figure 1b at sigma 2, and Figure 4."""
    cifar = script("adadp/cifar.py")
    found = {(made.method, made.noise_multiplier): cifar.found(made) for made in cifar.cells(cifar.NETWORK)}
    assert statistics.mean(found["ADADP", 2.0]) > statistics.mean(found["DP-Adam", 2.0]) - 0.01
    assert all(a > b for a, b in zip(found["ADADP", 8.0], found["DP-SGD", 8.0], strict=True))
