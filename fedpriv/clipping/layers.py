"""What book-keeping knows of each kind of layer: per-example norms and weighted sums of its gradient.

Both follow from the layer's input a and the gradient delta of the loss at its output. For a linear layer
on vectors, example i's gradient is the outer product delta_i a_i^T, so its squared norm is
norm(delta_i)^2 (norm(a_i)^2 + 1) with a bias, and a weighted sum over examples is one matrix product: no
(n, d) tensor is formed. Where a layer is applied at L places of each example (a convolution, a linear
layer on sequences) the gradient is the product of (L, out) and (L, in) matrices: it is formed for each
example where that is the cheaper, else its norm comes from the two L x L Gram matrices (the ghost norm,
Bu et al. 2022, "Scalable and efficient training of large convolutional neural networks with DP").

A new kind is one function ``measure(layer, a, delta) -> Measured`` in :data:`KINDS`.

>>> layer = nn.Linear(2, 1)
>>> a, delta = torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0]])
>>> measured = KINDS[nn.Linear](layer, a, delta)
>>> measured.squares  # 2^2 (3^2 + 4^2 + 1)
tensor([104.], dtype=torch.float64)
>>> measured.total(torch.tensor([0.5]))["weight"]
tensor([[3., 4.]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UnsuitedError(Exception):
    """Book-keeping does not apply to this layer or model; rows do."""


@dataclass(frozen=True)
class Measured:
    """A layer's part in the per-example gradients of a batch of n.

    Attributes:
        squares: the squared norm of each example's gradient of the layer, float64 (n,).
        reach: the largest factor that ``squares`` multiplied another by, float64 (n,): what the squares
            of entries too small for the inputs' dtype may have been worth.
        total: factors (n,), of the inputs' dtype -> the sums over examples of factor times gradient,
            by the parameter's own name.
    """

    squares: Tensor
    reach: Tensor
    total: Callable[[Tensor], dict[str, Tensor]]


def squares_of(vectors: Tensor) -> Tensor:
    """Squared norms of the rows of (n, k), float64 (n,), from squares in the rows' own dtype."""
    return vectors.square().sum(1).double()


def measure_linear(layer: nn.Linear, a: Tensor, delta: Tensor) -> Measured:
    """A linear layer on inputs a (n, ..., in) with output gradients delta (n, ..., out)."""
    biased = layer.bias is not None
    if a.dim() != 2:
        return _measure_places(
            a.flatten(1, -2)[:, None],
            delta.flatten(1, -2)[:, None],
            biased,
            lambda flat: flat.view(layer.weight.shape),
        )

    def total(factors: Tensor) -> dict[str, Tensor]:
        sums = {"weight": (delta * factors[:, None]).T @ a}
        return {**sums, "bias": factors @ delta} if biased else sums

    ins, outs = squares_of(a) + biased, squares_of(delta)
    return Measured(outs * ins, torch.maximum(outs, ins), total)


def measure_convolution(layer: nn.Conv2d, a: Tensor, delta: Tensor) -> Measured:
    """A convolution of inputs a (n, in, h, w) with output gradients delta (n, out, h', w')."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str) or a.dim() != 4:
        raise UnsuitedError
    n, groups = a.shape[0], layer.groups
    seen = patches(layer, a)  # (n, places, height, width, in)
    seen = seen.reshape(*seen.shape[:-1], groups, -1).movedim(-2, 1)
    seen = seen.reshape(n, groups, seen.shape[2], -1)

    def shaped(flat: Tensor) -> Tensor:
        out, inner, *kernel = layer.weight.shape
        return flat.view(out, *kernel, inner).movedim(-1, 1)

    sent = delta.reshape(n, groups, delta.shape[1] // groups, -1).transpose(2, 3)
    return _measure_places(seen, sent, layer.bias is not None, shaped)


def patches(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """What the kernel sees at each place: (n, places, kernel height, kernel width, in)."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    height, width = (int(side) for side in layer.padding)
    # With the channels last, what a patch copies lies in long runs of memory: several times faster.
    a = F.pad(a, (width, width, height, height)).contiguous(memory_format=torch.channels_last)
    down, right = ((a.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1))
    n, channel, row, column = a.stride()
    view = a.as_strided(
        (a.shape[0], down, right, *kernel, a.shape[1]),
        (n, row * stride[0], column * stride[1], row * dilation[0], column * dilation[1], channel),
    )
    return view.flatten(1, 2)


def _measure_places(a: Tensor, delta: Tensor, biased: bool, shaped: Callable[[Tensor], Tensor]) -> Measured:
    """A layer applied at L places: a (n, groups, L, inner), delta (n, groups, L, outer).

    The gradient of each group's weight (outer, inner) is delta^T a, summed over places; ``shaped`` brings
    the flat weights (groups * outer * inner) to the parameter's shape.
    """
    places, inner, outer = a.shape[2], a.shape[3], delta.shape[3]
    # Gram matrices are taken in float64, since their product cancels: hence twice the price.
    if 2 * places * (inner + outer) < inner * outer:
        return _measure_by_grams(a, delta, biased, shaped)
    rows = torch.matmul(delta.transpose(2, 3), a).flatten(1)
    bias = delta.sum(2).flatten(1)

    def total(factors: Tensor) -> dict[str, Tensor]:
        sums = {"weight": shaped(factors @ rows)}
        return {**sums, "bias": factors @ bias} if biased else sums

    squares = squares_of(rows) + squares_of(bias) if biased else squares_of(rows)
    return Measured(squares, torch.ones_like(squares), total)


def _measure_by_grams(a: Tensor, delta: Tensor, biased: bool, shaped: Callable[[Tensor], Tensor]) -> Measured:
    """As :func:`_measure_places`, by the sum over places l, m of (a_l . a_m)(delta_l . delta_m)."""
    bias = delta.sum(2).flatten(1)
    ins, outs = a.double(), delta.double()
    grams = torch.matmul(ins, ins.mT) * torch.matmul(outs, outs.mT)
    squares = grams.flatten(1).sum(1).clamp_(min=0.0)

    def total(factors: Tensor) -> dict[str, Tensor]:
        weighted = (delta * factors[:, None, None, None]).transpose(0, 1).flatten(1, 2)
        sums = {"weight": shaped(weighted.mT.matmul(a.transpose(0, 1).flatten(1, 2)).flatten())}
        return {**sums, "bias": factors @ bias} if biased else sums

    return Measured(squares + squares_of(bias) if biased else squares, torch.ones_like(squares), total)


Measure = Callable[[nn.Module, Tensor, Tensor], Measured]

KINDS: dict[type[nn.Module], Measure] = {
    nn.Linear: measure_linear,  # type: ignore[dict-item]
    nn.Conv2d: measure_convolution,  # type: ignore[dict-item]
}
