"""A number of rounds that is drawn before the run (RRPSGD, Zhang et al. 2017)."""

from __future__ import annotations

import numpy as np

from fedpriv._internal import validation
from fedpriv.optimizers.schedules import Schedule


def draw_rounds(
    most: int,
    generator: np.random.Generator,
    learning_rate: Schedule | None = None,
    smoothness: float = 0.0,
) -> int:
    """R in 1..most with P[R = k] ~ 2 eta_{k-1} - L eta_{k-1}^2 (t runs from 0); None is uniform.

    Raises ArgumentError where a weight is not positive: the steps are then too long for L.
    """
    validation.integer("rounds", most, minimum=1)
    if learning_rate is None:
        return int(generator.integers(1, most + 1))
    eta = np.array([learning_rate(t) for t in range(most)])
    weights = 2 * eta - validation.non_negative("smoothness", smoothness) * eta**2
    if not (weights > 0).all():
        raise validation.fail("learning-rate", float(eta.max()), f"lie in (0, 2 / {smoothness:g})")
    return int(generator.choice(most, p=weights / weights.sum())) + 1
