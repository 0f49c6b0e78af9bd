"""Convolutions: a linear map of the patch that the kernel sees at each place.

A kernel's gradient is the output gradients times the patches, one product of matrices an example. What costs
is to lay the patches out, since a pixel lies in many of them; so only a few rows of each are laid out, such
that the next few rows of all patches are the same memory a little further on (:func:`strips`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.clipping.ghost.factored import Cut, Factored, Rows
from fedpriv.clipping.ghost.layers.base import LayerRule, UnsupportedLayerError
from fedpriv.clipping.ghost.outer_product import Outer, Pairs, added_pairs, outer, scaled_pairs, worth_forming

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_WIDE = 16  # entries of a patch's rows, from which they are worth a product of matrices of their own


def measure_convolution(layer: Convolution, a: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """A convolution of inputs a (n, in, *sides) with output gradients (n, out, *places)."""
    (delta,) = deltas
    if a.dim() != len(layer.kernel_size) + 2:
        raise UnsupportedLayerError
    a = a.to(delta.dtype)  # where the passes had less precision
    forms: dict[str, Factored] = {}
    if worth_forming(delta[0, 0].numel(), len(layer.weight) // layer.groups, layer.weight[0].numel()):
        forms["weight"] = Kernels({layer: ((delta, a),)})
    else:
        forms["weight"] = _by_patches(layer, a, delta)
    if layer.bias is not None:
        forms["bias"] = Rows(delta.flatten(2).sum(2))
    return forms


@dataclass(frozen=True)
class Kernels:
    """The gradients of a kernel, which are formed once all of its calls at a point are known.

    Attributes:
        pairs: by the convolution that used the kernel, the (delta, a) whose gradients add up: of the shapes
            (n, out, *places) and, its inputs, (n, in, *sides).
    """

    pairs: Mapping[Convolution, Pairs]

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().squares(divisor)

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().total(factors)

    def scaled(self, coefficient: float) -> Kernels:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return Kernels({layer: scaled_pairs(pairs, coefficient) for layer, pairs in self.pairs.items()})

    def plus(self, other: Kernels) -> Kernels:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        layers = {**self.pairs, **other.pairs}
        return Kernels(
            {layer: added_pairs(self.pairs.get(layer, ()), other.pairs.get(layer, ())) for layer in layers}
        )

    def grouped(self, size: int) -> Cut:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().grouped(size)

    def simplified(self) -> Cut:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        uses = [_formed(layer, *pair) for layer, pairs in self.pairs.items() for pair in pairs]
        return functools.reduce(Cut.plus, uses)

    def rows(self) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().rows()


def _formed(layer: Convolution, delta: Tensor, a: Tensor) -> Cut:
    """The kernel's gradients of one call, a product of matrices for every few rows of the patches."""
    n, groups, (side, *rest), ins = len(a), layer.groups, layer.kernel_size, layer.weight.shape[1]
    rows = _rows_at_once(layer, a)
    seen = strips(layer, a, rows)
    sent = delta.reshape(n * groups, delta.shape[1] // groups, -1)
    width, step = math.prod(rest) * ins, rows * layer.dilation[0] // layer.stride[0]
    parts = []
    for q, first in enumerate(range(0, side, rows)):
        shape = (min(rows, side - first), *rest, ins)
        window = seen.as_strided(
            (n * groups, sent.shape[2], math.prod(shape)),
            (seen.stride(1), rows * width, 1),
            q * step * seen.stride(2),
        )
        parts.append(Rows(torch.bmm(sent, window).view(n, -1, *shape), _order(layer)))
    return Cut(tuple(parts), axis=2)


def _rows_at_once(layer: Convolution, a: Tensor) -> int:
    """How many rows of each patch are laid out: as few as are worth a product, and move by whole strips."""
    side, *rest = layer.kernel_size
    if a.device.type != "cpu":
        return side  # to lay all of them out costs less there than products of narrow matrices
    least = layer.stride[0] // math.gcd(layer.stride[0], layer.dilation[0])
    width = least * math.prod(rest) * layer.weight.shape[1]
    return min(side, least * math.ceil(_WIDE / width))


def strips(layer: Convolution, a: Tensor, rows: int) -> Tensor:
    """The first ``rows`` rows of the patches at each place, and of what lies beyond the last places.

    A patch's q-th rows are the first ones of q * rows * dilation / stride places further on, along the first
    side: that must be whole, or ``rows`` those of the kernel.

    Returns:
        (n, groups, strips, *places along the other sides, rows, *the kernel's other sides, in / groups),
        contiguous; there are as many strips as there are places along the first side, and for each further
        q so many more.
    """
    (k, *kernel), (s, *stride), (d, *dilation) = layer.kernel_size, layer.stride, layer.dilation
    a = padded(layer, a)
    places = [
        (length - gap * (side - 1) - 1) // each + 1
        for length, side, each, gap in zip(
            a.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True
        )
    ]
    tall = places[0] + (-(-k // rows) - 1) * rows * d // s
    beyond = s * (tall - 1) + d * (rows - 1) + 1 - a.shape[2]  # only where the last rows are fewer
    if beyond > 0:
        a = F.pad(a, [*[0, 0] * len(kernel), 0, beyond])
    # With the channels last, what is copied lies in long runs of memory: several times faster.
    a = a.movedim(1, -1).contiguous()
    n, groups, ins, (row, *steps) = len(a), layer.groups, a.shape[-1] // layer.groups, a.stride()[1:-1]
    shape = (n, groups, tall, *places[1:], *kernel, ins)
    strides = (
        a.stride(0),
        ins,
        row * s,
        *(step * each for step, each in zip(steps, stride, strict=True)),
        *(step * gap for step, gap in zip(steps, dilation, strict=True)),
        1,
    )
    laid = a.new_empty((*shape[: 3 + len(kernel)], rows, *kernel, ins))
    for r in range(rows):  # one copy for all would go over memory in shorter runs
        laid.select(3 + len(kernel), r).copy_(a.as_strided(shape, strides, a.storage_offset() + r * d * row))
    return laid


def _by_patches(layer: Convolution, a: Tensor, delta: Tensor) -> Outer:
    """The kernel's gradients by whole patches."""
    n, groups = len(a), layer.groups
    sent = delta.reshape(n, groups, delta.shape[1] // groups, -1).mT
    seen = strips(layer, a, layer.kernel_size[0]).view(n, groups, sent.shape[2], -1)
    return outer(sent, seen, layer.weight.shape, _order(layer))


def _order(layer: Convolution) -> tuple[int, ...]:
    """Which axes of the weight those of a formed gradient are: (out, *sides of the kernel, in / groups)."""
    return (0, *range(2, layer.weight.dim()), 1)


def padded(layer: Convolution, a: Tensor) -> Tensor:
    """The layer's inputs (n, in, *sides) with what it pads them by."""
    margins = _margins(layer)
    if not any(margins):
        return a  # which F.pad would copy
    return F.pad(a, margins, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def _margins(layer: Convolution) -> list[int]:
    """What is padded before and after each side, from the last side to the first."""
    if layer.padding == "valid":
        return [0, 0] * len(layer.kernel_size)
    if layer.padding == "same":
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        pairs = [(span // 2, span - span // 2) for span in spans]
    else:
        pairs = [(int(side), int(side)) for side in layer.padding]
    return list(itertools.chain.from_iterable(reversed(pairs)))


RULES: dict[type[nn.Module], LayerRule] = {
    kind: LayerRule(measure_convolution) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
}
