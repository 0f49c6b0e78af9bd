"""The table of optimizers: how each is made, and the textbook rule that it is without noise and clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from conformance.targets import Public
from helpers import textbook
from helpers.textbook import Rule

from fedpriv.optimizers import (
    L2,
    AdaClip,
    Adadp,
    AdaDps,
    AdaGrad,
    Adam,
    AdaptiveClipping,
    Dp2,
    DpSrm,
    ExponentialMovingAverage,
    ExtraQuery,
    FirstOrder,
    NoisyAdaGrad,
    Nonconvex,
    NormalisedStep,
    PdaDpmd,
    PerLayer,
    Polynomial,
    PrivateOptimizer,
    PrivateSpiderBoost,
    Regularised,
    RmsProp,
    Sgd,
    Yogi,
    adadp,
    adaptive_adp_sgd,
    adp_sgd,
    dp_adagrad,
    dp_adam,
    dp_rmsprop,
    dp_sgd,
    dp_yogi,
    dynamic_dp_sgd,
    growing_mu,
    noise_decay,
    scheduled_dp_sgd,
    sensitivity_decay,
    square_root_noise,
)
from fedpriv.optimizers.regularised import Regulariser
from fedpriv.optimizers.schedules import Constant, PolynomialDecay, StepDecay, TimeDecay

ROUNDS, RATE = 12, 0.2


@dataclass(frozen=True)
class Row:
    """An optimizer.

    Attributes:
        make: from its (first) clip norm.
        plain: its rule without noise and clipping, on the loss plus R where it is regularised.
        unclipped: the clip norm that clips nothing: finite where the noise follows it or it adapts.
        regulariser: R, or None.
    """

    make: Callable[[float], PrivateOptimizer]
    plain: Rule
    unclipped: float = math.inf
    regulariser: Regulariser | None = None


HUGE = 1e6
R_T = [1.5 - t / ROUNDS for t in range(ROUNDS)]
RATES = (RATE, RATE / 4)
SCHEDULES = (Constant(RATE), Constant(RATE / 4))
PLAIN = textbook.sgd(RATE)


def dp2(rule: str, noise_first: bool = False) -> Callable[[float], Dp2]:
    return lambda c: Dp2(rule, *SCHEDULES, c, c, 4, 3, epsilon=0.1, noise_std=0.01, noise_first=noise_first)


def delayed(rule: str) -> Rule:
    return textbook.delayed(rule, RATES, (4, 3), 0.1, variance=0.01**2 / 4)


def adaclip(inner: FirstOrder) -> AdaClip:
    return AdaClip(inner, 0.1, 10.0, cohort=8.0, noise_std=0.05)


as_printed = partial(Adadp, alpha_max=1.1, variant="paper")


def srm(gamma: float = 0.5) -> Callable[[float], DpSrm]:
    return lambda c: DpSrm(Constant(RATE), c, c, gamma)


def table(public: Public) -> dict[str, Row]:
    """All rows, with ``public`` as the gradient of a loss on public examples."""
    return {**_first_order(), **_dynamic(), **_papers(public), **_wrapped()}


def _first_order() -> dict[str, Row]:
    return {
        "dp-sgd": Row(lambda c: dp_sgd(RATE, c), PLAIN),
        "dp-sgd with momentum": Row(lambda c: dp_sgd(RATE, c, momentum=0.5), textbook.sgd(RATE, 0.5)),
        "dp-adam": Row(lambda c: dp_adam(RATE, c), textbook.adam(RATE)),
        "dp-rmsprop": Row(lambda c: dp_rmsprop(RATE, c), textbook.rmsprop(RATE)),
        "dp-adagrad": Row(lambda c: dp_adagrad(RATE, c), textbook.adagrad(RATE)),
        "dp-yogi": Row(lambda c: dp_yogi(RATE, c), textbook.yogi(RATE)),
    }


def _dynamic() -> dict[str, Row]:
    momentum, falling = textbook.sgd(RATE, 0.5), PolynomialDecay(0.2, 1.0, ROUNDS)
    adam, rmsprop = textbook.adam(RATE), textbook.rmsprop(RATE)
    return {
        "dynamic-dp-sgd": Row(lambda c: dynamic_dp_sgd(Sgd(), RATE, c, ROUNDS, rho_c=2.0, rho_mu=3.0), PLAIN),
        "dynamic-dp-sgd with momentum": Row(
            lambda c: dynamic_dp_sgd(Sgd(0.5), RATE, c, ROUNDS, 2.0, 3.0), momentum
        ),
        "dynamic-dp-adam": Row(lambda c: dynamic_dp_sgd(Adam(), RATE, c, ROUNDS, 2.0, 3.0), adam),
        "dynamic-dp-rmsprop": Row(lambda c: dynamic_dp_sgd(RmsProp(), RATE, c, ROUNDS, 2.0, 3.0), rmsprop),
        "dynamic-dp-adagrad": Row(
            lambda c: dynamic_dp_sgd(AdaGrad(), RATE, c, ROUNDS, 2.0, 3.0), textbook.adagrad(RATE)
        ),
        "dynamic-dp-yogi": Row(
            lambda c: dynamic_dp_sgd(Yogi(), RATE, c, ROUNDS, 2.0, 3.0), textbook.yogi(RATE)
        ),
        "growing mu": Row(lambda c: growing_mu(Sgd(), RATE, c, ROUNDS, 3.0), PLAIN),
        "sensitivity decay": Row(lambda c: sensitivity_decay(Sgd(), RATE, c, ROUNDS, 2.0), PLAIN),
        "sigma ~ sqrt(C)": Row(lambda c: square_root_noise(Sgd(), RATE, c, ROUNDS, 2.0), PLAIN, HUGE),
        "given sequences": Row(lambda c: scheduled_dp_sgd(Sgd(), RATE, [c] * ROUNDS, R_T), PLAIN, HUGE),
        "noise decay, linear": Row(lambda c: noise_decay(Sgd(), RATE, c, falling), PLAIN),
        "noise decay, by steps, of dp-adam": Row(
            lambda c: noise_decay(Adam(), RATE, c, StepDecay(0.7, 2), epoch=4), adam
        ),
        "noise decay, by time": Row(lambda c: noise_decay(Sgd(), RATE, c, TimeDecay(0.05)), PLAIN),
    }


def _papers(public: Public) -> dict[str, Row]:
    wu = textbook.decaying(2 * RATE, 3.0, 0.1)
    chosen = NormalisedStep(0.5)
    return {
        "adp-sgd": Row(lambda c: adp_sgd(2 * RATE, c, Polynomial(3.0, 0.1)), wu),
        "adaptive-adp-sgd": Row(lambda c: adaptive_adp_sgd(2.0, c, 1.0, 0.5), textbook.by_norm(2.0, 1.0)),
        "adadp": Row(
            lambda c: adadp(RATE, c, 0.5),
            textbook.extrapolating(RATE, 0.5, bounds=(0.9, 1.02), authors=True),
        ),
        "adadp as printed": Row(
            lambda c: as_printed(RATE, c, tolerance=0.5), textbook.extrapolating(RATE, 0.5)
        ),
        "adadp with discards, then decay": Row(
            lambda c: as_printed(RATE, c, 0.08, discard=True, decay_after=10, epoch=3),
            textbook.extrapolating(RATE, 0.08, discard=True, decay_after=10, epoch=3),
        ),
        # Everyone leaves no room for a first cohort of another size: that is tested in test_round.
        "dp-srm": Row(srm(), textbook.storm(RATE, 0.5)),
        "dp-srm with its own step": Row(
            lambda c: DpSrm(chosen, c, c / 2, gamma=0.3, output_step=5),
            textbook.storm(textbook.normalised(0.5), 0.3),
        ),
        "private-spiderboost": Row(
            lambda c: PrivateSpiderBoost(Constant(RATE), c, c, phase=3), textbook.spider(RATE, 3)
        ),
        **{f"dp2-{rule}": Row(dp2(rule), delayed(rule)) for rule in ("rmsprop", "adagrad", "yogi", "adam")},
        "dp2-rmsprop, noise first": Row(dp2("rmsprop", noise_first=True), delayed("rmsprop")),
        "dp2-rmsprop, extra query": Row(
            lambda c: ExtraQuery("rmsprop", *SCHEDULES, c, c, 5, epsilon=0.1),
            textbook.mostly_adaptive(RATES, 5, 0.1),
        ),
        "adadps": Row(
            lambda c: AdaDps(Constant(RATE), c, public, epsilon=0.1),
            textbook.preconditioned(RATE, public, 0.1),
        ),
        "adaclip": Row(lambda c: adaclip(dp_sgd(RATE, c)), PLAIN),
        "dynamic-adaclip": Row(
            lambda c: adaclip(dynamic_dp_sgd(Sgd(0.5), RATE, c, ROUNDS, 2.0, 3.0)), textbook.sgd(RATE, 0.5)
        ),
        # Public gradients of 0 leave no subspace, and D is epsilon. Others are in test_noisy_adagrad.
        "noisy-adagrad": Row(
            lambda c: NoisyAdaGrad(Constant(RATE / 2), c, c, lambda p, step: 0 * p[None], epsilon=0.5), PLAIN
        ),
        "pda-dpmd": Row(
            lambda c: PdaDpmd(Constant(RATE), c, public, ROUNDS), textbook.mixed(RATE, public, ROUNDS)
        ),
    }


def _wrapped() -> dict[str, Row]:
    small, bumpy = L2(0.01), Nonconvex(0.01)
    return {
        "adaptive clipping": Row(lambda c: AdaptiveClipping(dp_sgd(RATE, c)), PLAIN, HUGE),
        "adaptive clipping of dynamic dp-adam": Row(
            lambda c: AdaptiveClipping(dynamic_dp_sgd(Adam(), RATE, c, ROUNDS, rho_c=1.0, rho_mu=3.0)),
            textbook.adam(RATE),
            HUGE,
        ),
        "dp-sgd, layer by layer": Row(lambda c: PerLayer(dp_sgd(RATE, c)), PLAIN),
        "dp-srm, layer by layer": Row(lambda c: PerLayer(srm()(c)), textbook.storm(RATE, 0.5)),
        "dp-sgd with l2": Row(lambda c: Regularised(dp_sgd(RATE, c), small), PLAIN, regulariser=small),
        "dp-srm with a nonconvex regulariser": Row(
            lambda c: Regularised(srm()(c), bumpy), textbook.storm(RATE, 0.5), regulariser=bumpy
        ),
        "dp-adam, averaged": Row(
            lambda c: ExponentialMovingAverage(dp_adam(RATE, c), 0.9), textbook.adam(RATE)
        ),
        "adadp, averaged": Row(
            lambda c: ExponentialMovingAverage(as_printed(RATE, c, tolerance=0.5), 0.9),
            textbook.extrapolating(RATE, 0.5),
        ),
        "dp2-adam with l2": Row(
            lambda c: Regularised(dp2("adam")(c), small), delayed("adam"), regulariser=small
        ),
    }
