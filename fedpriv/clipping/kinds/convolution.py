"""Convolutions: a linear map of the patch that the kernel sees at each place."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.clipping.factored import Factored, Pairs, Rows, added_pairs, outer, scaled_pairs
from fedpriv.clipping.kinds.base import Kind, UnsuitedError

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_FEW = 4  # input channels, up to which copying patches is the slower way


def measure_convolution(layer: Convolution, a: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """A convolution of inputs a (n, in, *sides) with output gradients (n, out, *places)."""
    (delta,) = deltas
    sides = len(layer.kernel_size)
    if a.dim() != sides + 2:
        raise UnsuitedError
    if layer.groups == 1 and a.shape[1] <= _FEW and a.device.type == "cpu":
        forms: dict[str, Factored] = {"weight": Kernels(layer, ((delta, a),))}
    else:
        forms = {"weight": _by_patches(layer, a, delta)}
    if layer.bias is not None:
        forms["bias"] = Rows(delta.flatten(2).sum(2))
    return forms


@dataclass(frozen=True)
class Kernels:
    """The gradients of a convolution's kernel by another convolution, in which each example is a group.

    The kernel is what slides there, and delta what it slides over (Rochette et al. 2019, "Efficient
    per-example gradient computations in convolutional neural networks"). With few channels this is several
    times faster than copying patches, whose runs in memory are short then.

    Attributes:
        layer: the convolution; one group.
        pairs: (delta, a) whose gradients add up: (n, out, *places), and inputs (n, in, *sides).
    """

    layer: Convolution
    pairs: Pairs

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return self.settled().squares(divisor)

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return self.settled().total(factors)

    def scaled(self, coefficient: float) -> Kernels:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return replace(self, pairs=scaled_pairs(self.pairs, coefficient))

    def plus(self, other: Kernels) -> Kernels:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return replace(self, pairs=added_pairs(self.pairs, other.pairs))

    def grouped(self, size: int) -> Rows:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return self.settled().grouped(size)

    def settled(self) -> Rows:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return Rows(self.rows())

    def rows(self) -> Tensor:
        """See :class:`fedpriv.clipping.factored.Factored`."""
        return functools.reduce(Tensor.add_, [self._formed(delta, a) for delta, a in self.pairs])

    def _formed(self, delta: Tensor, a: Tensor) -> Tensor:
        layer, n, outs = self.layer, delta.shape[0], delta.shape[1]
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(layer.kernel_size) - 1]
        sliding = delta.reshape(n * outs, 1, *delta.shape[2:])
        a = padded(layer, a.to(delta.dtype)).transpose(0, 1)
        kernel: Tensor = convolve(a, sliding, stride=layer.dilation, dilation=layer.stride, groups=n)
        for axis, side in enumerate(layer.kernel_size, start=2):
            kernel = kernel.narrow(axis, 0, side)  # beyond the last place a stride leaves some of the input
        return kernel.reshape(len(kernel), n, outs, *layer.kernel_size).movedim(0, 2)


def _by_patches(layer: Convolution, a: Tensor, delta: Tensor) -> Factored:
    n, groups, places = len(a), layer.groups, delta[0, 0].numel()
    seen = patches(layer, a)
    seen = seen.view(*seen.shape[:-1], groups, -1).movedim(-2, 1).reshape(n, groups, places, -1)
    sent = delta.reshape(n, groups, -1, places).mT
    order = (0, *range(2, delta.dim()), 1)
    return outer(sent, seen, layer.weight.shape, order)


def padded(layer: Convolution, a: Tensor) -> Tensor:
    """The layer's inputs (n, in, *sides) with what it pads them by."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(a, _margins(layer), mode)


def patches(layer: Convolution, a: Tensor) -> Tensor:
    """What the kernel sees at each place: a view (n, *places, *kernel, in) of the padded input."""
    # With the channels last, what a patch copies lies in long runs of memory: several times faster.
    a = padded(layer, a).movedim(1, -1).contiguous()
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    size, steps, inner = a.shape[1:-1], a.stride()[1:-1], range(len(kernel))
    places = [(size[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in inner]
    shape = (len(a), *places, *kernel, a.shape[-1])
    return a.as_strided(
        shape,
        (
            a.stride(0),
            *(steps[i] * stride[i] for i in inner),
            *(steps[i] * dilation[i] for i in inner),
            a.stride(-1),
        ),
    )


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


KINDS: dict[type[nn.Module], Kind] = {
    kind: Kind(measure_convolution) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
}
