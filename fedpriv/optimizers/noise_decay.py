"""Noise that decays by a form fixed in advance: the baselines ("Noise Decay") of Du et al. 2021, Table 1.

Sources: Yu et al. 2019 ("Differentially private model publishing for deep learning") and Zhang et al. 2021
("Adaptive privacy preserving deep learning algorithms for medical data"). Clip norm and step size stay as
they are; the noise std of epoch t is sigma_t = sigma_0 d(t), and d is one of

| form | d(t) | here |
|---|---|---|
| time-based | 1 / (1 + k t) | ``schedules.TimeDecay`` |
| exponential | exp(-k t) | ``schedules.ExponentialDecay`` |
| step | k^floor(t / period) | ``schedules.StepDecay`` |
| polynomial | (1 - e) (1 - t/period)^k + e, e = sigma_end / sigma_0 | ``schedules.PolynomialDecay`` |

d is r_t, the relative noise; sigma_0 follows from the budget by ``accounting.calibrate``. What the two papers
differ in is how they sample and account, and the two belong together (Chua et al. 2024):

- Yu: batches from a reshuffled epoch, parallel composition within it, zCDP. Here cohorts are drawn by a
  Poisson or fixed-size sampler; ``accounting = "zcdp"`` is valid for these too, but credits no sampling;
- Zhang: sampled batches, tCDP with amplification: a Poisson or fixed-size sampler, ``accounting = "tcdp"``.
  Their decay is exponential; which exponent their code used is not known to us, and k is free here.

Yu's fifth form lowers the noise when a validation accuracy stalls. It is chosen from earlier answers, so it
is no schedule, and it is not here.

>>> from fedpriv.optimizers.first_order import Sgd
>>> from fedpriv.optimizers.schedules import StepDecay
>>> method = noise_decay(Sgd(), learning_rate=0.1, clip_norm=1.0, decay=StepDecay(0.5, 10), epoch=4)
>>> [method.relative_noise(t) for t in (0, 39, 40, 80)]
[1.0, 1.0, 0.5, 0.25]
"""

from __future__ import annotations

from fedpriv._internal import validation
from fedpriv.optimizers.first_order import FirstOrder, Rule
from fedpriv.optimizers.schedules import (
    Constant,
    ExponentialDecay,
    PerEpoch,
    PolynomialDecay,
    Relative,
    Schedule,
    StepDecay,
    TimeDecay,
    check_spread,
)

# The forms, with the k that they have where none is given.
DECAYS = {"time-based": 0.05, "exponential": 0.01, "step": 0.6, "polynomial": 3.0}


def noise_decay(
    rule: Rule, learning_rate: float, clip_norm: float, decay: Schedule, epoch: int = 1
) -> FirstOrder:
    """A rule under noise that follows ``decay`` by epoch, scaled to start at r_0 = 1.

    Args:
        rule: the update rule.
        learning_rate: eta > 0.
        clip_norm: C > 0.
        decay: d, by the number of the epoch; > 0 throughout.
        epoch: the number of releases that one epoch takes.

    Raises:
        ArgumentError: a value is out of range.
    """
    validation.finite_positive("noise decay at 0", decay(0))
    noise = Relative(PerEpoch(decay, epoch))
    return FirstOrder(rule, Constant(learning_rate), Constant(clip_norm), noise)


def decay_form(form: str, k: float, period: int, end: float) -> Schedule:
    """d of that form, one of DECAYS; forms that have no ``period`` or ``end`` take none."""
    if form == "time-based":
        return TimeDecay(k)
    if form == "exponential":
        return ExponentialDecay(k)
    return StepDecay(k, period) if form == "step" else PolynomialDecay(end, k, period)


def check_decay(key: str, value: float, method: FirstOrder, rounds: int) -> None:
    """Refuse the setting ``key`` where the noise of the run decays by more than ``schedules.SPREAD``."""
    check_spread(key, value, (method.relative_noise(0), method.relative_noise(rounds - 1)))
