"""Convolutional networks."""

from __future__ import annotations

from collections import OrderedDict

from fedpriv._internal import validation
from fedpriv._internal.lazy import nn
from fedpriv.models.inputs import NUMBERS, Inputs
from fedpriv.models.registry import Model, register

_VGG_11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels; each group ends with a pool


def cnn(inputs: Inputs) -> nn.Module:
    """The network of many DP tutorials, to which Wang 2023 refer; images of at least 14x14.

    A convolution with 16 filters of 8x8 and stride 2, a pool, a convolution with 32 filters of 4x4 and stride
    2, a pool, 32 hidden units, the classes. It uses ReLU and 2x2 max pooling with stride 1.
    """
    from fedpriv.models.layers import Pool

    shape = image(inputs, 14)
    height, width = (((side - 2) // 2 - 4) // 2 for side in shape[1:])
    layers: list[tuple[str, nn.Module]] = [
        ("first", nn.Conv2d(shape[0], 16, 8, stride=2, padding=3)),
        ("first_pool", Pool()),
        ("first_relu", nn.ReLU()),  # ReLU and max pooling commute; after the pool there are fewer values
        ("second", nn.Conv2d(16, 32, 4, stride=2)),
        ("second_pool", Pool()),
        ("second_relu", nn.ReLU()),
        ("flatten", nn.Flatten()),
        ("hidden", nn.Linear(32 * height * width, 32)),
        ("hidden_relu", nn.ReLU()),
        ("classes", nn.Linear(32, inputs.classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def vgg11(inputs: Inputs) -> nn.Module:
    """VGG-11 (Simonyan & Zisserman 2015, column A) without batch norm, as in Du 2021, A.10.

    As usual for images of 32x32 it has one linear layer (9,225,610 parameters for CIFAR-10) instead of the
    three for ImageNet. Larger images are supported.
    """
    channels, height, width = image(inputs, 32)
    layers: list[tuple[str, nn.Module]] = []
    for group, outs in enumerate(_VGG_11):
        for place, out in enumerate(outs):
            layers.append((f"conv{group}{place}", nn.Conv2d(channels, out, 3, padding=1)))
            layers.append((f"relu{group}{place}", nn.ReLU()))
            channels = out
        layers.append((f"pool{group}", nn.MaxPool2d(2)))
    layers.append(("flatten", nn.Flatten()))
    layers.append(("classes", nn.Linear(channels * (height // 32) * (width // 32), inputs.classes)))
    return nn.Sequential(OrderedDict(layers))


def image(inputs: Inputs, side: int) -> tuple[int, int, int]:
    """The shape (channels, height, width). Raises ArgumentError for other shapes and for smaller images."""
    shape = inputs.shape
    if len(shape) != 3 or min(shape[1:]) < side:
        hint = ""
        if len(shape) == 1:
            hint = "the model is for images; rows of numbers are for model=logistic, mlp or your own"
        elif len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= side:
            hint = "channels come first: x.transpose(0, 3, 1, 2) converts images (n, height, width, channels)"
        allowed = f"be (channels, height, width) of at least {side}x{side}"
        raise validation.fail("input shape", shape, allowed, hint)
    return shape[0], shape[1], shape[2]


register(
    Model(
        "cnn",
        NUMBERS,
        cnn,
        "two convolutions, two linear layers",
        "26,010 on 28x28",
        "Du 2021, A.9; Wang 2023, 7.2",
    )
)
register(
    Model("vgg11", NUMBERS, vgg11, "VGG-11 without batch norm", "9,225,610 on CIFAR-10", "Du 2021, A.10")
)
