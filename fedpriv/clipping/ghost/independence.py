"""Whether examples' losses are what they are alone, where code runs that is neither torch's nor fedpriv's.

A trial on made-up examples (:mod:`fedpriv.clipping.ghost.compatibility`) cannot know what such code does for
a value that stands for "not known", or for a label that is rare: it may fill the one in by a mean over the
batch, and weigh the other by how many there are. So the losses of each chunk are held against those that
vmap computes of each example by itself. Who differs is left to rows, which see one unit at a time.

Losses say nothing of gradients that are not theirs: a hook on a tensor, or an autograd.Function, may clip
what flows back by the norm of a whole batch's. Where a forward has either, its examples are left to rows.
What is not looked for is a gradient that is mixed by ``detach``, where the loss is not.

>>> from torch import nn
>>> runs_own_code(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.nn.functional.cross_entropy)
False
>>> runs_own_code(nn.Linear(2, 2), max)
True
>>> from fedpriv.clipping.ghost.layers import UnsupportedLayerError
>>> with Hookless():
...     try:
...         torch.ones(2, requires_grad=True).exp().register_hook(lambda gradient: gradient / gradient.norm())
...     except UnsupportedLayerError:
...         print("left to rows")
left to rows
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from fedpriv.clipping.dropout import Drawing
from fedpriv.clipping.ghost.layers import UnsupportedLayerError

# Whose layers and losses treat examples apart, or are found by the trial. What torch.jit compiled is not
# torch's.
_KNOWN = ("torch.nn.", "fedpriv.")
_FUNCTIONS = ("torch.", "fedpriv.")  # whose autograd.Functions do
_ROUNDING = 3e-5  # what it may do to a loss, of its own size and of the others'
_COARSE = 1e-2  # where passes are of few digits

Losses = Callable[[Tensor, Tensor, Tensor], Tensor]


def runs_own_code(module: nn.Module, loss: Callable[..., Any]) -> bool:
    """Whether a layer's forward, a hook, or the loss is somebody's own."""

    def own(layer: nn.Module) -> bool:
        hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
        return bool(hooked) or not _known(type(layer).forward)

    return not _known(loss) or any(map(own, module.modules()))


def _known(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).startswith(_KNOWN)


def apart(
    losses: Losses,
    drawing: Drawing,
    params: Tensor,
    x: Tensor,
    y: Tensor,
    together: Tensor,
    coarse: bool,
) -> Tensor:
    """Which examples' losses ``together`` are what they are alone, bool (n,).

    Args:
        losses: parameters (d,), x (n, ...), y (n, ...) -> losses (n,).
        drawing: what the model's dropout draws by; its seeds are those of the examples.
        params, x, y: the point and the examples.
        together: the losses (n,) of all of them in one batch.
        coarse: whether passes are of few digits.
    """

    def of_one(x: Tensor, y: Tensor, seed: Tensor | None = None) -> Tensor:
        with drawing.by(None if seed is None else seed[None]):
            return losses(params, x[None], y[None])[0]

    each = (x, y) if drawing.seeds is None else (x, y, drawing.seeds)
    with torch.enable_grad():  # as passes are, for which attention takes kernels that vmap knows
        alone: Tensor = torch.func.vmap(of_one)(*each).detach()
    error = _COARSE if coarse else _ROUNDING
    # The median: losses may be of any unit, and one that is far off must not hide what it does to others.
    size = alone.abs() + alone.abs().nanmedian()
    same = (alone == together) | (alone.isnan() & together.isnan())
    return same | ((alone - together).abs() <= error * size)


class Hookless(TorchFunctionMode):
    """In its context, registering a hook on a tensor raises UnsupportedLayerError."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Run the function, unless it is that one."""
        if function is Tensor.register_hook:
            raise UnsupportedLayerError
        return function(*arguments, **(named or {}))


def check_functions(losses: Tensor) -> None:
    """Raises UnsupportedLayerError where an autograd.Function, other than torch's and ours, made the
    losses."""
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
