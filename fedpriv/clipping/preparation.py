"""Preparing a model so that the gradient of each example can be computed.

>>> module, drawing = prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Dropout(0.5)))
>>> module[1].inplace, drawing.draws
(False, True)
"""

from __future__ import annotations

import copy

from torch import nn

from fedpriv.clipping.dropout import Drawing
from fedpriv.clipping.ghost.layers import make_batched


def prepare(module: nn.Module) -> tuple[nn.Module, Drawing]:
    """A copy of ``module`` for per-example gradients, and what its dropout draws by.

    The copy is in evaluation mode and its own parameters need no gradient. It computes what ``module``
    computes: in steps that ``torch.func.vmap`` can differentiate, and without overwriting its inputs, from
    which norms are computed later. Its dropout draws from given seeds (:mod:`fedpriv.clipping.dropout`).
    """
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for layer in module.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]
    make_batched(module)
    return module, Drawing(module)
