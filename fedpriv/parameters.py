"""A model's trainable parameters as one flat vector of floats, and the inverse.

Every private contribution in fedpriv is a bounded vector in R^d. A :class:`Layout` lists the tensors of a
module that make up that vector, with their positions: the parameters with ``requires_grad``, in the order of
``module.named_parameters()``, each flattened in row-major order. All other parameters are frozen: they belong
to the model but not to the vector. A layout can be written as JSON.

>>> import torch
>>> layout = layout_of(torch.nn.Linear(3, 2))
>>> layout.dimension, layout.names
(8, ('weight', 'bias'))
>>> {name: tuple(t.shape) for name, t in layout.split(torch.zeros(8)).items()}
{'weight': (2, 3), 'bias': (2,)}
>>> Layout.from_json(layout.to_json()) == layout
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from fedpriv._internal import validation

_DROPOUTS = {kind.forward for kind in _DropoutNd.__subclasses__() if kind.__module__.startswith("torch.")}


@dataclass(frozen=True)
class Slot:
    """One tensor of the vector: its name in the module, its shape, and its first index in the vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The tensors that make up the parameter vector (d,), and their positions.

    Attributes:
        slots: the trained tensors, in order and without gaps.
        frozen: the names of the parameters that are not trained (``requires_grad`` is false).
    """

    slots: tuple[Slot, ...]
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        offset = 0
        for slot in self.slots:
            if slot.offset != offset or any(side < 0 for side in slot.shape):
                raise validation.fail("layout slot", slot, f"start at offset {offset}")
            offset += slot.size
        if len(set(self.names)) != len(self.slots):
            raise validation.fail("layout names", self.names, "be distinct")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the trained tensors, in order."""
        return tuple(slot.name for slot in self.slots)

    @cached_property
    def dimension(self) -> int:
        """d, the number of trained parameters."""
        return sum(slot.size for slot in self.slots)

    @cached_property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """The names of the tensors of each layer. A layer's tensors are consecutive and in one module."""
        groups = itertools.groupby(self.names, lambda name: name.rpartition(".")[0])
        return tuple(tuple(own) for _, own in groups)

    @cached_property
    def layer_sizes(self) -> tuple[int, ...]:
        """The number of entries of each layer, in order; their sum is d."""
        sizes = {slot.name: slot.size for slot in self.slots}
        return tuple(sum(sizes[name] for name in layer) for layer in self.layers)

    @cached_property
    def _sizes(self) -> list[int]:
        return [slot.size for slot in self.slots]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors, as views, of a vector (..., d). Leading axes are preserved.

        Raises ArgumentError if the last axis does not have length d.
        """
        if vector.shape[-1:] != (self.dimension,):
            raise validation.fail(
                "vector shape", tuple(vector.shape), f"end in {self.dimension}, the model's dimension"
            )
        pieces: tuple[Tensor, ...] = torch.split(vector, self._sizes, dim=-1)
        return {
            slot.name: piece.view((*vector.shape[:-1], *slot.shape))
            for slot, piece in zip(self.slots, pieces, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector (d,) of the named tensors. Other names in ``tensors`` are ignored.

        Raises ArgumentError if a tensor is missing or has a different shape.
        """
        for slot in self.slots:
            shape = tuple(tensors[slot.name].shape) if slot.name in tensors else None
            if shape != slot.shape:
                hint = "the tensor is missing" if shape is None else ""
                raise validation.fail(f"shape of {slot.name}", shape, f"be {slot.shape}", hint)
        return torch.cat([tensors[slot.name].reshape(-1) for slot in self.slots])

    def to_json(self) -> dict[str, Any]:
        """The layout as a JSON-serialisable dict."""
        slots = [{"name": s.name, "shape": list(s.shape), "offset": s.offset} for s in self.slots]
        return {"slots": slots, "frozen": list(self.frozen)}

    @classmethod
    def from_json(cls, value: Any) -> Layout:
        """The inverse of ``to_json``. Raises ArgumentError if ``value`` is not a layout."""
        try:
            slots = tuple(
                Slot(
                    str(slot["name"]),
                    tuple(validation.integer("layout shape", side) for side in slot["shape"]),
                    validation.integer("layout offset", slot["offset"]),
                )
                for slot in value["slots"]
            )
            return cls(slots, tuple(str(name) for name in value["frozen"]))
        except (KeyError, TypeError) as error:
            raise validation.fail("layout", value, "have the keys 'slots' and 'frozen'") from error


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module's trainable parameters.

    Raises ArgumentError, with the layer's name, if the module cannot be trained privately: for layers whose
    state or output mixes examples outside the clipped gradient (BatchNorm that is not frozen; InstanceNorm
    with running statistics; embeddings with max_norm or scale_grad_by_freq), for recurrent and attention
    layers whose dropout cannot have a seed per example, for trainable parameters that are complex or not yet
    initialised, and if no parameter is trainable.
    """
    for name, layer in module.named_modules():
        _refuse_layer(name or type(layer).__name__, layer)
    slots, frozen, offset = [], [], 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            frozen.append(name)
            continue
        if is_lazy(parameter) or not parameter.is_floating_point():
            raise validation.ArgumentError(
                f"The trainable parameter {name} has the type {parameter.dtype} and cannot be trained: it "
                "must be a real floating-point tensor whose shape is known. Freeze it "
                "(requires_grad=False), or run a lazy module once before."
            )
        slots.append(Slot(name, tuple(parameter.shape), offset))
        offset += parameter.numel()
    if not offset:
        raise validation.ArgumentError(
            f"The model {type(module).__name__} has no trainable parameters; set requires_grad=True on some."
        )
    return Layout(tuple(slots), tuple(frozen))


def vector_of(module: nn.Module, layout: Layout | None = None) -> Tensor:
    """The module's trainable parameters as a new float32 vector (d,) on the CPU."""
    tensors = {name: p.detach().to("cpu", torch.float32) for name, p in module.named_parameters()}
    return (layout or layout_of(module)).join(tensors)


