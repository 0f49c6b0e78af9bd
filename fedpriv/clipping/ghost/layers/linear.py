"""Linear layers: one outer product for each place of the input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedpriv.clipping.ghost.factored import Factored, Rows
from fedpriv.clipping.ghost.layers.base import LayerRule
from fedpriv.clipping.ghost.outer_product import outer


def measure_linear(
    layer: Any, a: Tensor, deltas: tuple[Tensor, ...], transposed: bool = False
) -> dict[str, Factored]:
    """The gradients of a linear layer with inputs a (n, ..., in) and output gradients (n, ..., out).

    The layer's weight is (out, in), or ``transposed`` (in, out).
    """
    (delta,) = deltas
    if a.dim() > 2:
        a, delta = a.flatten(1, -2), delta.flatten(1, -2)
    left, right = (a, delta) if transposed else (delta, a)
    forms: dict[str, Factored] = {"weight": outer(left, right, layer.weight.shape)}
    if layer.bias is not None:
        forms["bias"] = Rows(delta.sum(1) if delta.dim() > 2 else delta)
    return forms


RULES: dict[type[nn.Module], LayerRule] = {nn.Linear: LayerRule(measure_linear, places=True)}
