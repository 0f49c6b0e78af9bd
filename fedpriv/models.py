"""The models of the papers, by name, and how any model's first parameters are drawn.

- ``linear``: one linear output, the toy of regression tests;
- ``logistic``: linear to the classes;
- ``mlp``: 256 and 256 hidden units with ReLU, then the classes;
- ``cnn``: the network of Du 2021 (section 6) in the form that DP tutorials share: convolution of 16
  filters 8x8 with stride 2, pool, convolution of 32 filters 4x4 with stride 2, pool, 32 hidden units,
  classes; ReLU throughout, 2x2 max pooling of stride 1; 26,010 parameters on 28x28.

Models are built with zero parameters, without touching torch's global generator; :func:`initial` draws
the first parameter vector from a generator that is given.

>>> import numpy as np
>>> model = build("cnn")
>>> initial(model, np.random.default_rng(0)).shape
torch.Size([26010])
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv import _check
from fedpriv.vectors import Layout, layout_of

Shape = tuple[int, ...]


def build(name: str, shape: Shape = (1, 28, 28), classes: int = 10) -> nn.Module:
    """The model of that name for inputs (n, *shape), with all parameters zero.

    Raises ArgumentError where the name is unknown or the shape does not suit it.
    """
    _check.choice("model", name, MODELS)
    _check.integer("classes", classes, minimum=1)
    for side in shape:
        _check.integer("input shape", side, minimum=1)
    with torch.device("meta"):  # building on a real device would draw from the global generator
        model = MODELS[name](tuple(shape), classes)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


class Standardised(nn.Module):
    """``model`` on inputs (x - mean) / std: public constants, never computed from data of clients."""

    def __init__(self, model: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.model = model
        self.mean = _check.real("input-mean", mean)
        self.std = _check.finite_positive("input-std", std)

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs for raw inputs (n, ...)."""
        outputs: Tensor = self.model((x - self.mean) / self.std)
        return outputs


def initial(module: nn.Module, generator: np.random.Generator, layout: Layout | None = None) -> Tensor:
    """A first parameter vector (d,), float32: torch's default law, drawn from ``generator``.

    Weights and biases of linear and convolution layers are uniform on +-1/sqrt(fan-in) (He et al. 2015,
    as torch scales it); trained parameters of other layers keep the values that they have in ``module``.
    """
    layout = layout or layout_of(module)
    bounds = _bounds(module)
    values = dict(module.named_parameters())
    vector = np.empty(layout.dimension, dtype=np.float32)
    for slot in layout.slots:
        part = slice(slot.offset, slot.offset + slot.size)
        if slot.name in bounds:
            bound = bounds[slot.name]
            vector[part] = generator.uniform(-bound, bound, slot.size)
        else:
            vector[part] = values[slot.name].detach().float().cpu().numpy().reshape(-1)
    return torch.from_numpy(vector)


def _bounds(module: nn.Module) -> dict[str, float]:
    """1/sqrt(fan-in) for each parameter of a linear or convolution layer, by its full name."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {
        f"{name}.{own}" if name else own: 1 / math.sqrt(layer.weight[0].numel())
        for name, layer in module.named_modules()
        if isinstance(layer, kinds)
        for own in ("weight", "bias")
    }


class Pool(nn.Module):
    """2x2 max pooling of stride 1: (n, c, h, w) -> (n, c, h - 1, w - 1).

    As ``nn.MaxPool2d(2, 1)``, with the channels last in memory: torch's CPU kernel for channels first
    takes several times longer, and more than the rest of the network together.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The largest of each 2x2 square."""
        return F.max_pool2d(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), 2, 1)


def _linear(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1), nn.Flatten(0))


def _logistic(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: Shape, classes: int) -> nn.Module:
    layers: list[tuple[str, nn.Module]] = [
        ("flatten", nn.Flatten()),
        ("first", nn.Linear(math.prod(shape), 256)),
        ("first_relu", nn.ReLU()),
        ("second", nn.Linear(256, 256)),
        ("second_relu", nn.ReLU()),
        ("classes", nn.Linear(256, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def _cnn(shape: Shape, classes: int) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < 14:
        raise _check.fail("input shape", shape, "be (channels, height, width) of at least 14x14")
    height, width = (((side - 2) // 2 - 4) // 2 for side in shape[1:])
    layers: list[tuple[str, nn.Module]] = [
        ("first", nn.Conv2d(shape[0], 16, 8, stride=2, padding=3)),
        ("first_pool", Pool()),
        ("first_relu", nn.ReLU()),  # after the pool, with which it commutes: there is less of it
        ("second", nn.Conv2d(16, 32, 4, stride=2)),
        ("second_pool", Pool()),
        ("second_relu", nn.ReLU()),
        ("flatten", nn.Flatten()),
        ("hidden", nn.Linear(32 * height * width, 32)),
        ("hidden_relu", nn.ReLU()),
        ("classes", nn.Linear(32, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": _linear,
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
}
