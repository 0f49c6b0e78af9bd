"""Settings that several optimizers share, and those of the wrappers that any optimizer takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedpriv._internal.settings import Scalar, Settings, needs, setting
from fedpriv.optimizers.adaptive_clipping import AdaptiveClippingSettings
from fedpriv.optimizers.automatic_clipping import AutomaticClippingSettings
from fedpriv.optimizers.averaging import AveragingSettings
from fedpriv.optimizers.per_layer import PerLayerSettings
from fedpriv.optimizers.regularised import RegulariserSettings
from fedpriv.optimizers.schedules import Annealing


class CommonSettings(Settings):
    """Settings that several optimizers share; each method says in its file which of them it uses."""

    # The defaults of 0.1.0.
    UNSET: ClassVar[Mapping[str, Scalar]] = {"beta1": 0.9, "beta2": 0.999, "adam-epsilon": 1e-8}

    learning_rate: float = setting(
        0.0,
        "step size eta; 0: the optimizer's own, times 1 - momentum",
        ge=0,
        filled=True,
    )
    learning_rate_schedule: Annealing = setting(
        "constant", "how the step size of a textbook rule falls over the run"
    )
    learning_rate_end: float = setting(
        0.0,
        "what it falls to, as a share of learning-rate",
        ge=0,
        le=1,
        needs=needs(learning_rate_schedule=("linear", "cosine")),
    )
    warmup_steps: int = setting(0, "releases over which it first rises to learning-rate", ge=0)
    momentum: float = setting(0.0, "heavy-ball momentum of the SGD rules", ge=0, lt=1)
    beta1: float = setting(
        -1.0,
        "first decay of Adam and Yogi; -1: 0.9, and with work=local-steps at most 1 - 15 / rounds",
        ge=-1,
        lt=1,
        filled=True,
    )
    beta2: float = setting(
        0.0, "second decay of Adam, RMSProp and Yogi; 0: the optimizer's own", ge=0, lt=1, filled=True
    )
    adam_epsilon: float = setting(
        0.0, "denominator offset of Adam and the like; 0: the optimizer's own", ge=0, filled=True
    )
    clip_norm: float = setting(1.0, "C (C_0 where it decays); inf: no clipping", gt=0, allow_inf_nan=True)


class SharedSettings(
    AveragingSettings,
    RegulariserSettings,
    AdaptiveClippingSettings,
    AutomaticClippingSettings,
    PerLayerSettings,
    CommonSettings,
):
    """Those of the wrappers, and the common ones."""


WRAPPER_KEYS = frozenset(SharedSettings.fields()) - set(CommonSettings.fields())
