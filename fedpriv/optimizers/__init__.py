"""Private optimizers: one small file per paper or family, all of one protocol (``base``)."""

import fedpriv.optimizers.first_order  # noqa: F401  its textbook rules head every list
from fedpriv._internal.registry import import_modules
from fedpriv.mechanism.query import NoisyAnswer
from fedpriv.optimizers.adaclip import AdaClip
from fedpriv.optimizers.adadp import Adadp, adadp, default_tolerance, scaled_error
from fedpriv.optimizers.adaptive_clipping import AdaptiveClipping
from fedpriv.optimizers.adp_sgd import (
    AdaptiveAdpSgd,
    Polynomial,
    Restarting,
    adaptive_adp_sgd,
    adp_sgd,
    predicted_gain,
)
from fedpriv.optimizers.automatic_clipping import AutomaticClipping
from fedpriv.optimizers.averaging import ExponentialMovingAverage
from fedpriv.optimizers.base import WRAPPERS, BaseOptimizer, PlannedRelease, PrivateOptimizer, State
from fedpriv.optimizers.dp2 import Dp2, ExtraQuery, dp2
from fedpriv.optimizers.dp_srm import DpSrm, NormalisedStep, dp_srm, draw_output_step
from fedpriv.optimizers.dynamic_dp_sgd import (
    dynamic_dp_sgd,
    growing_mu,
    scheduled_dp_sgd,
    sensitivity_decay,
    square_root_noise,
)
from fedpriv.optimizers.first_order import (
    AdaGrad,
    Adam,
    FirstOrder,
    RmsProp,
    Sgd,
    Yogi,
    dp_adagrad,
    dp_adam,
    dp_rmsprop,
    dp_sgd,
    dp_yogi,
)
from fedpriv.optimizers.noise_decay import noise_decay
from fedpriv.optimizers.noisy_adagrad import NoisyAdaGrad
from fedpriv.optimizers.per_layer import PerLayer
from fedpriv.optimizers.private_spiderboost import PrivateSpiderBoost
from fedpriv.optimizers.public_data import AdaDps, PdaDpmd
from fedpriv.optimizers.registry import (
    METHODS,
    BuildContext,
    Calibrated,
    DefaultRate,
    Method,
    OptimizerSettings,
    register,
)
from fedpriv.optimizers.regularised import L2, Nonconvex, Regularised, Regulariser
from fedpriv.optimizers.user import given_method, user_method
from fedpriv.optimizers.wrappers import wrapped

import_modules(__name__, __path__)  # a new file registers its methods by lying in this folder

__all__ = [
    "L2",
    "METHODS",
    "WRAPPERS",
    "AdaClip",
    "AdaDps",
    "AdaGrad",
    "Adadp",
    "Adam",
    "AdaptiveAdpSgd",
    "AdaptiveClipping",
    "AutomaticClipping",
    "BaseOptimizer",
    "BuildContext",
    "Calibrated",
    "DefaultRate",
    "Dp2",
    "DpSrm",
    "ExponentialMovingAverage",
    "ExtraQuery",
    "FirstOrder",
    "Method",
    "NoisyAdaGrad",
    "NoisyAnswer",
    "Nonconvex",
    "NormalisedStep",
    "OptimizerSettings",
    "PdaDpmd",
    "PerLayer",
    "PlannedRelease",
    "Polynomial",
    "PrivateOptimizer",
    "PrivateSpiderBoost",
    "Regularised",
    "Regulariser",
    "Restarting",
    "RmsProp",
    "Sgd",
    "State",
    "Yogi",
    "adadp",
    "adaptive_adp_sgd",
    "adp_sgd",
    "default_tolerance",
    "dp2",
    "dp_adagrad",
    "dp_adam",
    "dp_rmsprop",
    "dp_sgd",
    "dp_srm",
    "dp_yogi",
    "draw_output_step",
    "dynamic_dp_sgd",
    "given_method",
    "growing_mu",
    "noise_decay",
    "predicted_gain",
    "register",
    "scaled_error",
    "scheduled_dp_sgd",
    "sensitivity_decay",
    "square_root_noise",
    "user_method",
    "wrapped",
]
