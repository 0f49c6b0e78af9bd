"""Linear models and networks of linear layers, for float inputs of any shape."""

from __future__ import annotations

import math
from collections import OrderedDict

from fedpriv._internal import validation
from fedpriv._internal.lazy import nn
from fedpriv.models.inputs import NUMBERS, Inputs
from fedpriv.models.registry import Model, register


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
    from fedpriv.models.layers import FromZero

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


register(Model("linear", NUMBERS, linear, "one linear output, for values", "785 on 28x28"))
register(
    Model(
        "logistic",
        NUMBERS,
        logistic,
        "one linear layer, one output per class",
        "7,850 on 28x28; 5,000,500 on Stack Overflow",
        "Li 2023, C.1",
    )
)
register(
    Model(
        "logistic-binary",
        NUMBERS,
        logistic_binary,
        "one logit for two classes, initialised to 0",
        "10,001 on 10,000 words",
        "Li 2023, C.1",
    )
)
register(
    Model(
        "logistic-binary-no-bias",
        NUMBERS,
        logistic_binary_no_bias,
        "the same without a bias",
        "123 on a9a, 22 on ijcnn1",
        "Wang 2023, 7.1",
    )
)
register(Model("mlp", NUMBERS, mlp, "256 and 256 hidden units with ReLU", "269,322 on 28x28"))
register(
    Model(
        "mlp-no-bias",
        NUMBERS,
        mlp_no_bias,
        "the same without biases",
        "268,800 on 28x28",
        "Koskela & Honkela 2020, 5.1, by its text",
    )
)
register(
    Model(
        "mlp-no-bias-3",
        NUMBERS,
        mlp_no_bias_3,
        "256, 256 and 256 hidden units without biases",
        "334,336 on 28x28",
        "Koskela & Honkela 2020, 5.1, by its parameter count",
    )
)
