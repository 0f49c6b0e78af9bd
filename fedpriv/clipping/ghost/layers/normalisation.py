"""Layers that scale their (normalised) inputs. They have few parameters, so their gradients are formed.

The gradient of a scale is the sum, over the entries that it scales, of the output gradient times the entry.
The gradient of a shift is the sum of the output gradient.

>>> forms = RULES[Scale].measure(Scale(2), torch.tensor([[3.0, 4.0]]), (torch.tensor([[2.0, 1.0]]),))
>>> {name: form.rows().tolist() for name, form in forms.items()}
{'weight': [[6.0, 4.0]], 'bias': [[2.0, 1.0]]}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.clipping.ghost.factored import Factored, Rows
from fedpriv.clipping.ghost.layers.base import LayerRule, UnsupportedLayerError


class Scale(nn.Module):
    """x * weight + bias, with a learned scale and shift whose shape broadcasts over one example.

    ``Scale(channels, 1, 1)`` has one of each for every channel of images (n, channels, height, width),
    ``Scale(width)`` for every entry of the last axis. Their initial values are 1 and 0.
    """

    bias: nn.Parameter | None

    def __init__(self, *shape: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        self.register_parameter("bias", nn.Parameter(torch.zeros(shape)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        """The scaled inputs, of the shape (n, ...) of ``x``."""
        return x * self.weight if self.bias is None else x * self.weight + self.bias


def scaling(base_of: Callable[[Any, Tensor], Tensor], channels_first: bool = False) -> LayerRule:
    """The rule for a layer that computes weight * base + bias, with a base of its input's shape (n, ...).

    The layer may also add a function of its input that has no parameters.

    Args:
        base_of: (layer, input) -> base.
        channels_first: whether the weight is (channels,), along the axis after the examples.
    """

    def measure(layer: Any, x: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
        base, (delta,) = base_of(layer, x), deltas
        if channels_first:
            base, delta = base.movedim(1, -1), delta.movedim(1, -1)
        shape = layer.weight.shape
        if delta.shape != base.shape or delta.dim() <= len(shape):
            raise UnsupportedLayerError
        kept = (len(delta), *[1] * (delta.dim() - 1 - len(shape)), *shape)

        def summed(products: Tensor) -> Rows:
            return Rows(products.sum_to_size(kept).view(-1, *shape))

        forms: dict[str, Factored] = {"weight": summed(delta * base)}
        if getattr(layer, "bias", None) is not None:
            forms["bias"] = summed(delta)
        return forms

    return LayerRule(measure, places=not channels_first)


def _layer_normal(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, eps=layer.eps)


def _root_normal(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    return F.rms_norm(x, layer.normalized_shape, eps=layer.eps)


def _group_normal(layer: nn.GroupNorm, x: Tensor) -> Tensor:
    return F.group_norm(x, layer.num_groups, eps=layer.eps)


def _instance_normal(layer: Any, x: Tensor) -> Tensor:
    axes = next(axes for kind, axes in _INSTANCES.items() if isinstance(layer, kind))
    if x.dim() != axes:  # an input without an axis for the examples
        raise UnsupportedLayerError
    return F.instance_norm(x, eps=layer.eps)


def _negative(layer: nn.PReLU, x: Tensor) -> Tensor:
    if x.dim() < 2:  # no axis for the channels
        raise UnsupportedLayerError
    return x.clamp(max=0)


_INSTANCES = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}

RULES: dict[type[nn.Module], LayerRule] = {
    Scale: scaling(lambda layer, x: x),
    nn.LayerNorm: scaling(_layer_normal),
    nn.RMSNorm: scaling(_root_normal),
    nn.GroupNorm: scaling(_group_normal, channels_first=True),
    nn.PReLU: scaling(_negative, channels_first=True),
    **{kind: scaling(_instance_normal, channels_first=True) for kind in _INSTANCES},
}
