"""Linear models and networks of linear layers, for float inputs of any shape."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from fedpriv._internal import validation
from fedpriv.models import initializers
from fedpriv.models.inputs import Inputs


class FromZero(nn.Sequential):
    """Layers of which only the last has parameters, initialised to zero; the loss is convex in them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        last = len(layers) - 1
        self.initializers = {f"{last}.weight": initializers.zeros, f"{last}.bias": initializers.zeros}


def linear(inputs: Inputs) -> nn.Module:
    """One linear output (n,), for values."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs.shape), 1), nn.Flatten(0))


def logistic(inputs: Inputs) -> nn.Module:
    """One linear layer with one output per class, (n, classes)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs.shape), inputs.classes))


def logistic_binary(inputs: Inputs, bias: bool = True) -> nn.Module:
    """One linear output (n, 1), the logit of class 1 of two, initialised to zero.

    Raises ArgumentError unless there are two classes.
    """
    if inputs.classes != 2:
        raise validation.ArgumentError(
            f"The model has one logit and needs 2 classes, but the data set has {inputs.classes}. Use "
            "model=logistic."
        )
    return FromZero(nn.Flatten(), nn.Linear(math.prod(inputs.shape), 1, bias=bias))


def logistic_binary_no_bias(inputs: Inputs) -> nn.Module:
    """The same without a bias; it has as many parameters as features."""
    return logistic_binary(inputs, bias=False)


def mlp(inputs: Inputs, hidden: tuple[str, ...] = ("first", "second"), bias: bool = True) -> nn.Module:
    """A hidden layer of 256 units with ReLU per name in ``hidden``, then one output per class."""
    layers: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    ins = math.prod(inputs.shape)
    for name in hidden:
        layers += [(name, nn.Linear(ins, 256, bias=bias)), (f"{name}_relu", nn.ReLU())]
        ins = 256
    layers.append(("classes", nn.Linear(ins, inputs.classes, bias=bias)))
    return nn.Sequential(OrderedDict(layers))


def mlp_no_bias(inputs: Inputs) -> nn.Module:
    """Two hidden layers without biases."""
    return mlp(inputs, bias=False)


def mlp_no_bias_3(inputs: Inputs) -> nn.Module:
    """Three hidden layers without biases."""
    return mlp(inputs, ("first", "second", "third"), bias=False)
