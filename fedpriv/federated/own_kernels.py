"""Convolutions in which each client has kernels of its own, as local steps need them.

``torch.func.vmap`` makes one convolution of them, with a group for each client. On a CPU the kernels for
groups of few channels use few of its lanes, and the images of all clients do not fit its cache. So where the
work of a client is worth a call, clients are computed one by one here, while all other layers stay in one
batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

Dims = Sequence[int | None]
Wanted = tuple[bool, bool, bool]  # the gradients by the input, the weight and the bias

# Measured with 16 to 24 clients of 1 to 10 images and 1 to 32 channels on one thread of an AMD EPYC: beyond
# these sizes a convolution and its gradients mostly take 0.3 to 0.8 of the time that groups take.
_MULTIPLICATIONS = 1.2e6
_FEW_CHANNELS = 16
_BYTES = 150_000  # of inputs and outputs, where channels are not few

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_DIMS: dict[Any, int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


def own_kernels(module: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """While the context is open, large convolutions under ``vmap`` on a CPU are computed client by client."""
    here = device.type == "cpu" and any(isinstance(part, _LAYERS) for part in module.modules())
    return _OwnKernels() if here else nullcontext()  # the mode costs each call of torch some microseconds


class _OwnKernels(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Call the function, or its counterpart."""
        found = None
        if function in _DIMS:
            found = _Options.of(_DIMS[function], *arguments, **(named or {}))
        if found is None:
            return function(*arguments, **(named or {}))
        return _Convolution.apply(*found)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Options:
    """What a convolution takes besides tensors."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @classmethod
    def of(
        cls,
        dims: int,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor | None, _Options] | None:
        """The tensors and options of one client's convolution; None where it is left to torch."""
        if isinstance(padding, str) or input.dim() != dims + 2:
            return None

        def each(value: Any) -> list[int]:
            several = [value] if isinstance(value, int) else list(value)
            return several * dims if len(several) == 1 else several

        options = cls(each(stride), each(padding), each(dilation), groups)
        sides = zip(input.shape[2:], weight.shape[2:], options.stride, options.padding, strict=True)
        places = len(input) * math.prod(
            (side + 2 * pad - kernel) // step + 1 for side, kernel, step, pad in sides
        )
        numbers = input.numel() + places * len(weight)
        large = weight.shape[1] < _FEW_CHANNELS or input.element_size() * numbers >= _BYTES
        if not large or places * weight.numel() < _MULTIPLICATIONS:
            return None
        return input, weight, bias, options

    @property
    def _rest(self) -> tuple[Any, ...]:
        """As torch's operators take it; they are not transposed."""
        return self.stride, self.padding, self.dilation, False, [0] * len(self.stride), self.groups

    def convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of one client."""
        return torch.convolution(x, weight, bias, *self._rest)

    def gradients(self, slope: Tensor, x: Tensor, weight: Tensor, wanted: Wanted) -> tuple[Tensor, ...]:
        """Its gradients by input, weight and bias; an empty tensor for one that is not wanted."""
        found = torch.ops.aten.convolution_backward(slope, x, weight, [len(weight)], *self._rest, wanted)
        return tuple(each if asked else x.new_empty(0) for each, asked in zip(found, wanted, strict=True))


class _Convolution(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> Tensor:
        """The convolution of one client."""
        return options.convolved(x, weight, bias)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, _Options], output: Tensor
    ) -> None:
        """Keep what the gradients need."""
        x, weight, _, ctx.options = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by the input, the weight and the bias."""
        wanted = ctx.needs_input_grad[:3]
        found = _Gradients.apply(slope, *ctx.saved_tensors, ctx.options, wanted)  # type: ignore[no-untyped-call]
        return (*(each if asked else None for each, asked in zip(found, wanted, strict=True)), None)

    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, options: _Options
    ) -> tuple[Tensor, int]:
        """The convolutions of all clients."""
        clients = _each(info.batch_size, dims, x, weight, bias)
        return torch.stack([options.convolved(*tensors) for tensors in clients]), 0


class _Gradients(Function):
    @staticmethod
    def forward(
        slope: Tensor, x: Tensor, weight: Tensor, options: _Options, wanted: Wanted
    ) -> tuple[Tensor, ...]:
        """The gradients of one client."""
        return options.gradients(slope, x, weight, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: local steps take no second derivative."""

    @staticmethod
    def vmap(
        info: Any, dims: Dims, slope: Tensor, x: Tensor, weight: Tensor, options: _Options, wanted: Wanted
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The gradients of all clients."""
        clients = _each(info.batch_size, dims, slope, x, weight)
        found = [options.gradients(slope, x, weight, wanted) for slope, x, weight in clients]
        return tuple(torch.stack(several) for several in zip(*found, strict=True)), (0, 0, 0)


def _each(clients: int, dims: Dims, *tensors: Tensor | None) -> list[Any]:
    """The tensors of each client."""
    several = (
        [tensor] * clients if tensor is None or dim is None else tensor.unbind(dim)
        for tensor, dim in zip(tensors, dims, strict=False)
    )
    return list(zip(*several, strict=True))
