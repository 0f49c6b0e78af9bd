"""Which settings a run uses, and what would use the others: one table of all that depends on other settings.

>>> from fedpriv.config.schema import Config
>>> unused(Config.parse({"optimizer": "dp-sgd", "srm-gamma": 0.5}))
('srm-gamma', 'optimizer=dp-srm')
"""

from __future__ import annotations

from typing import NamedTuple

from fedpriv.config.optimizers import PAPERS, PUBLIC
from fedpriv.config.schema import DECAYS, Config


class Use(NamedTuple):
    """Settings that a run uses together, or not.

    Attributes:
        used: whether this run does.
        keys: the settings.
        needed: what a run needs for that.
    """

    used: bool
    keys: tuple[str, ...]
    needed: str


def unused(config: Config) -> tuple[str, str] | None:
    """The first key that was changed and that nothing in this run would use, and what would use it, or None.

    What 0 stands for is no change, whether or not it was filled in.
    """
    now, defaults, derived = config.table(), Config.parse({}).table(), config.derived()
    for use in (*_of_the_federation(config), *_of_the_optimizer(config)):
        for key in use.keys:
            if not use.used and now[key] not in (defaults[key], derived.get(key, defaults[key])):
                return key, use.needed
    return None


def idle(config: Config) -> set[str]:
    """All keys that nothing in this run uses, whatever their values.

    >>> "srm-gamma" in idle(Config.parse({"optimizer": "dp-sgd"}))
    True
    """
    noise = config.placement != "none"
    elsewhere = (  # where they are changed for nothing, they are refused in words of their own
        Use(config.unit == "example", ("level",), "unit=example"),
        Use(config.placement == "local", ("max-participations",), "placement=local"),
        Use(config.placement in ("local", "distributed"), ("min-replies",), "clients that add the noise"),
        Use(noise, ("epsilon", "delta", "relation", "accounting", "noise-draws"), "noise"),
    )
    uses = (*elsewhere, *_of_the_federation(config), *_of_the_optimizer(config))
    return {key for use in uses if not use.used for key in use.keys}


def _of_the_federation(config: Config) -> tuple[Use, ...]:
    """Who has which data, who adds noise, and where it runs."""
    several = config.partition not in ("one-example", "natural")
    partition = "a partition other than one-example and natural"
    local = ("local-steps", "local-learning-rate", "local-batch-size")
    alone = config.placement == "none" or config.level == "client" or config.clients == 1
    colluding = not alone and (config.placement != "central" or config.sampler == "fixed-size")
    parties = "several parties that add noise, or are drawn in cohorts of a fixed size"
    files = ("relative-noise-file", "clip-norm-file")
    engine = ("actors", "cpus-per-actor", "gpus-per-actor", "reply-timeout")
    return (
        Use(config.level == "client", ("silo-steps",), "level=client"),
        Use(several or config.unit == "example", ("examples-per-client",), partition),
        Use(several, ("client-sizes", "partition-seed"), partition),
        Use(config.partition == "dirichlet", ("dirichlet-alpha",), "partition=dirichlet"),
        Use(colluding, ("colluding-parties",), parties),
        Use(config.partition == "shards", ("labels-per-client",), "partition=shards"),
        Use(config.work == "local-steps", local, "work=local-steps"),
        Use(config.adaptive_quantile > 0, ("adaptive-step", "adaptive-share"), "adaptive-quantile above 0"),
        Use(config.noise_schedule == "given", files, "noise-schedule=given and a dynamic optimizer"),
        Use(config.engine == "ray", engine, "a federation" if config.centralised else "engine=ray"),
    )


def _of_the_optimizer(config: Config) -> tuple[Use, ...]:
    """The methods' own settings, and those of their variants after them."""
    name, variant, schedule = config.optimizer, config.dp2_variant, config.noise_schedule
    dp2, last = name.startswith("dp2-"), name.rpartition("-")[2]
    plain = "" if dp2 else last  # DP2's rules have an epsilon and a beta of their own
    adp, fits = name in ("adp-sgd", "adaptive-adp-sgd"), config.adp_noise == "fitted"
    falls = config.learning_rate_schedule != "constant"
    restart, normalised = ("adp-nu", "adp-beta", "adp-period"), config.srm_step == "normalised"
    return (
        Use(plain in ("adam", "yogi") or name == "dp2-adam", ("beta1",), "an Adam optimizer or Yogi"),
        Use(plain in ("adam", "rmsprop", "yogi"), ("beta2",), "an Adam optimizer, RMSProp or Yogi"),
        Use(
            plain in ("adam", "rmsprop", "adagrad", "yogi"),
            ("adam-epsilon",),
            "an Adam optimizer or its like",
        ),
        Use(name not in PAPERS, ("learning-rate-schedule", "warmup-steps"), "a textbook rule, as dp-sgd is"),
        Use(falls, ("learning-rate-end",), "learning-rate-schedule=linear or cosine"),
        Use(adp, ("adp-a", "adp-noise"), "optimizer=adp-sgd"),
        Use(name == "adp-sgd" or (adp and fits), ("adp-c",), "optimizer=adp-sgd, or adp-noise=fitted"),
        Use(name == "adaptive-adp-sgd", restart, "optimizer=adaptive-adp-sgd"),
        Use(dp2, _keys("dp2-"), "a dp2 optimizer"),
        Use(variant != "extra-query", ("dp2-adaptive-steps", "dp2-noise-correction"), "another dp2-variant"),
        Use(variant != "noise-first", ("dp2-adaptive-clip-norm",), "another dp2-variant"),
        Use(name == "adadp", _keys("adadp-"), "optimizer=adadp"),
        Use(config.adadp_decay_after > 0, ("adadp-epoch", "adadp-decay"), "adadp-decay-after"),
        Use(name == "dp-srm", _keys("srm-"), "optimizer=dp-srm"),
        Use(normalised, ("srm-zeta", "srm-smoothness", "srm-n0"), "srm-step=normalised"),
        Use(not normalised, ("learning-rate",), "srm-step=constant"),
        Use(config.srm_gamma < 1, ("srm-difference-clip-norm",), "srm-gamma below 1"),
        Use(config.regulariser != "none", ("regularisation",), "a regulariser"),
        Use(schedule in DECAYS, ("noise-decay", "noise-epoch"), "a noise-schedule that decays"),
        Use(schedule in ("step", "polynomial"), ("noise-period",), "noise-schedule=step or polynomial"),
        Use(schedule == "polynomial", ("noise-end",), "noise-schedule=polynomial"),
        Use(name in PUBLIC, _keys("public-"), "optimizer=adadps or pda-dpmd"),
        Use(name == "adadps", _keys("adadps-"), "optimizer=adadps"),
        Use(name == "pda-dpmd", _keys("pda-"), "optimizer=pda-dpmd"),
    )


def _keys(prefix: str) -> tuple[str, ...]:
    known = Config.keys()
    return tuple(key for key in known if key.startswith(prefix))
