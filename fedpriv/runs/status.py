"""How far a run is, as progress displays and callbacks may show it."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.tasks.metrics import METRICS, Metric


@dataclass(frozen=True)
class Status:
    """What a progress display may show: all of it public or released.

    Attributes:
        round, rounds: the round that ended, of how many.
        evaluated: the round of the last evaluation, 0 before it.
        score, epsilon: as of then; None before it, and epsilon without noise. The score of a model that has
            diverged is NaN.
        budget: the budget's epsilon, or None without noise.
        spent: no less than the epsilon spent by now, and cheap; None without noise.
        measure: what the score is.
        estimated: whether epsilon is an estimate, and no bound.
        simulated: whether epsilon is that of larger cohorts (``noise-cohort``), and none of this run.
    """

    round: int
    rounds: int
    evaluated: int
    score: float | None
    epsilon: float | None
    budget: float | None
    spent: float | None = None
    measure: Metric = METRICS[0]
    estimated: bool = False
    simulated: bool = False

    def epsilon_text(self, epsilon: float | None) -> str:
        """An epsilon of this run against its budget, always with three figures that count."""
        if self.budget is None:
            return "infinite"
        figures = ".3f" if self.budget >= 0.1 else ".2e"
        marks = [*(["an ESTIMATE"] * self.estimated), *(["SIMULATED, not private"] * self.simulated)]
        marked = f" ({'; '.join(marks)})" if marks else ""
        return f"{'-' if epsilon is None else format(epsilon, figures)} of {self.budget:g}{marked}"
