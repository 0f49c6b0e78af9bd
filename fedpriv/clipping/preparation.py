"""Preparing a model so that the gradient of each example can be computed.

>>> module, dropout = prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Dropout(0.5)))
>>> module[1].inplace, dropout.draws
(False, True)
"""

from __future__ import annotations

import copy

from torch import nn

from fedpriv.clipping.dropout import SeededDropout
from fedpriv.clipping.ghost.layers import make_batched


def prepare(module: nn.Module) -> tuple[nn.Module, SeededDropout]:
    """A copy of ``module`` for per-example gradients, and its dropout layers.

    The copy is in evaluation mode and its parameters need no gradient. It computes the same function with
    operations that ``torch.func.vmap`` can differentiate. It does not overwrite the layers' inputs, because
    norms are computed from them later. Its dropout has a seed per example (:mod:`fedpriv.clipping.dropout`).
    """
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for layer in module.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]
    make_batched(module)
    return module, SeededDropout(module)
