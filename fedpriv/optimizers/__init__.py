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
from fedpriv.optimizers.first_order import Adam, FirstOrder, Sgd, dp_adam, dp_sgd

__all__ = [
    "Adam",
    "AdaptiveClipping",
    "Answer",
    "FirstOrder",
    "Planned",
    "PrivateOptimizer",
    "Sgd",
    "State",
    "dp_adam",
    "dp_sgd",
    "dynamic",
    "given",
    "growing_mu",
    "sensitivity_decay",
    "square_root_noise",
]
