"""Dynamic DP-SGD and Dynamic DP-Adam: clip norms and noise that follow a schedule under one budget.

Source: Du et al. 2021, algorithms 1 to 5. Their symbols: mu_t = C_t / sigma_t is 1 / z_t;
rho_mu = mu_T / mu_0 >= 1 makes mu grow (equation 9); rho_c = C_0 / C_T >= 1 makes C decay (equation
12); mu_0 follows from the budget by ``accounting.calibrate`` (algorithm 1), which is why a schedule
here is only relative: r_t = z_t / z_0. With both, sigma_t = (C_0 / mu_0) (rho_mu rho_c)^(-t/T)
(algorithm 2, line 4). Algorithm 4 is the same with Adam's rule; algorithm 5 is the same in a
federation, whose placement of the noise is not the optimizer's business. t runs 0..T-1.

Two more choices of the paper: the noise that minimises its utility bound, sigma_t ~ sqrt(C_t)
(section 5 and A.7), which is r_t = (C_t / C_0)^(-1/2) and GROWS as C_t falls; and any given sequences
(algorithm 3).

>>> method = dynamic_dp_sgd(Sgd(), learning_rate=0.1, clip_norm=1.0, steps=100, rho_c=4.0, rho_mu=2.0)
>>> [round(method.clip_norm(t), 3) for t in (0, 50)], round(method.relative_noise(50), 3)
([1.0, 0.5], 0.707)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv._internal import validation
from fedpriv.mechanism.query import LEAST, check_range
from fedpriv.optimizers.first_order import FirstOrder, Rule, Sgd
from fedpriv.optimizers.schedules import Constant, Geometric, Given, Power, Relative, Schedule, check_spread

__all__ = [
    "Sgd",
    "dynamic_dp_sgd",
    "growing_mu",
    "scheduled_dp_sgd",
    "sensitivity_decay",
    "square_root_noise",
]


def dynamic_dp_sgd(
    rule: Rule,
    learning_rate: float,
    clip_norm: float,
    steps: int,
    rho_c: float = 1.0,
    rho_mu: float = 1.0,
) -> FirstOrder:
    """Both schedules (algorithm 2 with Sgd, algorithm 4 with Adam): C_t and mu_t geometric.

    Args:
        rule: the update rule.
        learning_rate: eta > 0.
        clip_norm: C_0 > 0.
        steps: T >= 1, the length that the schedules are stretched over.
        rho_c: C_0 / C_T >= 1; 1 keeps the clip norm constant (growing-mu).
        rho_mu: mu_T / mu_0 >= 1; 1 keeps the noise multiplier constant (sensitivity decay).

    Raises:
        ArgumentError: a value is out of range; the paper's methods need both rho >= 1. A clip norm of the
            run would leave the range of :func:`fedpriv.mechanism.query.check_range`, or the noise
            multipliers would be more than ``schedules.SPREAD`` apart.
    """
    clip, noise = _decaying(clip_norm, rho_c, steps), Geometric(1.0, 1 / _ratio("rho-mu", rho_mu), steps)
    check_spread("rho-mu", rho_mu, (noise(0), noise(steps - 1)))
    return FirstOrder(rule, Constant(learning_rate), clip, noise)


def growing_mu(rule: Rule, learning_rate: float, clip_norm: float, steps: int, rho_mu: float) -> FirstOrder:
    """Growing mu alone (section 3.2): constant C, noise multiplier falling by rho_mu."""
    return dynamic_dp_sgd(rule, learning_rate, clip_norm, steps, rho_mu=rho_mu)


def sensitivity_decay(
    rule: Rule, learning_rate: float, clip_norm: float, steps: int, rho_c: float
) -> FirstOrder:
    """Sensitivity decay alone (section 3.3): C_t falling by rho_c, constant noise multiplier."""
    return dynamic_dp_sgd(rule, learning_rate, clip_norm, steps, rho_c=rho_c)


def square_root_noise(
    rule: Rule, learning_rate: float, clip_norm: float, steps: int, rho_c: float
) -> FirstOrder:
    """Decaying C_t with the bound-minimising noise sigma_t ~ sqrt(C_t) (section 5, A.7, eq. 55)."""
    clip = _decaying(clip_norm, rho_c, steps)
    # Without clipping there is no noise either, and nothing to fit it to.
    noise = Constant(1.0) if math.isinf(clip_norm) else Relative(Power(clip, -0.5))
    check_spread("rho-c", rho_c, (noise(0), noise(steps - 1)))
    return FirstOrder(rule, Constant(learning_rate), clip, noise)


def scheduled_dp_sgd(
    rule: Rule,
    learning_rate: float,
    clip_norms: Sequence[float],
    relative_noise: Sequence[float],
) -> FirstOrder:
    """Any sequences C_t and r_t = z_t / z_0 (algorithm 3).

    Raises ArgumentError if lengths differ, or values are out of range or, of r_t, more than
    ``schedules.SPREAD`` apart.
    """
    if len(clip_norms) != len(relative_noise):
        raise validation.fail(
            "relative-noise",
            f"{len(relative_noise)} values",
            f"have as many values as there are clip norms, {len(clip_norms)}",
        )
    clips, noise = Given.of("clip-norm", clip_norms), Given.of("relative-noise", relative_noise)
    for t, clip in enumerate(clips.values):
        check_range(f"clip-norm[{t}]", clip)
    check_spread("relative-noise", f"{len(noise.values)} values", noise.values)
    return FirstOrder(rule, Constant(learning_rate), clips, noise)


def _decaying(clip_norm: float, rho_c: float, steps: int) -> Schedule:
    start = validation.positive("clip-norm", clip_norm)
    check_range("clip-norm", start)
    schedule = Geometric(start, 1 / _ratio("rho-c", rho_c), steps)
    if (last := schedule(steps - 1)) < LEAST:
        hint = f"the last would be {last:.3g}; sums are of float32"
        raise validation.fail("rho-c", rho_c, f"leave clip norms of at least {LEAST:g}", hint)
    return schedule


def _ratio(name: str, rho: float) -> float:
    if validation.finite_positive(name, rho) < 1:
        raise validation.fail(name, rho, "be at least 1", "1 switches that schedule off")
    return rho
