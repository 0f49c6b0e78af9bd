"""How first parameters are drawn, from a generator that is given.

A layer's parameters follow torch's default law for its kind. A module whose parameters start otherwise says
so in an attribute ``laws``: {name of the parameter within the module: law}.

>>> import numpy as np
>>> round(float(uniform(0.5)(np.random.default_rng(0), (1000,)).max()), 1)
0.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor, nn

from fedpriv.parameters import Layout, layout_of

Shape = tuple[int, ...]
Law = Callable[[np.random.Generator, Shape], npt.NDArray[np.float64]]


def uniform(bound: float) -> Law:
    """Uniform on [-bound, bound]."""
    return lambda generator, shape: generator.uniform(-bound, bound, shape)


def normal(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """Standard normal."""
    return generator.standard_normal(shape)


def truncated_normal(scale: float) -> Law:
    """``scale`` times a standard normal on the condition that it lies in [-2, 2]."""

    def law(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
        drawn: npt.NDArray[np.float64] = scale * ndtri(generator.uniform(ndtr(-2), ndtr(2), shape))
        return drawn

    return law


def zeros(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """0, and nothing is drawn."""
    return np.zeros(shape)


def keep(module: nn.Module) -> nn.Module:
    """The module, whose parameters start from what they are now, whatever its ``laws`` said."""
    for layer in module.modules():
        layer.laws = {}  # type: ignore[assignment]
    named = {name: _kept(parameter.detach().clone()) for name, parameter in module.named_parameters()}
    module.laws = named  # type: ignore[assignment]
    return module


def _kept(values: Tensor) -> Law:
    return lambda generator, shape: values.double().numpy()


def initial(module: nn.Module, generator: np.random.Generator, layout: Layout | None = None) -> Tensor:
    """A first parameter vector (d,), float32, drawn from ``generator`` in the layout's order.

    Linear and convolution layers are uniform on +-1/sqrt(fan-in) (He et al. 2015, as torch scales it),
    recurrent ones on +-1/sqrt(hidden size), embeddings standard normal with padding rows of zeros, and a
    module's ``laws`` go before; trained parameters of other layers keep the values that they have in
    ``module``.
    """
    layout = layout or layout_of(module)
    laws = dict(_laws(module))
    values = dict(module.named_parameters())
    vector = np.empty(layout.dimension, dtype=np.float32)
    for slot in layout.slots:
        part = slice(slot.offset, slot.offset + slot.size)
        if slot.name in laws:
            vector[part] = laws[slot.name](generator, slot.shape).reshape(-1)
        else:
            vector[part] = values[slot.name].detach().float().cpu().numpy().reshape(-1)
    return torch.from_numpy(vector)


def _laws(module: nn.Module) -> Iterator[tuple[str, Law]]:
    """The law of each parameter that has one, by its full name; what a module says itself comes last."""
    said = []
    for name, layer in module.named_modules():
        prefix = f"{name}." if name else ""
        for own, _ in layer.named_parameters(recurse=False):
            law = _law_of(layer)
            if law is not None:
                yield prefix + own, law
        said += [(prefix + own, law) for own, law in getattr(layer, "laws", {}).items()]
    yield from said


def _law_of(layer: nn.Module) -> Law | None:
    """Torch's default law of a layer's own parameters, where it is one of the kinds above."""
    if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return uniform(1 / math.sqrt(layer.weight[0].numel()))
    if isinstance(layer, nn.RNNBase):
        return uniform(1 / math.sqrt(layer.hidden_size))
    if isinstance(layer, nn.Embedding):
        return _embedding(layer.padding_idx)
    return None


def _embedding(padding: int | None) -> Law:
    def law(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
        rows = normal(generator, shape)
        if padding is not None:
            rows[padding] = 0
        return rows

    return law
