"""The rules by which book-keeping treats layers, by their type or one whose forward they inherit.

A rule for another kind of layer is a module beside this one with a table ``RULES`` of its own, and a line in
:data:`RULES` here. Its ``measure`` turns what a call saw and the gradient at its hook points into factored
per-example gradients; its ``record``, needed where the layer's output is not the only hook point, names
them. Where vmap has no rule for the layer's forward, :func:`make_batched` gives it one that vmap can run, so
that rows can be formed too.

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
    linear,
    normalisation,
    recurrent,
)
from fedpriv.clipping.ghost.layers.base import Call, LayerRule, UnsupportedLayerError, hook_point

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
    """The rule in :data:`RULES` for this type, or for the base whose forward it inherits; else None.

    What else such a layer changes (a helper of its forward, say) is found when it is tried out.

    >>> class Own(nn.Linear):
    ...     pass
    >>> rule_of(Own) is RULES[nn.Linear]
    True
    """
    known = _base_of(layer, RULES)
    return None if known is None else RULES[known]


def _base_of(layer: type[nn.Module], table: Mapping[type[nn.Module], Any]) -> type[nn.Module] | None:
    """The nearest of its bases, or itself, that is in the table, if its forward is that one's."""
    for base in layer.__mro__:
        if base in table:
            return base if layer.forward is base.forward else None  # type: ignore[attr-defined]
    return None


def _batched(layer: type[nn.Module]) -> type[nn.Module] | None:
    """The type that computes the same in steps that vmap knows, where this one does not."""
    base = _base_of(layer, _BATCHED)
    if base is None or base is layer:
        return None if base is None else _BATCHED[base]
    return type(layer.__name__, (_BATCHED[base], layer), {})  # what else the layer has stays its own


def make_batched(module: nn.Module) -> None:
    """Changes the layers of ``module`` that vmap cannot differentiate into ones that compute the same."""
    for layer in module.modules():
        batched = _batched(type(layer))
        if batched is not None and "forward" not in vars(layer):
            layer.__class__ = batched
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False
        # Where nothing has a gradient yet, these would pass their layers by.
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False


__all__ = ["RULES", "Call", "LayerRule", "UnsupportedLayerError", "hook_point", "make_batched", "rule_of"]
