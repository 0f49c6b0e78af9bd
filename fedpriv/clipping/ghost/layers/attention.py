"""Multi-head attention: three linear maps of the inputs, and one of the heads' output.

The first three maps have hook points here. The last one is an ordinary linear layer with its own rule.
Nothing between them has parameters. For calls that this module does not implement (``bias_k``, nested
tensors), torch's forward runs and the gradients are formed as rows.

>>> layer = nn.MultiheadAttention(4, 2, batch_first=True).eval()
>>> x = torch.arange(24.0).view(2, 3, 4) / 10
>>> torch.allclose(attend(layer, x, x, x)[0], layer(x, x, x)[0], atol=1e-6)
True
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpriv.clipping.dropout import built_in
from fedpriv.clipping.ghost.factored import Factored, Rows
from fedpriv.clipping.ghost.layers.base import Call, LayerRule, UnsupportedLayerError, hook_point, in_vmap
from fedpriv.clipping.ghost.outer_product import outer

Attention = nn.MultiheadAttention


@dataclass(frozen=True)
class Projection:
    """One linear map of a call.

    Attributes:
        name: "qkv" where one map computes queries, keys and values of one input, else "q", "k" or "v".
        seen: the map's input, (n, places, in).
        projected: the map's output, (n, places, out), a hook point.
    """

    name: str
    seen: Tensor
    projected: Tensor


def attend(
    layer: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    projections: list[Projection] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output of ``layer`` for batches of queries, keys and values; it drops where examples have seeds.

    Args:
        projections: a list to which the linear maps are appended, with hook points at their outputs.

    The other arguments are those of the layer's forward.
    """
    one = query is key and key is value
    inputs = [x if layer.batch_first else x.transpose(0, 1) for x in (query, key, value)]
    projected = _project(layer, inputs, one, projections)
    width = layer.head_dim
    q, k, v = (x.view(*x.shape[:2], -1, width).transpose(1, 2) for x in projected)
    if is_causal and attn_mask is None:
        raise RuntimeError("is_causal=True needs attn_mask, too: it only says that the mask is causal")
    dropout = built_in(layer)
    formed = need_weights or dropout is not None  # fused kernels would draw by torch's generator
    hinted = is_causal and key_padding_mask is None and not formed
    mask = None if hinted else _mask(layer, attn_mask, key_padding_mask, q)
    weights = None
    if formed:
        scores = (q * math.sqrt(1 / width)).matmul(k.mT)
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        weights = weights if dropout is None else dropout(weights)
        found = weights.matmul(v)
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        with _kernels(fused=projections is not None and not in_vmap()):
            found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=hinted)
    output = layer.out_proj(found.transpose(1, 2).flatten(2))
    return (output if layer.batch_first else output.transpose(0, 1)), weights if need_weights else None


def _kernels(fused: bool = False) -> AbstractContextManager[None]:
    """The attention kernels: fused ones need less memory, but vmap does not support them."""
    return nullcontext() if fused or not torch.is_grad_enabled() else sdpa_kernel(SDPBackend.MATH)


def _project(
    layer: Attention, inputs: list[Tensor], one: bool, projections: list[Projection] | None
) -> tuple[Tensor, ...]:
    """The queries, keys and values, (n, places, width) each."""

    def mapped(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        projected = F.linear(x, weight, bias)
        if projections is not None:
            projected = hook_point(projected)
            projections.append(Projection(name, x.detach(), projected))
        return projected

    packed = layer.in_proj_weight
    if one and packed is not None:
        return mapped("qkv", inputs[0], packed, layer.in_proj_bias).chunk(3, 2)
    apart = layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight
    weights = apart if packed is None else packed.chunk(3)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return tuple(map(mapped, "qkv", inputs, weights, biases))


def _mask(layer: Attention, among: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """The mask to add to the scores; it broadcasts to (n, heads, queries, keys). None: no mask."""
    parts = []
    if among is not None:
        parts.append(among if among.dim() == 2 else among.view(-1, layer.num_heads, *among.shape[1:]))
    if padding is not None:
        parts.append(padding[:, None, None])
    added = [
        torch.zeros_like(part, dtype=like.dtype).masked_fill_(part, -math.inf)
        if part.dtype == torch.bool
        else part.to(like.dtype)
        for part in parts
    ]
    return sum(added[1:], added[0]) if added else None


def _is_plain(layer: Attention, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> bool:
    """Whether :func:`attend` supports the call."""
    usual = layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn
    return usual and all(x.dim() == 3 and not x.is_nested for x in (query, key, value))


class PlainAttention(nn.MultiheadAttention):
    """An nn.MultiheadAttention with operations that vmap supports; it calls ``out_proj`` as a layer."""

    def forward(self, *inputs: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        """What nn.MultiheadAttention returns."""
        if not _is_plain(self, *inputs, **named):
            with _kernels():
                return super().forward(*inputs, **named)
        return attend(self, *inputs, **named)


def record_attention(layer: Attention, *inputs: Any, **named: Any) -> Call:
    """Record a call on batches, with hook points at the projected inputs."""
    if not _is_plain(layer, *inputs, **named):
        raise UnsupportedLayerError
    projections: list[Projection] = []
    output = attend(layer, *inputs, **{**named, "projections": projections})
    return Call(output, tuple(each.projected for each in projections), projections)


def measure_attention(
    layer: Attention, projections: list[Projection], deltas: tuple[Tensor, ...]
) -> dict[str, Factored]:
    """The per-example gradients of the first three maps, from the gradients at their outputs."""
    seen = [each.seen.to(delta.dtype) for each, delta in zip(projections, deltas, strict=True)]
    forms: dict[str, Factored] = {}
    if len(projections) == 1:
        forms["in_proj_weight"] = outer(deltas[0], seen[0], (deltas[0].shape[2], seen[0].shape[2]))
    elif layer.in_proj_weight is not None:
        # One weight in three groups with equally many places; padded places have zero gradient.
        sent, taken = _stacked(deltas), _stacked(seen)
        forms["in_proj_weight"] = outer(sent, taken, (3 * sent.shape[3], taken.shape[3]))
    else:
        for each, delta, a in zip(projections, deltas, seen, strict=True):
            forms[f"{each.name}_proj_weight"] = outer(delta, a, (delta.shape[2], a.shape[2]))
    if layer.in_proj_bias is not None:
        forms["in_proj_bias"] = Rows(torch.cat([delta.sum(1) for delta in deltas], 1))
    return forms


def _stacked(parts: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """Parts (n, places, k) with different numbers of places as (n, parts, most places, k), zero-padded."""
    most = max(part.shape[1] for part in parts)
    return torch.stack([F.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts], 1)


BATCHED: dict[type[nn.Module], type[nn.Module]] = {nn.MultiheadAttention: PlainAttention}

RULES: dict[type[nn.Module], LayerRule] = {
    kind: LayerRule(measure_attention, record_attention) for kind in (nn.MultiheadAttention, PlainAttention)
}
