"""The privacy loss of the schedules of Du et al. 2021: Figures 2 and 4, and every published setting by PLD.

    python simulations/accounting/run.py            # figures and table into this folder, a minute

Nothing is trained and no data is read: epsilon is a matter of public settings. Each setting's noise is
calibrated as in the paper (Algorithm 1: the extended GDP central limit theorem, an estimate), and then
accounted for by methods that are certified.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import figure

from fedpriv._internal.files import atomic
from fedpriv.accounting import Budget, Event, calibrate, epsilon, scaled
from fedpriv.accounting.plots import curves

HERE = Path(__file__).parent
# 1 / rho_mu is swept over 0.1 .. 0.8 in section 4.1; 1 is vanilla and sensitivity decay.
GROWTHS = (1.0, 2.0, 10.0)


@dataclass(frozen=True)
class Setting:
    """The privacy parameters of one published experiment.

    Attributes:
        name: data set and table.
        units: |X|; delta = 1 / (10 |X|), section 4.1.
        rate: p.
        steps: T.
        budgets: the epsilons of the table.
    """

    name: str
    units: int
    rate: float
    steps: int
    budgets: tuple[float, ...]

    @property
    def delta(self) -> float:
        return 1 / (10 * self.units)

    def run(self, budget: float, growth: float, method: str = "gdp-clt") -> list[Event]:
        """The releases, with mu_t = mu_0 rho_mu^(t/T), t = 0..T-1, and mu_0 by ``method``."""
        shape = [
            Event(growth ** (-t / self.steps), "poisson", "add-remove", self.rate) for t in range(self.steps)
        ]
        scale = calibrate(shape, Budget(budget, self.delta, method))
        return [scaled(event, scale) for event in shape]


# Appendix A.9 gives p and Figure 1 the steps of MNIST and FashionMNIST; Table 4's number of rounds is not
# published: STEPS_FEDERATED is ours.
STEPS_FEDERATED = 1000
SETTINGS = (
    Setting("MNIST (Table 1)", 60_000, 250 / 60_000, 5000, (0.4, 0.6, 1.2)),
    Setting("FashionMNIST (Table 1)", 60_000, 250 / 60_000, 5000, (0.4, 1.2, 2.0)),
    Setting("MNIST-250K (Table 4)", 250_000, 1e-3, STEPS_FEDERATED, (0.1, 0.4, 1.0)),
    Setting("MNIST-500K (Table 4)", 500_000, 5e-4, STEPS_FEDERATED, (0.1, 0.4, 1.0)),
)


def table(settings: Sequence[Setting]) -> list[str]:
    """One Markdown row per budget and growth."""
    lines = [
        "| setting | epsilon in the paper | rho_mu | noise multiplier, first to last | PLD (certified) | RDP "
        "| tCDP | advanced |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting in settings:
        for budget in setting.budgets:
            for growth in GROWTHS:
                run = setting.run(budget, growth)
                exact = epsilon(run, setting.delta)
                others = (epsilon(run, setting.delta, name).epsilon for name in ("rdp", "tcdp", "advanced"))
                lines.append(
                    f"| {setting.name} | {budget:g} | {growth:g} | {run[0].noise_multiplier:.3f} to "
                    f"{run[-1].noise_multiplier:.3f} | {exact.epsilon_lower:.3f} to {exact.epsilon:.3f} | "
                    + " | ".join(f"{value:.3f}" for value in others)
                    + " |"
                )
                print(lines[-1], flush=True)
    return lines


def figure_2(setting: Setting, budget: float = 1.2) -> bytes:
    """The used budget by step for several growths of mu_t, by the paper's method and by PLD."""
    axes, save = figure(f"Du et al. 2021, Figure 2: epsilon {budget:g}, p = 250/60000, T = {setting.steps}")
    for growth, color in zip((1.0, 1.25, 2.0, 5.0, 10.0), _COLORS, strict=True):
        found = curves(setting.run(budget, growth), setting.delta, ["gdp-clt", "pld"])
        label = "vanilla" if growth == 1 else f"rho_mu = {growth:g}"
        axes.plot(found.steps, found.epsilon["gdp-clt"], "--", color=color, label=label)
        axes.plot(found.steps, found.epsilon["pld"], color=color)
    axes.set(xlabel="step", ylabel=f"epsilon at delta {setting.delta:.2g}", xlim=(0, None), ylim=(0, None))
    axes.legend(title="dashed: GDP-CLT (an estimate)\nsolid: PLD (certified)", fontsize=8, title_fontsize=8)
    return save()


def figure_4(setting: Setting, budgets: Sequence[float] = (0.4, 1.2), growth: float = 2.0) -> bytes:
    """The paper's "upper bound" (RDP) and "lower bound" (GDP-CLT) of dynamic DP-SGD, and others."""
    title = f"Du et al. 2021, Figure 4: dynamic DP-SGD, rho_mu = {growth:g}, T = {setting.steps}"
    axes, save = figure(title)
    for budget, color in zip(budgets, _COLORS, strict=False):
        found = curves(setting.run(budget, growth), setting.delta, ["rdp", "pld", "gdp-clt"])
        for method, style in (("rdp", ":"), ("pld", "-"), ("gdp-clt", "--")):
            name = {"rdp": "RDP (bound)", "pld": "PLD (certified)", "gdp-clt": "GDP-CLT (estimate)"}[method]
            axes.plot(found.steps, found.epsilon[method], style, color=color, label=f"{name}, {budget:g}")
    axes.set(xlabel="step", ylabel=f"epsilon at delta {setting.delta:.2g}", xlim=(0, None), ylim=(0, None))
    axes.legend(title="method, epsilon in the paper", fontsize=8, title_fontsize=8)
    return save()


_COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


def main(out: Path) -> None:
    for name, content in (("figure_2.png", figure_2(SETTINGS[0])), ("figure_4.png", figure_4(SETTINGS[0]))):
        with atomic(out / name) as file:
            file.write(content)
    with atomic(out / "table.md") as file:
        file.write(("\n".join(table(SETTINGS)) + "\n").encode())


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the figures and the table")
    main(parser.parse_args().out)
