"""Residual networks with group normalisation and weight standardisation, as De et al. 2022 train them.

Neither reads another example, where batch normalisation would.
"""

from __future__ import annotations

from collections import OrderedDict

from fedpriv._internal.lazy import nn
from fedpriv.models.architectures.images import image
from fedpriv.models.inputs import NUMBERS, Inputs
from fedpriv.models.registry import Model, register

_GROUPS = 16


def resnet20(inputs: Inputs) -> nn.Module:
    """ResNet-20 (He et al. 2016, section 4.2): three stages of three blocks with 16, 32 and 64 channels."""
    return _network(inputs, (16, 32, 64), blocks=3, first=False)


def wrn_16_4(inputs: Inputs) -> nn.Module:
    """Wide ResNet 16-4 (Zagoruyko & Komodakis 2016): stages of two blocks with 64, 128 and 256 channels."""
    return _network(inputs, (64, 128, 256), blocks=2, first=True)


def _network(inputs: Inputs, widths: tuple[int, ...], blocks: int, first: bool) -> nn.Module:
    """A convolution, the stages, and one linear layer on means over places; images of at least 8x8."""
    from fedpriv.models.layers import Residual, ScaledGroupNorm, StandardisedConv2d

    channels = image(inputs, 8)[0]
    layers: list[tuple[str, nn.Module]] = [
        ("stem", StandardisedConv2d(channels, 16, 3, padding=1, bias=False)),
    ]
    if not first:
        layers += [("stem_norm", ScaledGroupNorm(_GROUPS, 16)), ("stem_relu", nn.ReLU())]
    ins = 16
    for stage, outs in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append((f"block{stage}{block}", Residual(ins, outs, stride, first, _GROUPS)))
            ins = outs
    if first:
        layers += [("last_norm", ScaledGroupNorm(_GROUPS, ins)), ("last_relu", nn.ReLU())]
    layers += [
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        ("classes", nn.Linear(ins, inputs.classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


register(
    Model(
        "resnet-20",
        NUMBERS,
        resnet20,
        "ResNet-20 with group normalisation and weight standardisation",
        "272,282 on CIFAR-10",
        "He et al. 2016",
    )
)
register(
    Model(
        "wrn-16-4",
        NUMBERS,
        wrn_16_4,
        "Wide ResNet 16-4 with group normalisation and weight standardisation",
        "2,748,890 on CIFAR-10",
        "De et al. 2022",
    )
)
