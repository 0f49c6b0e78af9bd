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
        total: factors (n,), of the inputs' dtype -> the sums over examples of factor times gradient,
            by the parameter's own name.
    """

    squares: Tensor
    total: Callable[[Tensor], dict[str, Tensor]]


def squares_of(vectors: Tensor) -> Tensor:
    """Squared norms (n,) of the rows of (n, ...), in float64: no overflow, no underflow in float32."""
    norms: Tensor = torch.linalg.vector_norm(vectors.flatten(1), dim=1, dtype=torch.float64)
    return norms.square()


def measure_linear(layer: nn.Linear, a: Tensor, delta: Tensor) -> Measured:
    """A linear layer on inputs a (n, ..., in) with output gradients delta (n, ..., out)."""
    biased = layer.bias is not None
    if a.dim() != 2:
        return _measure_places(a.flatten(1, -2), delta.flatten(1, -2), 1, tuple(layer.weight.shape), biased)

    def total(factors: Tensor) -> dict[str, Tensor]:
        sums = {"weight": (delta * factors[:, None]).T @ a}
        return {**sums, "bias": factors @ delta} if biased else sums

    return Measured(squares_of(delta) * (squares_of(a) + biased), total)


def measure_convolution(layer: nn.Conv2d, a: Tensor, delta: Tensor) -> Measured:
    """A convolution of inputs a (n, in, h, w) with output gradients delta (n, out, h', w')."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str) or a.dim() != 4:
        raise UnsuitedError
    return _measure_places(
        patches(layer, a),
        delta.flatten(2).transpose(1, 2),
        layer.groups,
        tuple(layer.weight.shape),
        layer.bias is not None,
    )


def patches(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """What the kernel sees at each place: (n, places, in * kernel height * kernel width)."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    height, width = (int(side) for side in layer.padding)
    padded = F.pad(a, (width, width, height, height)).contiguous()
    places = [(padded.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    n, channels, down, right = padded.stride()
    view = padded.as_strided(
        (a.shape[0], *places, a.shape[1], *kernel),
        (n, down * stride[0], right * stride[1], channels, down * dilation[0], right * dilation[1]),
    )
    return view.reshape(a.shape[0], places[0] * places[1], -1)


def _measure_places(a: Tensor, delta: Tensor, groups: int, shape: tuple[int, ...], biased: bool) -> Measured:
    """A layer applied at L places: a (n, L, groups * inner), delta (n, L, groups * outer).

    The gradient of each group's weight (outer, inner) is delta^T a, summed over places.
    """
    n, places = a.shape[:2]
    a = a.reshape(n, places, groups, -1).transpose(1, 2)
    delta = delta.reshape(n, places, groups, -1).transpose(1, 2)
    inner, outer = a.shape[3], delta.shape[3]
    bias = delta.sum(2).flatten(1)  # (n, out)
    # Gram matrices are taken in float64, since their product cancels: hence twice the price.
    ghost = 2 * places * (inner + outer) < inner * outer
    if ghost:
        squares = _ghost_squares(a, delta)
    else:
        rows = torch.matmul(delta.transpose(2, 3), a).flatten(1)  # (n, out * inner)
        squares = squares_of(rows)

    def total(factors: Tensor) -> dict[str, Tensor]:
        if ghost:
            weighted = (delta * factors[:, None, None, None]).transpose(0, 1).flatten(1, 2)
            flat = torch.matmul(weighted.transpose(1, 2), a.transpose(0, 1).flatten(1, 2))
        else:
            flat = factors @ rows
        sums = {"weight": flat.reshape(shape)}
        return {**sums, "bias": factors @ bias} if biased else sums

    return Measured(squares + squares_of(bias) if biased else squares, total)


def _ghost_squares(a: Tensor, delta: Tensor) -> Tensor:
    """sum over groups and places l, m of (a_l . a_m)(delta_l . delta_m), float64 (n,)."""
    a, delta = a.double(), delta.double()
    grams = torch.matmul(a, a.transpose(2, 3)) * torch.matmul(delta, delta.transpose(2, 3))
    return grams.flatten(1).sum(1).clamp_(min=0.0)


Measure = Callable[[nn.Module, Tensor, Tensor], Measured]

KINDS: dict[type[nn.Module], Measure] = {
    nn.Linear: measure_linear,  # type: ignore[dict-item]
    nn.Conv2d: measure_convolution,  # type: ignore[dict-item]
}
