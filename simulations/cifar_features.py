"""CIFAR-10 (JPEG): cifar_features:images, or on fixed features :features and :coarse, in a configuration.

Wu et al. 2021 and Koskela & Honkela 2020 train networks whose convolutions were trained on CIFAR-100. Those
weights and CIFAR-100 are not at hand. Here the fixed part is a scattering transform, which learns from no
data and so costs no privacy (:mod:`fedpriv.scattering`). Of an image's 243 channels of 8x8 the means over 3x3
areas are taken, then logarithms, and each image's 2,187 numbers are brought to mean 0 and variance 1: they
depend on that image alone. A linear least-squares model names 64.6 % of the test images. ``coarse`` has means
over 2x2 areas, 972 numbers, for networks.

The images are under $FEDPRIV_DATA: ``cifar-10-jpeg/plain_text``, Parquet files as on the Hugging Face hub.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from fedpriv._internal.allocator import tune_allocator
from fedpriv.data import Arrays, hugging_face
from fedpriv.data.files import data_folder
from fedpriv.scattering import scattering

EXAMPLES = 50_000
OFFSET = 1e-2  # added before the logarithm: a channel of a plain area is 0
_BATCH = 32  # images


def transformed(images: torch.Tensor, side: int) -> torch.Tensor:
    """The features (n, 243 side^2) of images (n, 3, 32, 32), from ``side`` areas on each side."""
    means = torch.nn.functional.adaptive_avg_pool2d(scattering(images), side).flatten(1)
    return torch.nn.functional.layer_norm((means.clamp(min=0) + OFFSET).log(), means.shape[1:])


@cache
def images() -> Arrays:
    """The images, 50,000 for training and 10,000 for tests."""
    return hugging_face(data_folder(None) / "cifar-10-jpeg" / "plain_text")


@cache
def features() -> Arrays:
    """The features of all images, 2,187 each."""
    return _of_all(3)


@cache
def coarse() -> Arrays:
    """The features of all images, 972 each."""
    return _of_all(2)


def _of_all(side: int) -> Arrays:
    """Two to three minutes of a core."""
    tune_allocator()
    source = images()
    train, test = source.batch(np.arange(source.size)), source.test()
    x, test_x = (
        torch.cat([transformed(part, side) for part in torch.split(pair.x, _BATCH)]) for pair in (train, test)
    )
    return Arrays("CIFAR-10 (JPEG), features", x, train.y, test_x, test.y, classes=source.classes)
