"""Convolutions: a linear map of the input patch at each place.

A kernel's gradient is the output gradients times the patches: one matrix product per example. Copying the
patches is the costly part, because each pixel is in many of them. So only the first few rows of each patch
are copied, in a layout where the patch's next rows are the same memory at an offset (:func:`strips`).
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

from fedpriv.clipping.ghost.factored import Factored, Rows, Split
from fedpriv.clipping.ghost.layers.base import LayerRule, UnsupportedLayerError
from fedpriv.clipping.ghost.outer_product import Outer, Pairs, added_pairs, outer, scaled_pairs, worth_forming

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_WIDE = 16  # smallest number of entries of a patch's rows for which a separate matrix product pays


def measure_convolution(layer: Convolution, a: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """The gradients of a convolution with inputs a (n, in, *sides) and output gradients (n, out, *places)."""
    (delta,) = deltas
    if a.dim() != len(layer.kernel_size) + 2:
        raise UnsupportedLayerError
    a = a.to(delta.dtype)  # passes may have reduced precision
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
    """The gradients of a kernel. They are formed once all of its calls at a point are known.

    Attributes:
        pairs: for each convolution that uses the kernel, the pairs of output gradients (n, out, *places) and
            inputs (n, in, *sides) whose gradients are added.
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

    def grouped(self, size: int) -> Split:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().grouped(size)

    def simplified(self) -> Split:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        uses = [_formed(layer, *pair) for layer, pairs in self.pairs.items() for pair in pairs]
        return functools.reduce(Split.plus, uses)

    def rows(self) -> Tensor:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().rows()

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`fedpriv.clipping.ghost.factored.Factored`."""
        return self.simplified().tensors()


def _formed(layer: Convolution, delta: Tensor, a: Tensor) -> Split:
    """The kernel's gradients of one call: one matrix product for every ``rows`` rows of the patches."""
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
    return Split(tuple(parts), axis=2)


def _rows_at_once(layer: Convolution, a: Tensor) -> int:
    """The number of rows of each patch that are copied: the fewest for which a matrix product pays.

    The offset between a patch's successive rows must be a whole number of strips.
    """
    side, *rest = layer.kernel_size
    if a.device.type != "cpu":
        return side  # on a GPU, copying whole patches costs less than products of narrow matrices
    least = layer.stride[0] // math.gcd(layer.stride[0], layer.dilation[0])
    width = least * math.prod(rest) * layer.weight.shape[1]
    return min(side, least * math.ceil(_WIDE / width))


def strips(layer: Convolution, a: Tensor, rows: int) -> Tensor:
    """The first ``rows`` rows of the patches at each place, and at further places beyond the last ones.

    A patch's q-th block of rows is the first block of the patch q * rows * dilation / stride places further
    along the first side. That offset must be a whole number, or ``rows`` the kernel's height.

    Returns:
        (n, groups, strips, *places along the other sides, rows, *the kernel's other sides, in / groups),
        contiguous. There is one strip per place along the first side, plus the offset for each further q.
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
    # With the channels last, the copies are long runs of memory: several times faster.
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
    for r in range(rows):  # one copy of all rows would read shorter runs of memory
        laid.select(3 + len(kernel), r).copy_(a.as_strided(shape, strides, a.storage_offset() + r * d * row))
    return laid


def _by_patches(layer: Convolution, a: Tensor, delta: Tensor) -> Outer:
    """The kernel's gradients as outer products with whole patches."""
    n, groups = len(a), layer.groups
    sent = delta.reshape(n, groups, delta.shape[1] // groups, -1).mT
    seen = strips(layer, a, layer.kernel_size[0]).view(n, groups, sent.shape[2], -1)
    return outer(sent, seen, layer.weight.shape, _order(layer))


def _order(layer: Convolution) -> tuple[int, ...]:
    """The weight's axes in the order of a formed gradient: (out, *sides of the kernel, in / groups)."""
    return (0, *range(2, layer.weight.dim()), 1)


def padded(layer: Convolution, a: Tensor) -> Tensor:
    """The layer's padded inputs (n, in, *sides)."""
    margins = _margins(layer)
    if not any(margins):
        return a  # F.pad would copy it
    return F.pad(a, margins, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def _margins(layer: Convolution) -> list[int]:
    """The padding before and after each side, from the last side to the first, as F.pad expects."""
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
