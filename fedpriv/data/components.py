"""Scattering features on their principal components, which are those of public digits.

Noise costs a linear model less where its features have a mean of zero and few dimensions: what all images
have in common moves no decision, but it makes gradients longer. The public digits are the 1,797 that come
with the package (:mod:`fedpriv.data.datasets.digits`). Their writers are not MNIST's, so the mean and the
directions cost no privacy there. They would cost some if these digits were the clients' own: their data sets
are refused.

An example's features are normalised by groups (as `normalised-linear` does), the mean of the public digits'
is subtracted, and the rest is projected on the directions in which theirs vary most.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.datasets.digits import digits
from fedpriv.data.source import Source
from fedpriv.scattering import feature_shape, groups, scattering

if TYPE_CHECKING:
    from torch import Tensor

COUNT = 500  # the best of 300, 500, 1,000 and all 3,969 on MNIST: see simulations/records
SHAPE = (COUNT, 1, 1)  # of an example's features
_IMAGES = (1, 28, 28)
_OF_THESE_DIGITS = ("digits", "infinite-digits")
_BATCH = 64  # images


def require_suited(images: Source) -> None:
    """Raises ArgumentError unless the components are public for these images, and fit them."""
    if tuple(images.shape) != _IMAGES:
        hint = f"it is for grey images of 28x28 pixels, and {images.name} has the shape {tuple(images.shape)}"
        raise validation.fail("features", "scattering-pca", "be scattering", hint)
    if images.name in _OF_THESE_DIGITS:
        hint = f"its components are those of the digits that {images.name} has, so they are not public here"
        raise validation.fail("features", "scattering-pca", "be scattering", hint)


def projected(features: Tensor) -> Tensor:
    """Scattering features (n, 81, 7, 7) on the components, (n, 500, 1, 1)."""
    mean, directions = _public_as(features.dtype, features.device)
    return ((_normalised(features) - mean) @ directions).view(-1, *SHAPE)


@functools.lru_cache(maxsize=4)
def _public_as(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, directions = _public()
    return mean.to(device, dtype), directions.to(device, dtype)


@functools.lru_cache(maxsize=1)
def _public() -> tuple[Tensor, Tensor]:
    """The mean (3969,) of the public digits' normalised features and the directions (3969, 500), float64.

    The direction of most variance is first.
    """
    train, _, test, _ = digits()
    images = torch.from_numpy(np.concatenate([train, test])).float()[:, None] / 255
    rows = torch.cat([_normalised(scattering(part)) for part in torch.split(images, _BATCH)]).double()
    mean = rows.mean(0)
    centred = rows - mean
    # The eigenvectors of the smaller of the two squares, which has a row for each image.
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    directions = centred.T @ (vectors[:, -COUNT:] / values[-COUNT:].sqrt()).flip(1)
    return mean, oriented(directions)


def oriented(directions: Tensor) -> Tensor:
    """Directions (d, k), each with its largest entry positive, so that all machines have the same signs."""
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return directions * largest.sign()


def _normalised(features: Tensor) -> Tensor:
    """Features (n, 81, 7, 7), each group with mean 0 and variance 1, flat (n, 3969)."""
    channels = feature_shape(_IMAGES)[0]
    return torch.nn.functional.group_norm(features, groups(channels)).flatten(1)
