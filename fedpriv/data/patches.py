"""Features of images from patches of made-up ones: a fixed transform that learns from no data of anybody.

Each 8x8 patch of an image is brought to mean 0 and unit contrast, whitened, and compared with 600 patches of
dead leaves (:mod:`fedpriv.data.dead_leaves`). What exceeds a threshold, of either sign, is averaged over 3x3
areas. Of an example's square roots, normalised, each area keeps 250 principal components, which are those of
dead leaves too, all brought to one variance there.

Source: Coates, Lee & Ng 2011, "An analysis of single-layer networks in unsupervised feature learning": random
patches with a soft threshold, and their sums over areas. Whitening is theirs, with 0.3 added to each
variance. That noise costs little in few dimensions of one scale: Tramer & Boneh 2021.

The result for one image depends on no other one of the data.

>>> import torch
>>> patch_features(torch.zeros(2, 3, 32, 32)).shape
torch.Size([2, 250, 3, 3])
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.components import oriented
from fedpriv.data.dead_leaves import dead_leaves
from fedpriv.data.keyed import uniform

if TYPE_CHECKING:
    from torch import Tensor

COMPONENTS = 250  # of an area
SIDE = 8  # of a patch, in pixels
AREAS = 3  # on each side of an image
_PATCHES = 600  # images are compared with; each gives two channels
_IMAGES = 1000  # of dead leaves
_DRAWN = 60  # patches of each of them, from which the whitening is computed
_CONTRAST = 0.01  # added to a patch's variance, of values from 0 to 1
_REGULAR = 0.3  # added to the variances before whitening
_SMALL = 1e-3  # added before the square root
_BATCH = 25  # images of dead leaves
_CACHED = 4  # images that a CPU compares at once, so that their answers fit its cache


class Dictionary(NamedTuple):
    """What images are compared with, and how the answers are reduced.

    Attributes:
        filters: (600, channels, 8, 8), each with sum 0, to be divided by a patch's contrast.
        threshold: the root mean square of the answers of dead leaves.
        mean: (1200,) of the normalised channels of dead leaves.
        directions: (1200, 250), principal components by the root of their variance.
    """

    filters: Tensor
    threshold: float
    mean: Tensor
    directions: Tensor


def feature_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of the features of images of this shape.

    Raises ArgumentError unless it is (1 or 3 channels, height, width) with sides from 10.
    """
    least = SIDE + AREAS - 1
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < least:
        allowed = f"be (channels, height, width) with 1 or 3 channels and sides of at least {least}"
        raise validation.fail("input shape", shape, allowed, "features from patches need images")
    return COMPONENTS, AREAS, AREAS


def patch_features(images: Tensor, *, mirrored: bool = False) -> Tensor:
    """The features (n, 250, 3, 3) of images (n, channels, height, width) with values from 0 to 1.

    With ``mirrored`` those of an image and its mirror image are the same: the mean of both before roots are
    taken.

    Raises ArgumentError where :func:`feature_shape` does.
    """
    feature_shape(tuple(images.shape[1:]))
    own = _dictionary_as(images.shape[1], images.dtype, images.device, mirrored)
    found = _normalised(images, own.filters, own.threshold, mirrored).flatten(2).mT - own.mean
    return (found @ own.directions).mT.reshape(-1, COMPONENTS, AREAS, AREAS)


def _normalised(images: Tensor, filters: Tensor, threshold: float, mirrored: bool) -> Tensor:
    """The roots (n, 1200, 3, 3) of what exceeds the threshold, each example's with mean 0 and variance 1."""
    found = _pooled(images, filters, threshold)
    if mirrored:
        found = (found + _pooled(images.flip(3), filters, threshold)) / 2
    roots = (found + _SMALL).sqrt()
    return torch.nn.functional.layer_norm(roots, roots.shape[1:])


def _pooled(images: Tensor, filters: Tensor, threshold: float) -> Tensor:
    """The mean of what exceeds the threshold in each area, first of positive then of negative answers."""
    if images.device.type == "cpu" and len(images) > _CACHED:
        return torch.cat([_pooled(some, filters, threshold) for some in torch.split(images, _CACHED)])
    pool = functools.partial(torch.nn.functional.adaptive_avg_pool2d, output_size=AREAS)
    answers = _answers(images, filters)
    positive = pool((answers - threshold).clamp_(min=0))
    return torch.cat([positive, pool(answers.neg_().sub_(threshold).clamp_(min=0))], 1)


def _answers(images: Tensor, filters: Tensor) -> Tensor:
    """The filters' products with each patch of unit contrast, (n, filters, height - 7, width - 7)."""
    mean, square = (
        torch.nn.functional.avg_pool2d(part.mean(1, keepdim=True), SIDE, 1)
        for part in (images, images.square())
    )
    contrast = ((square - mean.square()).clamp(min=0) + _CONTRAST).rsqrt()
    return torch.nn.functional.conv2d(images, filters).mul_(contrast)


@functools.lru_cache(maxsize=8)
def _dictionary_as(channels: int, dtype: torch.dtype, device: torch.device, mirrored: bool) -> Dictionary:
    filters, threshold, mean, directions = _dictionary(channels, mirrored)
    return Dictionary(
        filters.to(device, dtype), threshold, mean.to(device, dtype), directions.to(device, dtype)
    )


@functools.lru_cache(maxsize=4)
def _dictionary(channels: int, mirrored: bool) -> Dictionary:
    """Some 10 seconds of a core."""
    images = dead_leaves(_IMAGES)
    if channels == 1:
        images = images.mean(1, keepdim=True)
    filters, threshold = _filters(images)
    parts = [_normalised(part, filters, threshold, mirrored) for part in torch.split(images, _BATCH)]
    rows = torch.cat(parts).flatten(2).mT.flatten(0, 1).double()  # (images * areas, channels)
    mean = rows.mean(0)
    centred = rows - mean
    values, vectors = torch.linalg.eigh(centred.mT @ centred / len(centred))
    directions = oriented(vectors[:, -COMPONENTS:].flip(1)) / values[-COMPONENTS:].flip(0).sqrt()
    return Dictionary(filters, threshold, mean, directions)


def _filters(images: Tensor) -> tuple[Tensor, float]:
    """The filters and the threshold from patches of these images, float32."""
    patches = torch.nn.functional.unfold(images, SIDE).mT  # (images, places, numbers of a patch)
    image, draw = (part.ravel() for part in np.mgrid[: len(images), :_DRAWN])
    chances = uniform(0, image, draw).reshape(-1, _DRAWN)
    places = torch.from_numpy((chances * patches.shape[1]).astype(np.int64))
    drawn = patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2])).flatten(0, 1).double()
    centred = drawn - drawn.mean(1, keepdim=True)
    patches = centred / (centred.square().mean(1, keepdim=True) + _CONTRAST).sqrt()
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    whitening = vectors / (values + _REGULAR).sqrt() @ vectors.T
    white = patches @ whitening
    # A plain patch has no direction.
    some = white[centred.std(1) > 2 * _CONTRAST]
    chosen = some[:: len(some) // _PATCHES][:_PATCHES]
    directions = chosen / chosen.norm(dim=1, keepdim=True)
    threshold = float((white @ directions.T).square().mean().sqrt())
    filters = directions @ whitening
    filters -= filters.mean(1, keepdim=True)
    return filters.float().view(-1, *images.shape[1:2], SIDE, SIDE), threshold
