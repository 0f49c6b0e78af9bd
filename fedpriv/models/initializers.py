"""Initialisation of parameters from a given generator.

A layer's parameters follow torch's default distribution for its type. A module can override this with an
attribute ``initializers``: {name of the parameter within the module: initializer}.

>>> import numpy as np
>>> round(float(uniform(0.5)(np.random.default_rng(0), (1000,)).max()), 1)
0.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from fedpriv._internal.lazy import nn, scipy, torch
from fedpriv._internal.lazy import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from fedpriv.parameters import Layout

Shape = tuple[int, ...]
Initializer: TypeAlias = "Callable[[np.random.Generator, Shape], npt.NDArray[np.float64]]"


def uniform(bound: float) -> Initializer:
    """Uniform on [-bound, bound]."""
    return lambda generator, shape: generator.uniform(-bound, bound, shape)


def normal(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """Standard normal."""
    return generator.standard_normal(shape)


def truncated_normal(scale: float) -> Initializer:
    """``scale`` times a standard normal truncated to [-2, 2]."""

    def draw(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
        low, high = scipy.special.ndtr(-2), scipy.special.ndtr(2)
        drawn: npt.NDArray[np.float64] = scale * scipy.special.ndtri(generator.uniform(low, high, shape))
        return drawn

    return draw


def zeros(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """All zeros; nothing is drawn from the generator."""
    return np.zeros(shape)


def ones(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """All ones; nothing is drawn from the generator."""
    return np.ones(shape)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's CPU generator is seeded while the context is open, so that all nodes build equal parameters.

    Its state is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        yield


def keep(module: nn.Module) -> nn.Module:
    """The same module, with initializers that reproduce its present parameters."""
    for layer in module.modules():
        layer.initializers = {}  # type: ignore[assignment]
    named = {name: _constant(parameter.detach().clone()) for name, parameter in module.named_parameters()}
    module.initializers = named  # type: ignore[assignment]
    return module


def _constant(values: Tensor) -> Initializer:
    return lambda generator, shape: values.double().numpy()


def initial(module: nn.Module, generator: np.random.Generator, layout: Layout | None = None) -> Tensor:
    """An initial parameter vector (d,), float32, drawn from ``generator`` in the layout's order.

    Linear and convolution layers are uniform on +-1/sqrt(fan-in) (He et al. 2015 with torch's scale),
    recurrent layers uniform on +-1/sqrt(hidden size), and embeddings standard normal with a zero padding row.
    A module's ``initializers`` take precedence. Trained parameters of other layers keep their values in
    ``module``.
    """
    from fedpriv.parameters import layout_of

    layout = layout or layout_of(module)
    initializers = dict(_initializers(module))
    values = dict(module.named_parameters())
    vector = np.empty(layout.dimension, dtype=np.float32)
    for slot in layout.slots:
        part = slice(slot.offset, slot.offset + slot.size)
        if slot.name in initializers:
            vector[part] = initializers[slot.name](generator, slot.shape).reshape(-1)
        else:
            vector[part] = values[slot.name].detach().float().cpu().numpy().reshape(-1)
    return torch.from_numpy(vector)


def _initializers(module: nn.Module) -> Iterator[tuple[str, Initializer]]:
    """(full name, initializer) of each parameter that has one. A module's own initializers come last."""
    overrides = []
    for name, layer in module.named_modules():
        prefix = f"{name}." if name else ""
        for own, _ in layer.named_parameters(recurse=False):
            default = _default_initializer(layer)
            if default is not None:
                yield prefix + own, default
        overrides += [(prefix + own, draw) for own, draw in getattr(layer, "initializers", {}).items()]
    yield from overrides


def _default_initializer(layer: nn.Module) -> Initializer | None:
    """Torch's default initializer of a layer's own parameters, or None for other types of layers."""
    if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return uniform(1 / math.sqrt(layer.weight[0].numel()))
    if isinstance(layer, nn.RNNBase):
        return uniform(1 / math.sqrt(layer.hidden_size))
    if isinstance(layer, nn.Embedding):
        return _embedding(layer.padding_idx)
    return None


def _embedding(padding: int | None) -> Initializer:
    def draw(generator: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
        rows = normal(generator, shape)
        if padding is not None:
            rows[padding] = 0
        return rows

    return draw
