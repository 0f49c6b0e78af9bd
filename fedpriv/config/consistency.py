"""Settings that contradict each other, or that nothing in a run would use: refused before any work.

Every function raises ArgumentError, in one line that says which setting and what to do.
"""

from __future__ import annotations

import math

from fedpriv._internal import validation
from fedpriv.config import applicability, optimizers
from fedpriv.config.schema import CLIP_NORMS, DECAYS, Config
from fedpriv.mechanism.query import check_range
from fedpriv.mechanism.sampling import Everyone, FixedSize, Sampler, TruncatedPoisson


def check_used(config: Config) -> None:
    """Refuse a setting that was changed and that nothing in this run would use."""
    found = applicability.unused(config)
    if found is not None:
        key, needed = found
        raise validation.ArgumentError(f"{key} is {config.table()[key]!r}, which needs {needed}")


def check_privacy(config: Config, units: int, delta: float) -> None:
    """Refuse what gives no protection, or none that could be said: delta, clip norms, budget, unit."""
    if delta >= 1 / units and config.placement != "none":
        raise validation.fail("delta", delta, f"be below 1 / units = {1 / units:g}", "0 means 1 / (10 units)")
    for key in CLIP_NORMS:
        clip_norm = float(config.table()[key])
        check_range(key, clip_norm)
        if config.placement != "none" and math.isinf(clip_norm):
            raise validation.fail(key, math.inf, "be finite where noise is added")
    if math.isinf(config.epsilon) and config.placement != "none":
        raise validation.fail(
            "epsilon", config.epsilon, "be finite", "use placement none to train unprotected"
        )
    if config.noise_draws == "fast" and config.nodes_own_data:
        hint = "floating-point noise is for simulations"
        raise validation.fail("noise-draws", "fast", "be auto or exact where nodes own their data", hint)
    if config.relation == "add-remove" and config.placement == "local":
        hint = "the server sees who takes part; what they hold is replaced"
        raise validation.fail(
            "relation", config.relation, "be auto or replace-one with placement local", hint
        )
    if config.max_participations and config.placement != "local":
        raise validation.fail(
            "max-participations", config.max_participations, "be 0 unless placement is local"
        )
    if config.max_participations and config.nodes_own_data:
        # A cap protects against the server only where clients count for themselves, which deployed nodes
        # do not do yet.
        raise validation.fail("max-participations", config.max_participations, "be 0 with nodes-own-data")
    if config.max_participations > config.rounds:
        raise validation.fail("max-participations", config.max_participations, "be at most rounds")
    if config.unit == "example" and config.partition != "one-example":
        raise validation.fail("partition", config.partition, "be one-example where the unit is an example")
    if config.unit == "example" and config.work != "gradient":
        raise validation.fail("work", config.work, "be gradient where the unit is an example")


def check_client_level(config: Config) -> None:
    """Refuse what silos cannot do by themselves (:mod:`fedpriv.node.silo`)."""
    if config.unit != "example":
        raise validation.fail(
            "unit", config.unit, "be example with level client", "silos protect their examples"
        )
    if config.placement not in ("none", "central"):
        hint = "each silo adds all the noise to its own sums"
        raise validation.fail("placement", config.placement, "be central or none with level client", hint)
    if config.optimizer == "adadp" and config.silo_steps % 2:
        raise validation.fail(
            "silo-steps", config.silo_steps, "be even with adadp", "its step is two releases"
        )
    if config.optimizer == "rrpsgd":
        raise validation.fail(
            "optimizer", "rrpsgd", "be another with level client", "its rounds are the run's"
        )
    if config.srm_random_iterate:
        # A silo's iterates are not the server's models, of which it would be one.
        raise validation.fail("srm-random-iterate", True, "be false with level client")
    if config.averaging:
        raise validation.fail("averaging", config.averaging, "be 0 with level client")


def check_first_cohort(config: Config, sampler: Sampler) -> None:
    """Refuse DP-SRM's first cohort where the sampler cannot draw one of its size."""
    key, factor = "srm-first-cohort", config.srm_first_cohort
    if factor == 1:
        return
    if isinstance(sampler, Everyone):
        raise validation.fail(key, factor, "be 1 with sampler everyone")
    if isinstance(sampler, TruncatedPoisson):
        hint = "use sampler fixed-size"
        raise validation.fail(key, factor, f"be 1 with sampler poisson under {config.placement} noise", hint)
    if factor * sampler.expected_size > sampler.population:
        most = sampler.population / sampler.expected_size
        raise validation.fail(
            key, factor, f"be at most {most:g}", "the first cohort would be more than everyone"
        )
    if isinstance(sampler, FixedSize) and round(factor * sampler.size) < 1:
        raise validation.fail(key, factor, f"leave somebody of cohorts of {sampler.size}")


def check_schedules(config: Config) -> None:
    """Refuse schedules' settings that the optimizer, or the noise schedule, does not take."""
    static = {"rho-c": config.rho_c == 1, "rho-mu": config.rho_mu == 1}
    static["noise-schedule"] = config.noise_schedule == "geometric"
    for key, unset in static.items():
        if not config.optimizer.startswith("dynamic-") and not unset:
            text = f"{key} is set but optimizer is {config.optimizer!r}, which has no schedule"
            if config.optimizer not in optimizers.PAPERS:
                text += f"; use optimizer='dynamic-{config.optimizer}'"
            raise validation.ArgumentError(text)
    for key, rho in (("rho-c", config.rho_c), ("rho-mu", config.rho_mu)):
        if config.noise_schedule in ("given", *DECAYS) and rho != 1:
            raise validation.fail(key, rho, f"be 0 or 1 with noise-schedule {config.noise_schedule}")
    if config.noise_schedule == "sqrt-clip" and config.rho_mu != 1:
        raise validation.fail("rho-mu", config.rho_mu, "be 1 with noise-schedule sqrt-clip, which sets mu")


def check_momentum(config: Config) -> None:
    """Refuse heavy-ball momentum where the optimizer has none."""
    if config.momentum and config.optimizer.endswith("adam"):
        raise validation.fail("momentum", config.momentum, "be 0 with Adam", "Adam's is beta1")
    if config.momentum and config.optimizer not in ("dp-sgd", "dynamic-dp-sgd"):
        raise validation.fail("momentum", config.momentum, f"be 0 with {config.optimizer}")


def check_adaptive_clipping(config: Config) -> None:
    """Refuse a clip norm that adapts where there are two, or where a schedule sets it."""
    key, quantile = "adaptive-quantile", config.adaptive_quantile
    if quantile == 0:
        return
    if config.optimizer == "adadp":
        hint = "the two releases of its step must be clipped alike"
        raise validation.fail(key, quantile, "be 0 with adadp", hint)
    if config.optimizer.startswith("dp2-") or config.optimizer == "dp-srm":
        raise validation.fail(key, quantile, f"be 0 with {config.optimizer}, which has two clip norms")
    if config.rho_c != 1 or config.clip_norm_file:
        schedule = "clip-norm-file" if config.clip_norm_file else "rho-c other than 1"
        raise validation.fail(key, quantile, f"be 0 with {schedule}")
    if math.isinf(config.clip_norm):
        raise validation.fail(
            "clip-norm", config.clip_norm, "be finite where it adapts: it is where C starts"
        )
