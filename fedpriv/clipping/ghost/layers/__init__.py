"""The layer rules of book-keeping, by the layer's type or the base class whose forward it inherits.

To add a rule for a kind of layer, write a module in this package with a table ``RULES``, and add it to
:data:`RULES` here. Its ``measure`` turns the inputs of a call and the gradients at its hook points into
factored per-example gradients. Its ``record`` defines the hook points; a layer whose only hook point is its
output needs none. Where vmap does not support the layer's forward, :func:`make_batched` replaces it by one
that vmap supports, so that gradients can be formed as rows, too.

>>> import torch
>>> layer = torch.nn.Linear(2, 1)
>>> forms = RULES[torch.nn.Linear].measure(layer, torch.tensor([[3.0, 4.0]]), (torch.tensor([[2.0]]),))
>>> {name: form.squares().tolist() for name, form in forms.items()}
{'weight': [100.0], 'bias': [4.0]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fedpriv.clipping.ghost.layers import (
    attention,
    convolutional,
    embedding,
    hugging_face,
    linear,
    normalisation,
    recurrent,
)
from fedpriv.clipping.ghost.layers.base import (
    Call,
    LayerRule,
    UnsupportedLayerError,
    by_matrix_products,
    hook_point,
)
from fedpriv.clipping.ghost.layers.hugging_face import masks_in_full

RULES: dict[type[nn.Module], LayerRule] = {
    **linear.RULES,
    **convolutional.RULES,
    **embedding.RULES,
    **normalisation.RULES,
    **recurrent.RULES,
    **attention.RULES,
}
_BATCHED = {**embedding.BATCHED, **recurrent.BATCHED, **attention.BATCHED}


def rule_of(layer: type[nn.Module]) -> LayerRule | None:
    """The rule in :data:`RULES` for this type, or for the base class whose forward it inherits; else None.

    The trial (:mod:`fedpriv.clipping.ghost.compatibility`) finds other changes of a subclass, such as an
    overridden helper of the forward.

    >>> class Own(nn.Linear):
    ...     pass
    >>> rule_of(Own) is RULES[nn.Linear]
    True
    """
    known = _base_of(layer, RULES)
    return hugging_face.rule_of(layer) if known is None else RULES[known]


def _base_of(layer: type[nn.Module], table: Mapping[type[nn.Module], Any]) -> type[nn.Module] | None:
    """The first class in the layer's method resolution order that is in the table, if the forward is its."""
    for base in layer.__mro__:
        if base in table:
            return base if layer.forward is base.forward else None  # type: ignore[attr-defined]
    return None


def _batched(layer: type[nn.Module]) -> type[nn.Module] | None:
    """The type that computes the same with operations that vmap supports; None where the layer needs none."""
    base = _base_of(layer, _BATCHED)
    if base is None or base is layer:
        return None if base is None else _BATCHED[base]
    return type(layer.__name__, (_BATCHED[base], layer), {})  # keeps the subclass's other methods


def make_batched(module: nn.Module) -> None:
    """Replace, in place, the layers of ``module`` that vmap cannot differentiate by equivalent ones."""
    for layer in module.modules():
        batched = _batched(type(layer))
        if batched is not None and "forward" not in vars(layer):
            layer.__class__ = batched
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False
        # Without gradients, these use a fused kernel that does not call their layers.
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False


__all__ = [
    "RULES",
    "Call",
    "LayerRule",
    "UnsupportedLayerError",
    "by_matrix_products",
    "hook_point",
    "make_batched",
    "masks_in_full",
    "rule_of",
]
