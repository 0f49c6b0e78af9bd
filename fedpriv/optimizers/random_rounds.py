"""DP-SGD over everyone (DP-GD), and over a number of rounds that is drawn before the run (RRPSGD).

Sources: Wang, Ye & Xu 2017; Zhang et al. 2017.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.settings import Settings
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.optimizers.first_order import FirstOrder, dp_sgd
from fedpriv.optimizers.registry import BuildContext, Method, register
from fedpriv.optimizers.schedules import Schedule

if TYPE_CHECKING:
    import numpy


def draw_rounds(
    most: int,
    generator: numpy.random.Generator,
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


def _build(own: Settings, context: BuildContext) -> FirstOrder:
    return dp_sgd(context.common.learning_rate, context.common.clip_norm)


def _check_gd(own: Settings, context: BuildContext) -> None:
    if SAMPLERS[context.sampler].sampling.samples:
        hint = "and sampling-rate 1; dp-sgd samples"
        raise validation.fail("sampler", context.sampler, "be everyone with optimizer dp-gd", hint)


def _check_rrpsgd(own: Settings, context: BuildContext) -> None:
    if context.by_silo:
        hint = "its rounds are the run's"
        raise validation.fail("optimizer", "rrpsgd", "be another with level client", hint)


def _draw(rounds: int, context: BuildContext) -> int:
    return draw_rounds(rounds, context.draw("rounds"))


register(
    Method(
        name="dp-gd",
        summary="DP-SGD with everyone in every step",
        paper="Wang, Ye & Xu 2017",
        build=_build,
        check=_check_gd,
    )
)
register(
    Method(
        name="rrpsgd",
        summary="DP-SGD over a number of rounds that is drawn before the run",
        paper="Zhang et al. 2017",
        build=_build,
        check=_check_rrpsgd,
        run_rounds=_draw,
        draws=lambda own: True,
    )
)
