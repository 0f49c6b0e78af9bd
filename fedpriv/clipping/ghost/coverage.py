"""Which tensors of a model have book-keeping, and which need formed gradients.

One tensor without a layer rule (position embeddings, a temperature, a learned slope) must not cost a model
all of its book-keeping. Where the remaining tensors are a small part of the parameters, only their gradients
are formed, by vmap of grad with all other tensors as constants.

>>> from fedpriv.parameters import layout_of
>>> module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
>>> module.heat = nn.Parameter(torch.ones(1))
>>> coverage = coverage_of(module, layout_of(module))
>>> sorted(coverage.layers), coverage.remaining
(['0', '1'], ('heat',))
>>> sorted(coverage.without("1").layers)  # the layer's 10 of 27 parameters are too many to form
[]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clipping.dropout import SeededDropout
from fedpriv.clipping.ghost.factored import Factored, Rows
from fedpriv.clipping.ghost.layers import by_matrix_products, rule_of
from fedpriv.parameters import Layout

_PART = 4  # at most 1 in 4 parameters may need formed gradients

LossesAt = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Coverage:
    """How the tensors of a model are summed.

    Attributes:
        layers: the layers with book-keeping, by name; empty where all gradients are formed.
        slots: for each of these layers, the tensors' names in the layout by their names in the layer.
        sizes: the number of entries of each tensor of the layout.
    """

    layers: dict[str, nn.Module]
    slots: dict[str, dict[str, str]]
    sizes: dict[str, int]

    @property
    def remaining(self) -> tuple[str, ...]:
        """The tensors whose gradients are formed."""
        kept = {slot for own in self.slots.values() for slot in own.values()}
        return tuple(slot for slot in self.sizes if slot not in kept)

    @property
    def formed(self) -> int:
        """The number of formed entries per unit and point."""
        return sum(self.sizes[slot] for slot in self.remaining)

    def without(self, layer: str, called: bool = True) -> Coverage:
        """The coverage that forms the gradients of this layer's tensors.

        A layer that was not ``called`` adds nothing. If other layers hold its tensors, they alone are kept: a
        tied embedding may belong to a layer that the model never calls.
        """
        own = set(self.slots[layer].values())
        others = {name: kept for name, kept in self.slots.items() if name != layer}
        if not called and own <= {slot for kept in others.values() for slot in kept.values()}:
            return replace(self, layers={name: self.layers[name] for name in others}, slots=others)
        return self._forming(own)

    def _forming(self, left: set[str]) -> Coverage:
        slots = {
            name: {own: slot for own, slot in kept.items() if slot not in left}
            for name, kept in self.slots.items()
        }
        slots = {name: kept for name, kept in slots.items() if kept}
        coverage = replace(self, layers={name: self.layers[name] for name in slots}, slots=slots)
        if _PART * coverage.formed > sum(self.sizes.values()):
            return replace(self, layers={}, slots={})
        return coverage


def coverage_of(module: nn.Module, layout: Layout) -> Coverage:
    """The coverage by the module's layer types: tensors of layers without a layer rule remain."""
    trained = {id(p): name for name, p in module.named_parameters() if name in layout.names}
    layers, slots, left = dict[str, nn.Module](), dict[str, dict[str, str]](), set[str]()
    for name, layer in module.named_modules():
        held = layer.named_parameters(recurse=False, remove_duplicate=False)
        own = {inner: trained[id(tensor)] for inner, tensor in held if id(tensor) in trained}
        if rule_of(type(layer)) is None or "forward" in vars(layer):
            left |= set(own.values())
        else:
            layers[name], slots[name] = layer, own
    sizes = {slot.name: slot.size for slot in layout.slots}
    return Coverage(layers, slots, sizes)._forming(left)


@dataclass(frozen=True)
class Scalars(Rows):
    """The gradients (n, 1) of a parameter of shape ()."""

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return super().total(factors).view(())

    def rows(self) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.formed[:, 0]


def unit_gradients(
    losses: Callable[[Any, Tensor, Tensor], Tensor],
    dropout: SeededDropout,
    at: Any,
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    seeds: Tensor | None,
) -> Any:
    """The gradients of units' weighted losses, formed by vmap of grad: like ``at``, with a first axis n.

    Args:
        losses: (parameters like ``at``, examples (m, ...), labels (m, ...)) -> losses (m,).
        dropout: the model's dropout.
        at: a tensor, or several by name.
        x, y, weights, seeds: n units of m examples each, (n, m, ...); seeds may be None.
    """

    def loss(at: Any, x: Tensor, y: Tensor, weights: Tensor, seeds: Tensor | None = None) -> Tensor:
        with dropout.seeded(seeds):
            return (losses(at, x, y) * weights).sum()

    each = (x, y, weights) if seeds is None else (x, y, weights, seeds)
    with by_matrix_products():
        return torch.func.vmap(torch.func.grad(loss), (None, *[0] * len(each)))(at, *each)


def form_rows(
    losses_at: LossesAt,
    dropout: SeededDropout,
    tensors: Mapping[str, Tensor],
    names: tuple[str, ...],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None,
    seeds: Tensor | None,
) -> dict[str, Factored]:
    """The units' gradients with respect to the tensors in ``names``.

    Args:
        losses_at: the model's losses (m,) at its tensors.
        dropout: the model's dropout.
        tensors: the point's tensors by name.
        names: the tensors to differentiate by.
        x, y, weights, seeds: the units, as for :meth:`fedpriv.clipping.ghost.bookkeeping.BookKeeping.sum`.
    """
    if weights is None:
        weights = torch.ones_like(tensors[names[0]].flatten()[:1]).expand(len(x), 1)
        x, y, seeds = x[:, None], y[:, None], None if seeds is None else seeds[:, None]
    fixed = {name: tensor.detach() for name, tensor in tensors.items() if name not in names}

    def losses(own: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return losses_at({**fixed, **own}, x, y)

    at = {name: tensors[name].detach() for name in names}
    found: dict[str, Tensor] = unit_gradients(losses, dropout, at, x, y, weights, seeds)
    return {name: Rows(rows) if rows.dim() > 1 else Scalars(rows[:, None]) for name, rows in found.items()}
