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

The paper's formulas change C and sigma at every step. The authors' published code changes them at every epoch
of the data, and keeps them within it: ``epoch`` is the number of steps of one.

>>> method = dynamic_dp_sgd(Sgd(), learning_rate=0.1, clip_norm=1.0, steps=100, rho_c=4.0, rho_mu=2.0)
>>> [round(method.clip_norm(t), 3) for t in (0, 50)], round(method.relative_noise(50), 3)
([1.0, 0.5], 0.707)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from fedpriv._internal import validation
from fedpriv._internal.files import read_numbers
from fedpriv._internal.settings import Scalar, Settings, needs, setting
from fedpriv.mechanism.query import LEAST, check_range
from fedpriv.optimizers.first_order import RULES, FirstOrder, Rule, Sgd, rate_of, step_sizes
from fedpriv.optimizers.noise_decay import DECAYS, check_decay, decay_form, noise_decay
from fedpriv.optimizers.registry import SCHEDULED, BuildContext, Method, register, sgd_rate
from fedpriv.optimizers.schedules import Constant, Geometric, Given, Power, Relative, Schedule, check_spread

__all__ = [
    "Sgd",
    "dynamic_dp_sgd",
    "growing_mu",
    "scheduled_dp_sgd",
    "sensitivity_decay",
    "square_root_noise",
]


_DECAY = needs(noise_schedule=tuple(DECAYS))
_GIVEN = needs(noise_schedule="given")


class DynamicSettings(Settings):
    """The settings of the dynamic optimizers: how clip norm and noise change over the run."""

    UNSET: ClassVar[Mapping[str, Scalar]] = {"rho-c": 1.0, "rho-mu": 1.0}

    rho_c: float = setting(
        0.0,
        "C_0 / C_T >= 1, sensitivity decay; 0: 2 where noise-schedule is geometric or sqrt-clip, else 1",
        ge=0,
        filled=True,
    )
    rho_mu: float = setting(
        0.0, "mu_T / mu_0 >= 1, growing mu; 0: 2 where noise-schedule is geometric, else 1", ge=0, filled=True
    )
    noise_schedule: Literal[
        "geometric", "sqrt-clip", "given", "time-based", "exponential", "step", "polynomial"
    ] = setting("geometric", "noise by rho-mu, sigma_t ~ sqrt(C_t), relative-noise-file, or a noise decay")
    noise_decay: float = setting(
        0.0,
        "k of a noise decay (rate, factor or power); 0: time-based 0.05, exponential 0.01, step 0.6, "
        "polynomial 3",
        ge=0,
        filled=True,
        needs=_DECAY,
    )
    noise_epoch: int = setting(
        1,
        "releases of an epoch: of a noise decay, or over which geometric clip norms and noise stay",
        ge=1,
        needs=needs(noise_schedule=("geometric", *DECAYS)),
    )
    noise_period: int = setting(
        0,
        "epochs of a step of the noise decay (0: 10), or to the polynomial's end (0: all)",
        ge=0,
        filled=True,
        needs=needs(noise_schedule=("step", "polynomial")),
    )
    noise_end: float = setting(
        0.2, "the polynomial's sigma_end / sigma_0", gt=0, lt=1, needs=needs(noise_schedule="polynomial")
    )
    relative_noise_file: str = setting("", "CSV file of r_t, one a line", needs=_GIVEN)
    clip_norm_file: str = setting("", "CSV file of C_t, one a line", needs=_GIVEN)


_RHO = 2.0  # of clip norms and of noise multipliers, by default


def dynamic_dp_sgd(
    rule: Rule,
    learning_rate: float,
    clip_norm: float,
    steps: int,
    rho_c: float = _RHO,
    rho_mu: float = _RHO,
    epoch: int = 1,
) -> FirstOrder:
    """Both schedules (algorithm 2 with Sgd, algorithm 4 with Adam): C_t and mu_t geometric.

    Args:
        rule: the update rule.
        learning_rate: eta > 0.
        clip_norm: C_0 > 0.
        steps: T >= 1, the length that the schedules are stretched over.
        rho_c: C_0 / C_T >= 1; 1 keeps the clip norm constant (growing-mu).
        rho_mu: mu_T / mu_0 >= 1; 1 keeps the noise multiplier constant (sensitivity decay).
        epoch: the steps over which both stay, >= 1.

    Raises:
        ArgumentError: a value is out of range; the paper's methods need both rho >= 1. A clip norm of the
            run would leave the range of :func:`fedpriv.mechanism.query.check_range`, or the noise
            multipliers would be more than ``schedules.SPREAD`` apart.
    """
    clip = _decaying(clip_norm, rho_c, steps, epoch)
    noise = Geometric(1.0, 1 / _ratio("rho-mu", rho_mu), steps, epoch)
    check_spread("rho-mu", rho_mu, (noise(0), noise(steps - 1)))
    return FirstOrder(rule, Constant(learning_rate), clip, noise)


def growing_mu(rule: Rule, learning_rate: float, clip_norm: float, steps: int, rho_mu: float) -> FirstOrder:
    """Growing mu alone (section 3.2): constant C, noise multiplier falling by rho_mu."""
    return dynamic_dp_sgd(rule, learning_rate, clip_norm, steps, rho_c=1.0, rho_mu=rho_mu)


