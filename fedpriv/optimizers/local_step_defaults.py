"""Defaults of adaptive methods with several local steps: the step size follows from the noise.

With `work=local-steps` an answer is a mean change of the clients' models, which plain averaging (FedAvg,
McMahan et al. 2017) takes times 1. An adaptive method multiplies it by a factor that falls with the size of
the answers so far. With few clients that size is the noise's, which is public once the budget has been
calibrated. So the method's factors on answers that are as large as their noise are known before the run. The
default step size makes the mean of its products with them 1: the method moves as far as plain averaging.

Momentum delays: with a first decay beta1 an answer arrives over 1 / (1 - beta1) steps. Runs with local steps
are short, and their steps large, so that :func:`first_decay` keeps this to a fifteenth of the run.

What both were tried on is in simulations/defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.optimizers.registry import BuildContext, DefaultRate

if TYPE_CHECKING:
    from fedpriv.optimizers.schedules import Schedule

Factors = Callable[[Any, BuildContext, Sequence[float]], Sequence[float]]


_FIRST_DECAY, _SHARE_OF_RUN = 0.9, 1 / 15


def first_decay(context: BuildContext) -> float:
    """What beta1=-1 stands for: 0.9 (Kingma & Ba 2015); with local steps its memory is a part of the run."""
    if not context.local_steps:
        return _FIRST_DECAY
    return min(_FIRST_DECAY, max(0.0, 1 - 1 / (_SHARE_OF_RUN * context.rounds)))


def rate_by_noise(
    value: float, schedules: Callable[[Any, BuildContext], tuple[Schedule, Schedule]], factors: Factors
) -> DefaultRate:
    """The step size ``value``; with several local steps and noise that of plain averaging.

    Args:
        value: the step size elsewhere.
        schedules: the method's clip norm and relative noise by step, from its own settings and the run.
        factors: what it multiplies answers by, from step to step, where their coordinates are as large as
            these standard deviations.
    """

    def rate(own: Any, context: BuildContext) -> float:
        if not context.local_steps or context.calibrated is None:
            return value
        clip_norm, relative_noise = schedules(own, context)
        noise_std, steps = context.calibrated.noise_std, range(context.rounds)
        scales = factors(own, context, [noise_std(clip_norm(t) * relative_noise(t)) for t in steps])
        return len(scales) / math.fsum(scales)

    return DefaultRate(f"{value:g}; with work=local-steps and noise, that of plain averaging", rate)
