"""Optimizers from the configuration: the textbook rules, and the papers' methods with their own keys.

What the keys of a method mean is said in its module; here they are only handed over.

>>> from fedpriv.config.schema import Config
>>> build(Config.parse({"optimizer": "adadp", "learning-rate": 0.1})).tolerance
1.0
"""

from __future__ import annotations

from fedpriv._internal import validation
from fedpriv.config.builders import make_public
from fedpriv.config.schema import Config
from fedpriv.optimizers import (
    L2,
    Adadp,
    AdaDps,
    AdaGrad,
    Adam,
    AdaptiveAdpSgd,
    Dp2,
    DpSrm,
    ExponentialMovingAverage,
    ExtraQuery,
    FirstOrder,
    Nonconvex,
    NormalisedStep,
    PdaDpmd,
    PerLayer,
    Polynomial,
    PrivateOptimizer,
    Regularised,
    Restarting,
    RmsProp,
    Sgd,
    Yogi,
    adaptive_adp_sgd,
    adp_sgd,
    dp_sgd,
    draw_output_step,
    noise_decay,
)
from fedpriv.optimizers.first_order import Rule
from fedpriv.optimizers.random_rounds import draw_rounds
from fedpriv.optimizers.schedules import (
    SPREAD,
    Constant,
    ExponentialDecay,
    PolynomialDecay,
    Schedule,
    StepDecay,
    TimeDecay,
    check_spread,
)
from fedpriv.rng import Key
from fedpriv.tasks.public_gradient import LazyGradient

DP2 = ("dp2-rmsprop", "dp2-adagrad", "dp2-yogi", "dp2-adam")
PUBLIC = ("adadps", "pda-dpmd")
PAPERS = ("adp-sgd", "adaptive-adp-sgd", *DP2, "adadp", "dp-srm", "dp-gd", "rrpsgd", *PUBLIC)


def rule(config: Config) -> Rule:
    """The textbook rule that the optimizer's name ends with."""
    epsilon = config.adam_epsilon
    rules: dict[str, Rule] = {
        "adam": Adam(config.beta1, config.beta2, epsilon),
        "rmsprop": RmsProp(config.beta2, epsilon),
        "adagrad": AdaGrad(epsilon),
        "yogi": Yogi(config.beta1, config.beta2, epsilon),
        "sgd": Sgd(config.momentum),
    }
    return rules[config.optimizer.rpartition("-")[2]]


def build(config: Config) -> PrivateOptimizer:
    """The paper's method that the configuration names; ``config.optimizer`` is one of PAPERS.

    Raises:
        ArgumentError: a value is out of range.
    """
    name, rate, clip = config.optimizer, config.learning_rate, config.clip_norm
    if name in ("adp-sgd", "adaptive-adp-sgd"):
        _check_fitted(config)
    if name == "adp-sgd":
        return adp_sgd(rate, clip, Polynomial(config.adp_a, config.adp_c), _alpha(config))
    if name == "adaptive-adp-sgd":
        beta, b_0 = Restarting(config.adp_beta, config.adp_period), config.adp_a**0.5
        if alpha := _alpha(config):
            return AdaptiveAdpSgd(rate, clip, b_0, alpha, config.adp_nu, beta)
        return adaptive_adp_sgd(rate, clip, b_0, config.adp_c, config.adp_nu, beta)
    if name == "adadp":
        return _adadp(config)
    if name == "dp-srm":
        return _dp_srm(config)
    if name in ("dp-gd", "rrpsgd"):
        return dp_sgd(rate, clip)
    return _public(config) if name in PUBLIC else _dp2(config)


def decaying(config: Config) -> FirstOrder:
    """A textbook rule under the configured noise decay.

    Raises ArgumentError for a value out of range, or noise that decays by more than ``schedules.SPREAD``.
    """
    k, period = config.noise_decay, config.noise_period
    decay: Schedule
    if config.noise_schedule == "time-based":
        decay = TimeDecay(k)
    elif config.noise_schedule == "exponential":
        decay = ExponentialDecay(k)
    elif config.noise_schedule == "step":
        decay = StepDecay(k, period)
    else:
        decay = PolynomialDecay(config.noise_end, k, period)
    method = noise_decay(rule(config), config.learning_rate, config.clip_norm, decay, config.noise_epoch)
    key = "noise-end" if config.noise_schedule == "polynomial" else "noise-decay"
    noise = (method.relative_noise(0), method.relative_noise(config.rounds - 1))
    check_spread(key, config.table()[key], noise)
    return method


def rounds(config: Config) -> int:
    """How many of the planned rounds are run: all, but for RRPSGD, which draws it before the run."""
    if config.optimizer != "rrpsgd":
        return config.rounds
    key = Key.of(config.asked_seed)
    return draw_rounds(config.rounds, key.generator("rounds"))