def sensitivity_decay(
    rule: Rule, learning_rate: float, clip_norm: float, steps: int, rho_c: float
) -> FirstOrder:
    """Sensitivity decay alone (section 3.3): C_t falling by rho_c, constant noise multiplier."""
    return dynamic_dp_sgd(rule, learning_rate, clip_norm, steps, rho_c=rho_c, rho_mu=1.0)


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


def _decaying(clip_norm: float, rho_c: float, steps: int, epoch: int = 1) -> Schedule:
    start = validation.positive("clip-norm", clip_norm)
    check_range("clip-norm", start)
    schedule = Geometric(start, 1 / _ratio("rho-c", rho_c), steps, epoch)
    if (last := schedule(steps - 1)) < LEAST:
        hint = f"the last would be {last:.3g}; sums are of float32"
        raise validation.fail("rho-c", rho_c, f"leave clip norms of at least {LEAST:g}", hint)
    return schedule


def _ratio(name: str, rho: float) -> float:
    if validation.finite_positive(name, rho) < 1:
        raise validation.fail(name, rho, "be at least 1", "1 switches that schedule off")
    return rho


def _resolve(own: DynamicSettings, context: BuildContext) -> DynamicSettings:
    """Both rho, and the noise decay's numbers, where they are 0."""
    schedule = own.noise_schedule
    shrinks = schedule in ("geometric", "sqrt-clip") and context.common.adaptive_quantile == 0
    epochs = -(-context.rounds // own.noise_epoch)
    return own.filled_in(
        rho_c=_RHO if shrinks else 1.0,
        rho_mu=_RHO if schedule == "geometric" else 1.0,
        noise_decay=DECAYS.get(schedule, 0.0),
        noise_period={"step": 10, "polynomial": epochs}.get(schedule, 0),
    )


def _check(own: DynamicSettings, context: BuildContext) -> None:
    schedule, quantile = own.noise_schedule, context.common.adaptive_quantile
    for key, rho in (("rho-c", own.rho_c), ("rho-mu", own.rho_mu)):
        if schedule in ("given", *DECAYS) and rho != 1:
            raise validation.fail(key, rho, f"be 0 or 1 with noise-schedule {schedule}")
    if schedule == "sqrt-clip" and own.rho_mu != 1:
        raise validation.fail("rho-mu", own.rho_mu, "be 1 with noise-schedule sqrt-clip, which sets mu")
    if quantile and (own.rho_c != 1 or own.clip_norm_file):
        changes = "clip-norm-file" if own.clip_norm_file else "rho-c other than 1"
        raise validation.fail("adaptive-quantile", quantile, f"be 0 with {changes}")


def _build(name: str, own: DynamicSettings, context: BuildContext) -> FirstOrder:
    scheduled = _scheduled(RULES[name].make(context.common), own, context)
    return replace(scheduled, learning_rate=step_sizes(context))


def _scheduled(rule: Rule, own: DynamicSettings, context: BuildContext) -> FirstOrder:
    rate, clip, steps = context.common.learning_rate, context.common.clip_norm, context.rounds
    if own.noise_schedule == "given":
        return scheduled_dp_sgd(rule, rate, *_given_sequences(own, context))
    if own.noise_schedule == "sqrt-clip":
        return square_root_noise(rule, rate, clip, steps, own.rho_c)
    if own.noise_schedule == "geometric":
        return dynamic_dp_sgd(rule, rate, clip, steps, own.rho_c, own.rho_mu, own.noise_epoch)
    decay = decay_form(own.noise_schedule, own.noise_decay, own.noise_period, own.noise_end)
    method = noise_decay(rule, rate, clip, decay, own.noise_epoch)
    key = "noise-end" if own.noise_schedule == "polynomial" else "noise-decay"
    check_decay(key, float(own.table()[key]), method, steps)
    return method


def _given_sequences(own: DynamicSettings, context: BuildContext) -> tuple[list[float], list[float]]:
    """The clip norms and the relative noise of the configured files."""
    if not own.relative_noise_file:
        raise validation.fail("relative-noise-file", "", "name a CSV file with noise-schedule given")
    path, count = own.relative_noise_file, context.rounds
    noise = read_numbers("relative-noise-file", path, count, validation.finite_positive)
    check_spread("relative-noise-file", path, noise)
    if not own.clip_norm_file:
        return [context.common.clip_norm] * count, noise
    return read_numbers("clip-norm-file", own.clip_norm_file, count, _check_clip_norm), noise


def _check_clip_norm(name: str, value: float) -> None:
    check_range(name, value, unless=None)


for _name, _rule in RULES.items():
    register(
        Method(
            name=f"dynamic-dp-{_name}",
            summary="sensitivity decay (`rho-c`) and growing mu (`rho-mu`), given sequences, or noise decays "
            "(`noise-schedule`)",
            paper="Du et al. 2021, algorithms 1 to 5; Yu et al. 2019; Zhang et al. 2021",
            settings=DynamicSettings,
            build=partial(_build, _name),
            resolve=_resolve,
            check=_check,
            uses=(*SCHEDULED, "clip-norm", *_rule.uses),
            # The clip norm falls to C / rho-c, so that 5 gives about the mean step of DP-SGD's 4.
            learning_rate=sgd_rate(5.0) if _name == "sgd" else rate_of(_name, partial(_build, _name)),
            defaults=_rule.defaults,
        )
    )
