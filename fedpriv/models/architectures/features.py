"""Models on fixed features of images: what is trained is small, so that noise costs it little.

Tramer & Boneh 2021 ("Differentially private learning needs better features") train linear models on
scattering features (:mod:`fedpriv.scattering`) that group normalisation brings to one scale. It has no
parameters and reads one example alone, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from fedpriv._internal.lazy import nn
from fedpriv.models.architectures.images import image
from fedpriv.models.inputs import NUMBERS, Inputs
from fedpriv.models.registry import Model, register
from fedpriv.scattering import feature_shape, groups

_FILTERS = 64


def normalised_linear(inputs: Inputs) -> nn.Module:
    """Group normalisation without parameters, and one linear layer from zero, (n, classes)."""
    from fedpriv.models.layers import FromZero

    shape = image(inputs, 1)
    return FromZero(_normalised(shape[0]), nn.Flatten(), nn.Linear(math.prod(shape), inputs.classes))


def normalised_cnn(inputs: Inputs) -> nn.Module:
    """A convolution with 64 filters of 3x3 and a linear layer, each after group normalisation.

    2x2 means lie between them; images are at least 2x2. Neither normalisation has parameters.
    """
    channels, height, width = image(inputs, 2)
    layers: list[tuple[str, nn.Module]] = [
        ("normalised", _normalised(channels)),
        ("convolution", nn.Conv2d(channels, _FILTERS, 3, padding=1)),
        ("convolution_normalised", nn.GroupNorm(_FILTERS // 8, _FILTERS, affine=False)),
        ("convolution_relu", nn.ReLU()),
        ("pool", nn.AvgPool2d(2)),
        ("flatten", nn.Flatten()),
        ("classes", nn.Linear(_FILTERS * (height // 2) * (width // 2), inputs.classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def scattering_linear(inputs: Inputs) -> nn.Module:
    """The scattering transform as a fixed first part, and :func:`normalised_linear`."""
    from fedpriv.models.layers import Scattering

    features = Inputs(feature_shape(inputs.shape), inputs.classes)
    return nn.Sequential(Scattering(), normalised_linear(features))


def _normalised(channels: int) -> nn.Module:
    return nn.GroupNorm(groups(channels), channels, affine=False)


register(
    Model(
        "normalised-linear",
        NUMBERS,
        normalised_linear,
        "group normalisation, one linear layer; for fixed features",
        "39,700 on scattering features of 28x28; 5,010 on scattering-pca; 22,510 on patches",
        "Tramer & Boneh 2021",
    )
)
register(
    Model(
        "normalised-cnn",
        NUMBERS,
        normalised_cnn,
        "a convolution and a linear layer, each after group normalisation; for features=scattering",
        "52,490 on scattering features of 28x28",
        "Tramer & Boneh 2021",
    )
)
register(
    Model(
        "scattering-linear",
        NUMBERS,
        scattering_linear,
        "scattering features of images, then as normalised-linear",
        "39,700 on 28x28",
        "Tramer & Boneh 2021",
    )
)
