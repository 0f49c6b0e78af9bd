"""Wang et al. 2023, Theorem 5.1: DP-SRM's noise in closed form, beside what certified accounting needs.

    python simulations/dp_srm/theorem_5_1.py       # the table, some seconds; no data, nothing random

The theorem holds for fixed-size cohorts without replacement and neighbours that differ by one example
replaced. Its sigma_0 and sigma are the same multiple of their releases' sensitivities 2 G / b_0 and
2 ((1 - gamma) zeta / n_0 + gamma G) / b where b_0 = b, so one number describes a run: sigma', the noise over
the sensitivity of a replaced example, with sigma'^2 = 3.5 T tau^2 alpha / (beta epsilon) and tau = b / n.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import markdown

from fedpriv.accounting import Budget, Event, calibrate, epsilon

LEAST = 0.7  # of sigma'^2
MOST = 10**6  # releases; of more, each of which costs next to nothing, PLD's grid gives a bound far too large
BETAS = tuple(i / 1000 for i in range(1, 1000))


@dataclass(frozen=True)
class Setting:
    """The privacy parameters of a run: n, b, T and the budget."""

    name: str
    examples: int
    cohort: int
    steps: int
    epsilon: float
    delta: float

    @property
    def rate(self) -> float:
        """tau."""
        return self.cohort / self.examples

    def releases(self, sigma: float) -> Event:
        """The T releases. An event's multiplier is of the sensitivity to a removed example, which is half."""
        return Event(2 * sigma, "without-replacement", "replace-one", self.rate, count=self.steps)


SETTINGS = (
    Setting("a9a, theirs", 32_561, 100, 1302, 0.2, 1e-5),
    Setting("a9a, theirs", 32_561, 100, 1628, 0.5, 1e-5),
    Setting("a9a, ours", 32_561, 1628, 80, 0.2, 1e-5),
    Setting("a9a, ours", 32_561, 1628, 100, 0.5, 1e-5),
    Setting("MNIST, ours", 60_000, 1024, 400, 1.2, 1e-5),
    Setting("MNIST, ours", 60_000, 1024, 250, 3.0, 1e-5),
    Setting("Corollary 5.3", 10**9, 50_000, 4 * 10**8, 1.0, 1e-10),  # b^2 = n^2 epsilon / T
)


def alpha(setting: Setting, beta: float) -> float:
    """alpha = 1 + log(1 / delta) / ((1 - beta) epsilon)."""
    return 1 - math.log(setting.delta) / ((1 - beta) * setting.epsilon)


def variance(setting: Setting, beta: float) -> float:
    """sigma'^2 of the theorem's sigma_0 and sigma."""
    return 3.5 * setting.steps * setting.rate**2 * alpha(setting, beta) / (beta * setting.epsilon)


def holds(setting: Setting, beta: float) -> bool:
    """Whether the theorem's conditions on alpha and sigma' hold."""
    found, order = variance(setting, beta), alpha(setting, beta)
    inside = setting.rate * order * (1 + found)
    return found >= LEAST and inside < 1 and order - 1 <= -2 / 3 * found * math.log(inside)


def closed_form(setting: Setting) -> float | None:
    """The smallest sigma' that the theorem allows; None if no beta fulfils its conditions."""
    allowed = [variance(setting, beta) for beta in BETAS if holds(setting, beta)]
    return math.sqrt(min(allowed)) if allowed else None


def calibrated(setting: Setting, method: str) -> float:
    """The smallest sigma' by an accounting method."""
    budget = Budget(setting.epsilon, setting.delta, method)
    return calibrate([setting.releases(1.0)], budget)


def row(setting: Setting) -> tuple[str, ...]:
    """One line of the table."""
    sigma = closed_form(setting)
    if sigma is None:
        own, truly = "its conditions fail", ""
    else:
        own, truly = f"{sigma:.3f}", f"{epsilon([setting.releases(sigma)], setting.delta, 'rdp').epsilon:.3f}"
    few = setting.steps <= MOST
    return (
        setting.name,
        f"{setting.epsilon:g}",
        f"{setting.delta:g}",
        f"{setting.cohort:,} of {setting.examples:,}",
        f"{setting.steps:,}",
        own,
        truly,
        f"{calibrated(setting, 'rdp'):.3f}",
        f"{calibrated(setting, 'pld'):.3f}" if few else "too many releases",
    )


def table() -> str:
    """Markdown: a row per setting."""
    titles = ("setting", "epsilon", "delta", "cohort", "T", "Theorem 5.1", "its epsilon by RDP", "RDP", "PLD")
    return markdown(titles, [row(setting) for setting in SETTINGS])


if __name__ == "__main__":
    print(table())
