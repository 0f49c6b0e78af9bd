"""What an epsilon means for an attack: bounds on how well anyone can tell whether a unit was there.

The attack is a test of two neighbouring data sets, from everything that the releases show. Every bound
follows from certified points (epsilon, delta) of the releases, by PLD, and so holds for every attack:

- a guess at even odds is right with a probability of at most (1 + advantage) / 2
  (:func:`fedpriv.accounting.methods.registry.advantage`);
- a test that is wrong about a unit that was not there with probability a (its false positive rate) finds one
  that was there with probability at most min(e^epsilon a + delta, 1 - e^-epsilon (1 - a - delta)), for each
  point (Kairouz, Oh & Viswanath 2015, "The composition theorem for differential privacy", section 2.1).

>>> from fedpriv.accounting.events import Event
>>> odds = attack_odds([Event(2.0, "none", "add-remove")])
>>> round(odds.accuracy, 3), round(odds.found[0.01], 3)  # the best test: 0.599, and 0.034
(0.599, 0.035)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.accounting.events import Event
from fedpriv.accounting.methods.registry import advantage, certified_curve

FALSE_POSITIVE_RATES = (0.001, 0.01)  # at which attacks are usually compared
_DELTAS = (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)


@dataclass(frozen=True)
class AttackOdds:
    """Upper bounds for every attack on one unit.

    Attributes:
        accuracy: the probability of a right guess at even odds, in [1/2, 1].
        found: by false positive rate, the probability that a unit that was there is found.
    """

    accuracy: float
    found: Mapping[float, float]


def attack_odds(events: Sequence[Event]) -> AttackOdds:
    """The odds of the best attack on all ``events`` together, which have one relation.

    Raises UnsupportedEvent if PLD does not support the events.
    """
    gain = advantage(events)
    points = list(zip(certified_curve(events, _DELTAS), _DELTAS, strict=True))
    found = {
        rate: min(1.0, rate + gain, *(_found(rate, *point) for point in points))
        for rate in FALSE_POSITIVE_RATES
    }
    return AttackOdds((1 + gain) / 2, found)


def _found(rate: float, epsilon: float, delta: float) -> float:
    """The largest true positive rate at a false positive rate, under (epsilon, delta)."""
    if epsilon > 700:  # math.exp overflows above 709
        return 1.0
    return min(math.exp(epsilon) * rate + delta, 1 - math.exp(-epsilon) * (1 - rate - delta))