def _public(config: Config) -> AdaDps | PdaDpmd:
    if not config.public_examples:
        allowed = f"be at least 1 with optimizer {config.optimizer}"
        raise validation.fail("public-examples", 0, allowed, "they come out of the test part")
    rate, public = Constant(config.learning_rate), LazyGradient(lambda: make_public(config))
    if config.optimizer == "adadps":
        return AdaDps(rate, config.clip_norm, public, config.adadps_epsilon, config.adadps_beta)
    return PdaDpmd(rate, config.clip_norm, public, config.pda_horizon)


def _check_fitted(config: Config) -> None:
    """Refuse fitted noise alpha_T = sqrt(b_T) so far from DP-SGD's 1 that no scale would be found for it."""
    alpha = Polynomial(config.adp_a, config.adp_c)(config.rounds - 1) ** 0.5
    if config.adp_noise == "fitted" and not 1 / SPREAD <= alpha <= SPREAD:
        key = "adp-a" if config.adp_a > config.adp_c else "adp-c"
        allowed = f"keep (adp-a + adp-c rounds)^(1/4) within [{1 / SPREAD:g}, {SPREAD:g}]"
        raise validation.fail(key, config.table()[key], allowed, f"it is {alpha:.3g}")


def _alpha(config: Config) -> Constant | None:
    """ADP-SGD's alpha_t where it is constant; None is its fitted one."""
    return Constant(1.0) if config.adp_noise == "constant" else None


def regularised(config: Config, optimizer: PrivateOptimizer) -> PrivateOptimizer:
    """The optimizer as configured around it: clipped layer by layer, with a regulariser, averaged.

    Raises:
        ArgumentError: clients make several local steps, which regularise nothing; PDA-DPMD is regularised,
            whose answers fade out; the clip norm adapts to the norms of whole vectors while layers are
            clipped; or what is averaged is not handed out.
    """
    if config.clipping == "per-layer":
        if config.adaptive_quantile:
            raise validation.fail("clipping", config.clipping, "be flat where the clip norm adapts")
        optimizer = PerLayer(optimizer)
    if config.regulariser != "none":
        if config.work != "gradient":
            raise validation.fail("regulariser", config.regulariser, f"be none with work {config.work}")
        if config.optimizer == "pda-dpmd":
            hint = "it would fade out with the answers"
            raise validation.fail("regulariser", config.regulariser, "be none with optimizer pda-dpmd", hint)
        kinds: dict[str, type[L2 | Nonconvex]] = {"l2": L2, "nonconvex": Nonconvex}
        optimizer = Regularised(optimizer, kinds[config.regulariser](config.regularisation))
    if not config.averaging:
        return optimizer
    if config.srm_random_iterate:
        raise validation.fail("averaging", config.averaging, "be 0 with srm-random-iterate")
    return ExponentialMovingAverage(optimizer, config.averaging)


def _adadp(config: Config) -> Adadp:
    if config.rounds % 2:
        raise validation.fail("rounds", config.rounds, "be even with optimizer adadp", "a step is two")
    adaptive = min(config.rounds, config.adadp_decay_after or config.rounds)
    return Adadp(
        config.learning_rate,
        config.clip_norm,
        tolerance=config.adadp_tolerance or None,
        steps=adaptive // 2,
        alpha_min=config.adadp_alpha_min,
        alpha_max=config.adadp_alpha_max,
        discard=config.adadp_discard,
        decay_after=config.adadp_decay_after or None,
        epoch=config.adadp_epoch,
        decay=config.adadp_decay,
        authors_code=config.adadp_authors_code,
    )


def _dp_srm(config: Config) -> DpSrm:
    step: Constant | NormalisedStep = Constant(config.learning_rate)
    if config.srm_step == "normalised":
        step = NormalisedStep(config.srm_zeta, config.srm_smoothness, config.srm_n0)
    chosen = None
    if config.srm_random_iterate:
        key = Key.of(config.asked_seed)
        chosen = draw_output_step(config.rounds, key.generator("output-step"))
    clips = (config.clip_norm, config.srm_difference_clip_norm)
    return DpSrm(step, *clips, config.srm_gamma, config.srm_first_cohort, chosen)


def _dp2(config: Config) -> Dp2 | ExtraQuery:
    name = config.optimizer.removeprefix("dp2-")
    rates = (Constant(config.learning_rate), Constant(config.dp2_adaptive_learning_rate))
    clips = (config.clip_norm, config.dp2_adaptive_clip_norm)
    if config.dp2_variant == "extra-query":
        if name == "adam":
            raise validation.fail("dp2-variant", "extra-query", "be another one with dp2-adam")
        return ExtraQuery(name, *rates, *clips, config.dp2_sgd_steps, config.dp2_epsilon, config.dp2_beta)
    return Dp2(
        name,
        *rates,
        *clips,
        sgd_steps=config.dp2_sgd_steps,
        adaptive_steps=config.dp2_adaptive_steps,
        epsilon=config.dp2_epsilon,
        beta=config.dp2_beta,
        beta1=config.beta1,
        noise_first=config.dp2_variant == "noise-first",
    )
