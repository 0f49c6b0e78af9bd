"""A rule for a kind of layer: how a call of it is recorded, and what the record says of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedpriv.clipping.ghost.factored import Factored


class UnsupportedLayerError(Exception):
    """Book-keeping does not apply to this layer or model; rows do.

    Attributes:
        layer: the layer's name, where it is known to be one alone.
    """

    layer: str | None = None

    @classmethod
    def of(cls, layer: str) -> UnsupportedLayerError:
        """That it does not apply to the layer of this name."""
        error = cls(layer)
        error.layer = layer
        return error


@dataclass(frozen=True)
class Call:
    """One recorded call of a layer on a batch.

    Attributes:
        output: what the layer's forward returns.
        hook_points: tensors of the graph, the examples along their first axis, at which the gradient of the
            loss is wanted; made by :func:`hook_point`, so that they are differentiated even where no
            parameter or input is.
        seen: whatever ``measure`` needs beside, detached (usually the layer's input).
    """

    output: Any
    hook_points: tuple[Tensor, ...]
    seen: Any


def hook_point(tensor: Tensor) -> Tensor:
    """``tensor``, with a gradient of its own where nothing before it has one."""
    return tensor if tensor.requires_grad else tensor.requires_grad_()


def record_output(layer: nn.Module, *inputs: Any, **named: Any) -> Call:
    """The layer's own forward, on one tensor, with hook points at its output: what suits most kinds."""
    output = type(layer).forward(layer, *inputs, **named)
    if named or len(inputs) != 1 or not isinstance(output, Tensor):
        raise UnsupportedLayerError
    return Call(output, (hook_point(output),), inputs[0].detach())


@dataclass(frozen=True)
class LayerRule:
    """How book-keeping treats a kind of layer.

    Attributes:
        measure: (layer, seen of one call, gradients at its hook points) -> the per-example gradients of that
            call, by the parameter's own name ("weight"), for all parameters that the layer has. It may
            read the layer's shapes and settings but not its parameters' values, which by then are
            placeholders. Raises UnsupportedLayerError where rows must do it.
        record: (layer, the arguments of the call) -> :class:`Call`; stands in for the layer's forward
            while a batch is recorded, when its parameters hold the point's values. Raises
            UnsupportedLayerError likewise.
    """

    measure: Callable[[Any, Any, tuple[Tensor, ...]], dict[str, Factored]]
    record: Callable[..., Call] = record_output
