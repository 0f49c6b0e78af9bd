"""The trade-off curve of a ledger's events: which true positive rates an attack can have at a false one.

The curve is stored as lines. Privacy profiles (epsilon, delta(epsilon)) by PLD bound an attack's true
positive rate a at the false positive rate b by a <= e^epsilon b + delta and
1 - b <= e^epsilon (1 - a) + delta.

Source: Dong, Roth & Su 2022, "Gaussian differential privacy", proposition 6 (f-DP and privacy profiles).

>>> curve = TradeOff.of([Event(1.0, "none", "add-remove")])  # Phi(Phi^-1(b) + 1) for the Gaussian mechanism
>>> round(curve.most_true(0.01), 3), round(curve.least_false(curve.most_true(0.01)), 4)
(0.092, 0.01)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.methods import gaussian
from fedpriv.accounting.pld.method import PlainProfile, Pld, PldProfile

Floats = NDArray[np.float64]

_SMALLEST = 1e-9  # the delta up to which the profile is followed
_POINTS = 400
_LARGEST = 300.0  # the epsilon up to which the profile is followed; e^epsilon stays a float


@dataclass(frozen=True)
class TradeOff:
    """A bound b >= L(a) on an attack's false positive rate b at its true positive rate a.

    Attributes:
        slopes, offsets: L(a) is the largest of slope * a + offset, and 0; slopes ascend.
    """

    slopes: Floats
    offsets: Floats

    @classmethod
    def of(cls, events: Sequence[Event]) -> TradeOff:
        """The curve of these events together, in both directions of the relation."""
        return cls.of_profile(*_profile(events))

    @classmethod
    def of_profile(cls, epsilons: Floats, deltas: Floats) -> TradeOff:
        """The curve from deltas at epsilons >= 0, each valid in both directions."""
        slopes = np.concatenate([np.exp(-epsilons), np.exp(epsilons)])
        offsets = np.concatenate([-deltas * np.exp(-epsilons), 1 - deltas - np.exp(epsilons)])
        order = np.lexsort((offsets, slopes))
        return cls(*_envelope(slopes[order], offsets[order]))

    def least_false(self, true_rate: float) -> float:
        """The smallest possible false positive rate at a true positive rate."""
        return max(0.0, float((self.slopes * true_rate + self.offsets).max()))

    def most_true(self, false_rate: float) -> float:
        """The largest possible true positive rate at a false positive rate."""
        return min(1.0, float(((false_rate - self.offsets) / self.slopes).min()))


def _envelope(slopes: Floats, offsets: Floats) -> tuple[Floats, Floats]:
    """The lines that are the largest somewhere, of lines in the order of their slopes."""
    kept: list[int] = []
    for i in range(len(slopes)):
        if kept and slopes[kept[-1]] == slopes[i]:
            kept.pop()  # of equal slopes the last has the largest offset
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            crossing = (offsets[a] - offsets[i]) * (slopes[b] - slopes[a])
            if crossing > (offsets[a] - offsets[b]) * (slopes[i] - slopes[a]):
                break
            kept.pop()
        kept.append(i)
    return slopes[kept], offsets[kept]


def _profile(events: Sequence[Event]) -> tuple[Floats, Floats]:
    """(epsilons, certified deltas at them); delta 1 where nothing better is known."""
    costly = {e: n for e, n in tally(events).items() if e.rate > 0 and math.isfinite(e.noise_multiplier)}
    cut = math.fsum(event.truncation * n for event, n in tally(events).items())
    if not costly:
        return np.zeros(1), np.array([min(1.0, 2 * cut)])
    if any(event.noise_multiplier == 0 for event in costly):
        return np.zeros(1), np.ones(1)
    profile = Pld().stages([costly], _SMALLEST, lower=False)[0]
    largest = profile.epsilon(_SMALLEST)[0]
    epsilons = np.linspace(0.0, min(largest, _LARGEST) if math.isfinite(largest) else 50.0, _POINTS)
    if isinstance(profile, PlainProfile):
        deltas = [math.exp(gaussian.log_delta(profile.mu, float(e))) for e in epsilons]
    elif isinstance(profile, PldProfile):
        deltas = [max(curve.delta(float(e)) for curve in profile.uppers) for e in epsilons]
    else:
        return np.zeros(1), np.ones(1)
    return epsilons, np.minimum(1.0, np.array(deltas) + (1 + np.exp(epsilons)) * cut)
