"""simulations/du_figures: its settings are the paper's, a short form runs, and the results have the signs."""

from __future__ import annotations

import csv
import math
import os
import statistics
from collections import defaultdict
from dataclasses import replace
from types import ModuleType

import pytest
from helpers.scripts import SIMULATIONS, script

needs_mnist = pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs MNIST under FEDPRIV_DATA")
FOLDER = SIMULATIONS / "du_figures"
BASE = "1.0"  # rho of DP-SGD


@pytest.fixture(scope="module")
def figure_1() -> ModuleType:
    return script("du_figures/figure_1.py")


def test_the_methods_differ_in_their_noise_and_clip_alone(figure_1: ModuleType) -> None:
    made = {method: figure_1.cell(method).config for method in figure_1.METHODS}
    alike = ("dataset", "model", "input-mean", "input-std", "sampling-rate", "rounds", "delta")
    assert len({tuple(config[key] for key in alike) for config in made.values()}) == 1
    assert (made["dynamic"]["rho-c"], made["dynamic"]["rho-mu"]) == (1 / 0.3, 1 / 0.8)
    assert (made["vanilla"]["rho-c"], made["vanilla"]["rho-mu"]) == (1.0, 1.0)
    assert (made["SGD"]["placement"], made["SGD"]["clip-norm"]) == ("none", math.inf)
    assert "epsilon" not in made["SGD"]


@needs_mnist
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("method", ["dynamic", "SGD"])
def test_a_short_form_is_measured_on_its_way(
    method: str, figure_1: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_1, "EVERY", 2)
    made = figure_1.cell(method)
    short = {**made.config, "rounds": 4} | ({"noise-epoch": 1} if method == "dynamic" else {})
    found = figure_1.run(replace(made, config=short), seed=1)
    assert found["steps"] == [0, 2, 4]
    assert found["accuracy"][0] < 0.3  # of a random network
    assert all(norm > 0 for norm in found["gradient norm"])


def test_the_recorded_runs_have_the_papers_signs(figure_1: ModuleType) -> None:
    """In every seed the accuracy of dynamic DP-SGD is higher at the end, and its gradients are shorter."""
    runs = {(one["method"], one["seed"]): one for one in figure_1.read(figure_1.RESULTS)}
    assert {seed for _, seed in runs} == {*figure_1.FRESH}
    assert len(runs) == 3 * len(figure_1.FRESH)
    for seed in figure_1.FRESH:
        dynamic, vanilla, sgd = (runs[method, seed] for method in figure_1.METHODS)
        assert vanilla["accuracy"][-1] + 0.01 < dynamic["accuracy"][-1] < sgd["accuracy"][-1]
        assert (
            5 * sgd["gradient norm"][-1] < dynamic["gradient norm"][-1] < vanilla["gradient norm"][-1] / 1.5
        )
    assert figure_1.table([*runs.values()]).count("\n") == 1 + 2 * len(figure_1.METHODS)


def test_the_sweeps_results_have_the_readmes_signs() -> None:
    """A falling clip norm is better in every seed; a strongly growing mu undoes it."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with (FOLDER / "results.csv").open(newline="") as table:
        for row in csv.DictReader(table):
            found[row["rho-c"], row["rho-mu"]][row["seed"]] = float(row["accuracy"])
    assert {len(scores) for scores in found.values()} == {5}
    plain = found[BASE, BASE]
    for (rho_c, rho_mu), scores in found.items():
        if float(rho_mu) <= 2 and float(rho_c) > 1:
            assert all(scores[seed] > plain[seed] for seed in plain), (rho_c, rho_mu)
        if float(rho_mu) == 5:
            assert statistics.mean(scores.values()) - statistics.mean(plain.values()) < 0.011
