"""DP-GD and RRPSGD: what Wang et al. 2023 (DP-SRM) compares itself with, by Figure 1 and Table 2.

Both are DP-SGD's rule, theta -= eta y; what sets them apart is who is asked, and for how long.

| | DP-GD (Wang, Ye & Xu 2017, section 5) | RRPSGD (Zhang et al. 2017, algorithm 2) |
|---|---|---|
| a step asks | everyone | one example (or b), uniformly drawn anew in each step |
| steps | T | R, drawn BEFORE the run with P[R = k] ~ 2 eta_k - L eta_k^2, k = 1..T |
| handed out | theta_T here; theirs is a uniformly chosen iterate, see ``random_iterate`` | theta_R |
| noise | for T releases | for all T releases, although only R are made |

RRPSGD is "random ROUND private SGD": its number of rounds is random (Ghadimi & Lan 2013), its examples are
sampled. Their privacy proof is amplification and strong composition; the same events are accounted here by
whatever method the budget names. R is drawn without looking at data, so for each R the run is a part of the T
releases that the noise is calibrated for, and R itself may be public. With a constant eta, R is uniform.

>>> from fedpriv.rng import Key
>>> method = rrpsgd(population=1000, learning_rate=0.1, clip_norm=1.0, most_rounds=50,
...                 generator=Key.from_seed(3).generator("rounds"))
>>> method.sampler.event(1.0).rate, method.planned_rounds, 1 <= method.rounds <= 50
(0.001, 50, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv._internal import validation
from fedpriv.accounting import Budget, calibrate
from fedpriv.accounting.events import Relation
from fedpriv.federated.loop import Mechanism
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import Everyone, FixedSize, Sampler
from fedpriv.optimizers import FirstOrder, Sgd
from fedpriv.optimizers.random_rounds import draw_rounds
from fedpriv.optimizers.schedules import Constant, Schedule


@dataclass(frozen=True)
class Baseline:
    """An optimizer with the sampler and the length that belong to it.

    Attributes:
        optimizer, sampler: what is asked of whom.
        rounds: how many rounds are run.
        planned_rounds: how many the noise is calibrated for, >= rounds.
    """

    optimizer: FirstOrder
    sampler: Sampler
    rounds: int
    planned_rounds: int

    def mechanism(self, budget: Budget) -> Mechanism:
        """The run under central noise that spends ``budget``, were all planned rounds made.

        Raises ArgumentError or UnsupportedEvent as ``accounting.calibrate`` does.
        """
        whole = Mechanism(self.optimizer, self.sampler, Central(), 1.0, self.planned_rounds)
        scale = calibrate(whole.planned_events(), budget)
        return Mechanism(self.optimizer, self.sampler, Central(), scale, self.rounds)


def dp_gd(
    population: int,
    learning_rate: float,
    clip_norm: float,
    rounds: int,
    relation: Relation = Relation.ADD_REMOVE,
    random_iterate: np.random.Generator | None = None,
) -> Baseline:
    """DP-GD: full-batch gradient descent on noisy sums of clipped gradients.

    Args:
        population: N, the public number of units.
        learning_rate: eta > 0.
        clip_norm: C > 0.
        rounds: T >= 1.
        relation: of neighbours.
        random_iterate: where the paper's choice of iterate is drawn from: the run then ends at a
            uniformly drawn step, with the noise of T. None: theta_T.

    Raises:
        ArgumentError: a value is out of range.
    """
    validation.integer("rounds", rounds, minimum=1)
    method = _sgd(Constant(validation.finite_positive("learning-rate", learning_rate)), clip_norm)
    chosen = rounds if random_iterate is None else draw_rounds(rounds, random_iterate)
    return Baseline(method, Everyone(population, relation), chosen, rounds)


def rrpsgd(
    population: int,
    learning_rate: float | Schedule,
    clip_norm: float,
    most_rounds: int,
    generator: np.random.Generator,
    smoothness: float = 0.0,
    batch: int = 1,
) -> Baseline:
    """RRPSGD: private SGD on ``batch`` sampled examples for a random number of rounds.

    Args:
        population: N.
        learning_rate: eta > 0, or eta_t by step.
        clip_norm: C > 0.
        most_rounds: T >= 1; the paper's is N^2.
        generator: what R is drawn from; it must see no data.
        smoothness: L >= 0; eta_t < 2/L is needed. 0 leaves P[R = k] ~ eta_k.
        batch: b >= 1, 1 in the paper.

    Raises:
        ArgumentError: a value is out of range.
    """
    validation.integer("rounds", most_rounds, minimum=1)
    if not callable(learning_rate):
        learning_rate = Constant(learning_rate)
    method = _sgd(learning_rate, clip_norm)
    chosen = draw_rounds(most_rounds, generator, learning_rate, smoothness)
    return Baseline(method, FixedSize(population, batch), chosen, most_rounds)


def _sgd(learning_rate: Schedule, clip_norm: float) -> FirstOrder:
    return FirstOrder(Sgd(), learning_rate, Constant(clip_norm))
