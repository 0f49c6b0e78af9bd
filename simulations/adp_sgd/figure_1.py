"""Wu et al. 2021, Figure 1: ADP-SGD's noise and its privacy loss by step, beside DP-SGD's.

    python simulations/adp_sgd/figure_1.py         # writes figure_1.png; no data, nothing is trained

The step sizes are the paper's, 1 / sqrt(1 + t). T = 1,000 steps at rate 0.01, delta 1e-5 and epsilon 1 are
ours. Both methods spend the same budget by PLD, a certified bound; the paper draws its theoretical one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import figure

from fedpriv._internal.files import atomic
from fedpriv.accounting import Budget, Event, calibrate, scaled
from fedpriv.accounting.plots import curves
from fedpriv.optimizers.adp_sgd import Polynomial, adp_sgd
from fedpriv.optimizers.schedules import Constant

HERE = Path(__file__).parent
RATE, BUDGET = 0.01, Budget(1.0, 1e-5)
B = Polynomial(a=1.0, c=1.0)  # b_t = 1 / eta_t = sqrt(1 + t)
METHODS = {"ADP-SGD": adp_sgd(1.0, 1.0, B), "DP-SGD": adp_sgd(1.0, 1.0, B, Constant(1.0))}


def releases(method: str, steps: int) -> list[Event]:
    """The releases of a method, whose noise multipliers spend the budget."""
    relative = METHODS[method].relative_noise
    shape = [Event(relative(t), "poisson", "add-remove", RATE) for t in range(steps)]
    scale = calibrate(shape, BUDGET)
    return [scaled(event, scale) for event in shape]


def noise(run: list[Event]) -> list[float]:
    """The noise of each step on the parameters, eta_t alpha_t sigma, in units of the clip norm."""
    return [event.noise_multiplier / B(t) for t, event in enumerate(run)]


def figure_1(steps: int) -> bytes:
    """The figure: noise on the parameters (left axis) and epsilon spent (right axis) by step."""
    axes, save = figure(f"Wu et al. 2021, Figure 1: step sizes 1 / sqrt(1 + t), epsilon {BUDGET.epsilon:g}")
    spent = axes.twinx()
    for method, style in (("ADP-SGD", "-"), ("DP-SGD", "--")):
        run = releases(method, steps)
        found = curves(run, BUDGET.delta, ["pld"])
        axes.plot(range(1, steps + 1), noise(run), style, color="tab:green", label=f"noise, {method}")
        spent.plot(found.steps, found.epsilon["pld"], style, color="tab:blue", label=f"epsilon, {method}")
    axes.set(xlabel="step", ylabel="std of the noise in a step / clip norm", yscale="log")
    spent.set(ylabel=f"epsilon spent at delta {BUDGET.delta:g} (PLD)", ylim=(0, None))
    lines = [*axes.get_lines(), *spent.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], loc="center right", fontsize=8)
    return save()


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the figure")
    with atomic(parser.parse_args().out / "figure_1.png") as file:
        file.write(figure_1(1000))
