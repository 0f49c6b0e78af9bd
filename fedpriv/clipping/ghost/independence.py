"""Whether each example's loss is independent of its batch, for models or losses with user code.

A trial on synthetic examples (:mod:`fedpriv.clipping.ghost.compatibility`) cannot predict what user code does
with special values: it may replace a missing value by the mean over the batch, or weight a rare label by its
number in the batch. The losses of each chunk are therefore compared with those that vmap computes for each
example alone. The gradients of units with a difference are formed by vmap, one unit at a time.

Equal losses do not prove independent gradients: a hook on a tensor, or an autograd.Function, may clip
gradients by the norm of the whole batch. Where a forward pass has either, gradients are formed, too. One case
is not detected: code that mixes gradients by ``detach`` but leaves the losses unchanged.

>>> from torch import nn
>>> runs_user_code(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.nn.functional.cross_entropy)
False
>>> runs_user_code(nn.Linear(2, 2), max)
True
>>> from fedpriv.clipping.ghost.layers import UnsupportedLayerError
>>> with RefuseHooks():
...     try:
...         torch.ones(2, requires_grad=True).exp().register_hook(lambda gradient: gradient / gradient.norm())
...     except UnsupportedLayerError:
...         print("no hooks")
no hooks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from fedpriv.clipping.dropout import SeededDropout
from fedpriv.clipping.ghost.layers import UnsupportedLayerError

# Layers and losses of these modules do not mix examples, or the trial finds those that do. Code that
# torch.jit compiled does not count as torch's.
_KNOWN = ("torch.nn.", "fedpriv.")
_FUNCTIONS = ("torch.", "fedpriv.")  # modules whose autograd.Functions do not mix examples
_ROUNDING = 3e-5  # tolerance of a loss, relative to its size and to the median loss
_COARSE = 1e-2  # the same for passes of reduced precision

Losses = Callable[[Tensor, Tensor, Tensor], Tensor]


def runs_user_code(module: nn.Module, loss: Callable[..., Any]) -> bool:
    """Whether a layer's forward, a hook, or the loss is neither torch's nor fedpriv's."""

    def own(layer: nn.Module) -> bool:
        hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
        return bool(hooked) or not _known(type(layer).forward)

    return not _known(loss) or any(map(own, module.modules()))


def _known(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).startswith(_KNOWN)


def equal_alone(
    losses: Losses,
    dropout: SeededDropout,
    params: Tensor,
    x: Tensor,
    y: Tensor,
    together: Tensor,
    coarse: bool,
) -> Tensor:
    """Whether each example's loss in ``together`` equals its loss alone, bool (n,).

    Args:
        losses: parameters (d,), x (n, ...), y (n, ...) -> losses (n,).
        dropout: the model's dropout, with the seeds of the examples.
        params, x, y: the point and the examples.
        together: the losses (n,) of the examples in one batch.
        coarse: whether the passes have reduced precision.
    """

    def of_one(x: Tensor, y: Tensor, seed: Tensor | None = None) -> Tensor:
        with dropout.seeded(None if seed is None else seed[None]):
            return losses(params, x[None], y[None])[0]

    each = (x, y) if dropout.seeds is None else (x, y, dropout.seeds)
    with torch.enable_grad():  # attention then uses kernels that vmap supports
        alone: Tensor = torch.func.vmap(of_one)(*each).detach()
    error = _COARSE if coarse else _ROUNDING
    # The median gives the scale of the losses; unlike the mean, one huge loss does not raise it.
    size = alone.abs() + alone.abs().nanmedian()
    same = (alone == together) | (alone.isnan() & together.isnan())
    return same | ((alone - together).abs() <= error * size)


class RefuseHooks(TorchFunctionMode):
    """In its context, registering a hook on a tensor raises UnsupportedLayerError."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Call the function, unless it registers a hook."""
        if function is Tensor.register_hook:
            raise UnsupportedLayerError
        return function(*arguments, **(named or {}))


def check_functions(losses: Tensor) -> None:
    """Raises UnsupportedLayerError where the losses' graph has an autograd.Function of user code."""
    left, seen = [losses.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        made_by = getattr(node, "_forward_cls", None)
        if isinstance(node, BackwardCFunction) and not str(made_by.__module__).startswith(_FUNCTIONS):
            raise UnsupportedLayerError
        left.extend(before for before, _ in node.next_functions)
