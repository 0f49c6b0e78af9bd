"""simulations/accounting: the paper's settings, its calibration, and figures that can be drawn."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
from helpers.scripts import SIMULATIONS, script

from fedpriv.accounting import epsilon
from fedpriv.accounting.methods import gaussian

FOLDER = SIMULATIONS / "accounting"


@pytest.fixture(scope="module", name="script")
def accounting() -> ModuleType:
    return script("accounting/run.py")


@pytest.mark.parametrize("growth", [1.0, 10.0])
def test_the_noise_is_algorithm_1s(script: ModuleType, growth: float) -> None:
    """mu_t = mu_0 rho_mu^(t/T), and mu_tot of equation 7 is that of the budget by equation 1."""
    setting = script.SETTINGS[0]
    mu = [1 / event.noise_multiplier for event in setting.run(1.2, growth)]
    assert len(mu) == 5000
    assert mu[2500] / mu[0] == pytest.approx(growth**0.5)
    total = setting.rate * math.sqrt(sum(math.expm1(m * m) for m in mu))
    assert 0.99 * 1.2 <= gaussian.epsilon(total, setting.delta) <= 1.2


def test_epsilon_1_of_table_4_truly_costs_four_and_a_half(script: ModuleType) -> None:
    setting = script.SETTINGS[2]
    assert (setting.rate, setting.steps, setting.delta) == (1e-3, 1000, 4e-7)
    lower = epsilon(setting.run(1.0, 1.0), setting.delta).epsilon_lower
    assert lower is not None
    assert lower > 4.5


@pytest.mark.slow
def test_figures_and_table(script: ModuleType) -> None:
    small = script.Setting("small", 1000, 0.05, 60, (1.0,))
    assert script.figure_2(small).startswith(b"\x89PNG")
    assert script.figure_4(small).startswith(b"\x89PNG")
    rows = script.table([small])
    assert len(rows) == 2 + len(script.GROWTHS)
    for name in ("figure_2.png", "figure_4.png"):
        assert (FOLDER / name).stat().st_size < 150_000
    assert f"| {script.SETTINGS[-1].name} |" in (FOLDER / "table.md").read_text()
