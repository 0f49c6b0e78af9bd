"""Layer rules: how a layer's call is recorded, and how gradients are computed from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpriv.clipping.ghost.factored import Factored


class UnsupportedLayerError(Exception):
    """Book-keeping does not support this layer or model; its gradients are formed as rows.

    Attributes:
        layer: the layer's name, where a single layer is the cause; else None.
        called: False if the cause is that the layer was not called.
    """

    layer: str | None = None
    called: bool = True

    @classmethod
    def of(cls, layer: str, called: bool = True) -> UnsupportedLayerError:
        """The error for the layer of this name."""
        error = cls(layer)
        error.layer, error.called = layer, called
        return error


@dataclass(frozen=True)
class Call:
    """One recorded call of a layer on a batch.

    Attributes:
        output: the return value of the layer's forward.
        hook_points: tensors of the graph, with examples along the first axis, at which the gradient of the
            loss is computed. :func:`hook_point` makes them, so that they require a gradient even where no
            parameter or input does.
        seen: what else ``measure`` needs, detached (usually the layer's input).
    """

    output: Any
    hook_points: tuple[Tensor, ...]
    seen: Any


_replaced: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("hook points", default=None)


def hook_point(tensor: Tensor) -> Tensor:
    """``tensor``, which now requires a gradient; or what :func:`replacing_hook_points` makes of it."""
    replace = _replaced.get()
    if replace is not None:
        return replace(tensor)
    return tensor if tensor.requires_grad else tensor.requires_grad_()


def in_vmap() -> bool:
    """Whether the present pass runs each example alone, under ``torch.func.vmap``; some fused kernels have no
    rule for it."""
    return _replaced.get() is not None


def by_matrix_products() -> AbstractContextManager[None]:
    """Within this block ``F.scaled_dot_product_attention`` is computed by matrix products: its fused kernels
    have no rule for ``torch.func.vmap``, which then calls them once for each example."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


@contextmanager
def replacing_hook_points(replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While the context is open, each hook point is ``replace(tensor)``."""
    token = _replaced.set(replace)
    try:
        yield
    finally:
        _replaced.reset(token)


def record_output(layer: nn.Module, *inputs: Any, **named: Any) -> Call:
    """Record a call on one tensor, with a hook point at its output. This suits most layers."""
    output = type(layer).forward(layer, *inputs, **named)
    if named or len(inputs) != 1 or not isinstance(output, Tensor):
        raise UnsupportedLayerError
    output = hook_point(output)
    return Call(output, (output,), inputs[0].detach())


@dataclass(frozen=True)
class LayerRule:
    """How book-keeping computes the gradients of a kind of layer.

    Attributes:
        measure: (layer, ``seen`` of one call, gradients at its hook points) -> the per-example gradients of
            that call for all parameters of the layer, by their name in the layer ("weight"). It may read the
            layer's shapes and settings, but not its parameters' values, which are placeholders by then.
            Raises UnsupportedLayerError for a call that it does not support.
        record: (layer, arguments of the call) -> :class:`Call`. It replaces the layer's forward while a
            batch is recorded; the parameters then have the point's values. Raises UnsupportedLayerError
            for a call that it does not support.
        places: whether a call may have several vectors of one example along its first axis, each of which
            adds to the gradient by itself, as rows of a matrix product do. A model that flattens its
            sequences calls its layers so.
    """

    measure: Callable[[Any, Any, tuple[Tensor, ...]], dict[str, Factored]]
    record: Callable[..., Call] = record_output
    places: bool = False
