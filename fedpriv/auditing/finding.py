"""The result of an audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedpriv.accounting.api import number
from fedpriv.auditing.attack_curve import AttackCurve, draw
from fedpriv.auditing.trade_off import TradeOff
from fedpriv.auditing.views import View
from fedpriv.federated.stop_reason import StopReason


@dataclass(frozen=True, repr=False)
class Finding:
    """The result of an audit.

    Attributes:
        view: what the adversary sees.
        own_data: whether units are the run's own, with its model and engine, and not canaries.
        planted: whether the units with coins are canaries that were planted among the run's own.
        runs: 1, or the number of runs, each with one coin.
        canaries: m, the number of canaries, or own units, whose coins were guessed.
        releases: the number of releases in the ledger.
        right: the number of right guesses of the best adversary, out of m.
        allowed: the largest probability of a right guess that the ledger allows.
        p_value: an upper bound of the probability that any of the adversaries guesses at least so many coins
            right at the rate ``allowed``: the best adversary's p-value times their number.
        noise_p_value: the smallest p-value of the tests of noise and cohorts, times the number of tests.
        oddest: what the test with the smallest p-value found.
        confidence: of the verdict, and of each bound below.
        delta: the delta of all epsilons.
        claimed: epsilon against this adversary by PLD, an upper bound, as in the run's report.
        measured, measured_least, measured_most: epsilon if all noise is scaled by the factor at which the
            optimal guesses are right as often as observed, with one-sided confidence bounds.
        proved: a lower bound on epsilon for any mechanism.
        proved_by_curves: a lower bound on epsilon for mechanisms whose trade-off curve is that of the
            ledger's events with all noise scaled by one factor (:mod:`fedpriv.auditing.f_dp`).
        true_rates: for false positive rates of 0.1 % and 1 % (the true positive rate of the adversary who
            believes the ledger, the largest one that the ledger allows).
        stopped: how the run ended: ROUNDS, BUDGET, INTERRUPTED or UNANSWERED.
        wrong_ledgers: what is wrong with the own ledgers of a deployment's nodes, a sentence each; None where
            there are none, and of a run that did not make all of its rounds.
    """

    view: View
    own_data: bool
    planted: bool
    runs: int
    canaries: int
    releases: int
    right: int
    allowed: float
    p_value: float
    noise_p_value: float
    oddest: str
    confidence: float
    delta: float
    claimed: float
    measured: float
    measured_least: float
    measured_most: float
    proved: float
    proved_by_curves: float
    true_rates: dict[float, tuple[float, float]]
    stopped: StopReason
    curve: AttackCurve = field(compare=False)
    claim: TradeOff = field(compare=False)
    wrong_ledgers: tuple[str, ...] | None = None

    @property
    def violated(self) -> bool:
        """Whether the run leaks more than its ledger claims, its noise or cohorts are not as claimed, or
        nodes have not charged what they answered.
        """
        return self.leaks or self.irregular or bool(self.wrong_ledgers)

    @property
    def leaks(self) -> bool:
        """Whether guesses were right more often than the ledger allows, at the joint confidence of all
        tests.
        """
        return self.p_value < (1 - self.confidence) / 2

    @property
    def irregular(self) -> bool:
        """Whether noise or cohorts are not as claimed, at the joint confidence of all tests."""
        return self.noise_p_value < (1 - self.confidence) / 2

    def __repr__(self) -> str:
        verdict = "VIOLATED" if self.violated else "consistent with its ledger"
        guesses = f"{self.right / self.canaries:.2%} of guesses were right, {self.allowed:.2%} are allowed"
        return (
            f"Finding({verdict}, at {self.confidence:.6g} confidence; claimed epsilon {self.claimed:.4g} at "
            f"delta {self.delta:.3g}, measured {self.measured:.4g}, "
            f"at least {self.measured_least:.4g}; {guesses}; "
            f"{self.canaries:,} canaries, {self.releases:,} releases)"
        )

    def json(self) -> dict[str, Any]:
        """The finding as a JSON-serialisable dict. An infinite epsilon is the text "infinity"."""
        hidden = ("curve", "claim")
        fields = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in hidden}
        fields = {key: number(v) if isinstance(v, float) else v for key, v in fields.items()}
        rates = {f"{rate:g}": list(pair) for rate, pair in self.true_rates.items()}
        return fields | {"view": self.view.value, "true_rates": rates, "violated": self.violated}

    def picture(self) -> bytes:
        """A PNG with the attack's curve and the curve that the ledger allows."""
        epsilon_text = f"epsilon {self.claimed:.3g} at delta {self.delta:.2g}"
        title = f"audit run, not for use: {self.canaries:,} canaries against {epsilon_text}"
        return draw(self.curve, self.claim, max(1e-4, 4 / self.canaries), title)
