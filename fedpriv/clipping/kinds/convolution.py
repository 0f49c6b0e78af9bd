"""Convolutions: a linear map of the patch that the kernel sees at each place."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.clipping.factored import Factored, Rows, outer
from fedpriv.clipping.kinds.base import Kind, UnsuitedError

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def measure_convolution(layer: Convolution, a: Tensor, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """A convolution of inputs a (n, in, *sides) with output gradients (n, out, *places)."""
    (delta,) = deltas
    sides = len(layer.kernel_size)
    if a.dim() != sides + 2:
        raise UnsuitedError
    n, groups, places = len(a), layer.groups, delta[0, 0].numel()
    seen = patches(layer, a)
    seen = seen.view(*seen.shape[:-1], groups, -1).movedim(-2, 1).reshape(n, groups, places, -1)
    sent = delta.reshape(n, groups, -1, places).mT
    order = (0, *range(2, sides + 2), 1)
    forms: dict[str, Factored] = {"weight": outer(sent, seen, layer.weight.shape, order)}
    if layer.bias is not None:
        forms["bias"] = Rows(delta.flatten(2).sum(2))
    return forms


def patches(layer: Convolution, a: Tensor) -> Tensor:
    """What the kernel sees at each place: a view (n, *places, *kernel, in) of the padded input."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    # With the channels last, what a patch copies lies in long runs of memory: several times faster.
    a = F.pad(a, _margins(layer), mode).movedim(1, -1).contiguous()
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
