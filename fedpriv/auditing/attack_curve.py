"""What an attack achieved at small false positive rates, and the picture of it beside the claim.

>>> there = np.arange(1000) < 500
>>> curve = AttackCurve.of(np.where(there, 1.0, 0.0), there)
>>> curve.true_rate(0.01)
1.0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv._internal import plotting
from fedpriv.auditing.trade_off import TradeOff

Floats = NDArray[np.float64]

_POINTS = 200


@dataclass(frozen=True)
class AttackCurve:
    """The true positive rates of all thresholds on one score.

    Attributes:
        false, true: rates, ascending, one pair for each threshold, from (0, 0) to (1, 1).
    """

    false: Floats
    true: Floats

    @classmethod
    def of(cls, scores: Floats, there: NDArray[np.bool_]) -> AttackCurve:
        """The curve of scores (m,) that are larger for canaries that are more likely present."""
        order = np.argsort(-scores, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of equal scores
        hits, misses = np.cumsum(there[order])[ends], np.cumsum(~there[order])[ends]
        true, false = (np.append(0, counts) / max(1, counts[-1]) for counts in (hits, misses))
        return cls(false, true)

    def true_rate(self, false_rate: float) -> float:
        """The largest true positive rate at a false positive rate of at most ``false_rate``."""
        return float(self.true[np.searchsorted(self.false, false_rate, side="right") - 1])


def draw(curve: AttackCurve, claim: TradeOff, fewest: float, title: str) -> bytes:
    """A PNG: the attack's curve below the claim's, with logarithmic axes from the rate ``fewest`` on."""
    figure, [axes] = plotting.panels(6.0, 5.0)
    false = np.geomspace(fewest, 1.0, _POINTS)
    axes.plot(false, [claim.most_true(rate) for rate in false], color="black", label="most that is claimed")
    axes.plot(false, [curve.true_rate(rate) for rate in false], color="C1", label="this attack")
    axes.plot(false, false, color="grey", linestyle=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlabel="false positive rate", ylabel="true positive rate")
    axes.set(xlim=(fewest, 1.0), ylim=(fewest, 1.0))
    axes.legend(loc="lower right", frameon=False)
    plotting.title(figure, [title])
    return plotting.png(figure)
