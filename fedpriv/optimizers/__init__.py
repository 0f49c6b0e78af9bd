"""Private optimizers: one small file per paper or family, all of one protocol (``base``)."""

from fedpriv.optimizers.adaptive_clipping import AdaptiveClipping
from fedpriv.optimizers.base import Answer, Planned, PrivateOptimizer, State
from fedpriv.optimizers.dynamic import (
    dynamic,
    given,
    growing_mu,
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

__all__ = [
    "AdaGrad",
    "Adam",
    "AdaptiveClipping",
    "Answer",
    "FirstOrder",
    "Planned",
    "PrivateOptimizer",
    "RmsProp",
    "Sgd",
    "State",
    "Yogi",
    "dp_adagrad",
    "dp_adam",
    "dp_rmsprop",
    "dp_sgd",
    "dp_yogi",
    "dynamic",
    "given",
    "growing_mu",
    "sensitivity_decay",
    "square_root_noise",
]