def _is_frozen(layer: _BatchNorm) -> bool:
    """Whether a BatchNorm uses its running statistics alone: in evaluation mode, with nothing to train.

    The statistics are then constants, as weights that are not trained, and no example reaches another one.
    """
    trained = any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
    return layer.running_mean is not None and not layer.training and not trained


def _draws_its_own(layer: nn.RNNBase | nn.MultiheadAttention) -> bool:
    """Whether the built-in dropout of a layer is not replaced by one with a seed per example."""
    forwards = [kind.forward for kind in (nn.RNN, nn.LSTM, nn.GRU, nn.MultiheadAttention)]
    if type(layer).forward not in forwards or "forward" in vars(layer):
        return True
    return isinstance(layer, nn.MultiheadAttention) and (layer.bias_k is not None or layer.add_zero_attn)


def _refuse_layer(name: str, layer: nn.Module) -> None:
    """Raises ArgumentError for a layer whose influence per-example clipping does not bound."""
    tracks = isinstance(layer, _InstanceNorm) and layer.track_running_stats
    if (isinstance(layer, _BatchNorm) and not _is_frozen(layer)) or tracks:
        raise validation.ArgumentError(
            f"layer {name} is {type(layer).__name__}, whose statistics mix the examples of a batch; clipping "
            "does not bound them. Use GroupNorm or LayerNorm instead, or freeze a pretrained one: "
            "layer.eval().requires_grad_(False)."
        )
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and layer.dropout > 0 and _draws_its_own(layer):
        hint = "only torch's own forward, without bias_k and add_zero_attn, drops by the examples' seeds"
        raise validation.fail(f"dropout of layer {name}", layer.dropout, "be 0", hint)
    if isinstance(layer, _DropoutNd) and type(layer).forward not in _DROPOUTS and layer.p > 0:
        raise validation.fail(f"layer {name}", layer, "be one of torch's dropout layers or have p = 0")
    tables = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    if tables and (layer.max_norm is not None or layer.scale_grad_by_freq):
        raise validation.ArgumentError(
            f"layer {name} is {layer}, but max_norm and scale_grad_by_freq make one example's gradient "
            "depend on other examples, and clipping does not bound this. Leave both unset."
        )
