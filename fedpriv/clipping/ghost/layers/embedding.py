"""Embeddings: an example's gradient is zero except in the rows of the table that it looks up.

>>> layer = nn.Embedding(5, 1, padding_idx=0)
>>> tokens, delta = torch.tensor([[3, 0, 3]]), torch.tensor([[[1.0], [7.0], [2.0]]])
>>> RULES[nn.Embedding].measure(layer, tokens, (delta,))["weight"].squares()  # (1 + 2)^2
tensor([9.], dtype=torch.float64)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.clipping.ghost.factored import Factored
from fedpriv.clipping.ghost.layers.base import Call, LayerRule, UnsupportedLayerError, hook_point, in_vmap
from fedpriv.clipping.ghost.sparse import Sparse


def measure_embedding(layer: nn.Embedding, tokens: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """The gradients of an embedding of tokens (n, ...) with output gradients (n, ..., width)."""
    (delta,) = deltas
    taken = tokens.reshape(len(tokens), -1)
    added = delta.reshape(*taken.shape, -1)
    if layer.padding_idx is not None:
        added = added.masked_fill((taken == layer.padding_idx)[..., None], 0.0)
    return {"weight": Sparse(taken, added, tuple(layer.weight.shape))}


class GatheredBag(nn.EmbeddingBag):
    """An nn.EmbeddingBag that sums or averages tokens (n, places) with operations that vmap supports."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The output of nn.EmbeddingBag."""
        if not _is_plain(self, *inputs, **named):
            return super().forward(*inputs, **named)
        rows = F.embedding(inputs[0], self.weight)
        return (rows * _shares(self, inputs[0], rows.dtype)).sum(1)


def record_bag(layer: nn.EmbeddingBag, *inputs: Any, **named: Any) -> Call:
    """Record a call with equally many tokens (n, places) for each example."""
    if not _is_plain(layer, *inputs, **named):
        raise UnsupportedLayerError
    kind = GatheredBag if in_vmap() else nn.EmbeddingBag
    output = hook_point(kind.forward(layer, *inputs))
    return Call(output, (output,), inputs[0])


def measure_bag(layer: nn.EmbeddingBag, tokens: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """The gradients of sums or means over tokens (n, places) with output gradients (n, width)."""
    (delta,) = deltas
    added = delta[:, None] * _shares(layer, tokens, delta.dtype)
    return {"weight": Sparse(tokens, added, tuple(layer.weight.shape))}


def _is_plain(layer: nn.EmbeddingBag, *inputs: Any, **named: Any) -> bool:
    """Whether a call sums or averages one bag of tokens (n, places) for each example."""
    return layer.mode != "max" and not named and len(inputs) == 1 and inputs[0].dim() == 2


def _shares(layer: nn.EmbeddingBag, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each token's row in its bag, (n, places, 1): zero for padding."""
    real = torch.ones_like(tokens) if layer.padding_idx is None else tokens != layer.padding_idx
    shares = real.to(dtype)[..., None]
    return shares if layer.mode == "sum" else shares / shares.sum(1, keepdim=True).clamp(min=1)


BATCHED: dict[type[nn.Module], type[nn.Module]] = {nn.EmbeddingBag: GatheredBag}

RULES: dict[type[nn.Module], LayerRule] = {
    nn.Embedding: LayerRule(measure_embedding, places=True),
    nn.EmbeddingBag: LayerRule(measure_bag, record_bag),
    GatheredBag: LayerRule(measure_bag, record_bag),
}
