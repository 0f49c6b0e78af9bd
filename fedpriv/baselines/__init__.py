"""What the papers compare themselves with, where it does not fit the protocol of :mod:`fedpriv.optimizers`.

| baseline | where | budget |
|---|---|---|
| noise decay (Yu et al. 2019; Zhang et al. 2021) | ``optimizers.noise_decay``; ``reshuffling`` | zCDP; tCDP |
| DP-GD (Wang et al. 2017), RRPSGD (Zhang et al. 2017) | ``gradient_descent`` | any |
| DP-AGD (Lee & Kifer 2018) | ``adaptive_gradient_descent`` | a zCDP filter |
| AdaDPS (Li et al. 2022), PDA-DPMD (Amid et al. 2022) | ``optimizers.public_data``; ``public`` | any |
| private selection (Liu & Talwar 2019) | ``selection`` | its own theorems |
"""

from fedpriv.baselines.adaptive_gradient_descent import DpAgd, descend
from fedpriv.baselines.gradient_descent import Baseline, dp_gd, draw_rounds, rrpsgd
from fedpriv.baselines.public import LazyGradient, PublicGradient, split
from fedpriv.baselines.selection import Selection, Winner, select

__all__ = [
    "Baseline",
    "DpAgd",
    "LazyGradient",
    "PublicGradient",
    "Selection",
    "Winner",
    "descend",
    "dp_gd",
    "draw_rounds",
    "rrpsgd",
    "select",
    "split",
]
