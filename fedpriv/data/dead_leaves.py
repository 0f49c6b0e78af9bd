"""Images that show nothing and nobody: leaves of chance that lie on each other.

Images of a random process cost no privacy, whatever is learnt from them (Baradad et al. 2021, "Learning to
see by looking at noise"; Tang et al. 2023, "Differentially private image classification by learning priors
from random processes"). Dead leaves have the edges, corners and plain areas of photographs (Ruderman 1997,
"Origins of scaling in natural images"): ellipses and rectangles of all sizes hide those below them.

>>> dead_leaves(2).shape
torch.Size([2, 3, 32, 32])
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.keyed import uniform

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

_SIDE = 32  # pixels
_OUTSIDE = 4  # pixels that a leaf's centre may lie outside
_LEAST, _MOST = 1.0, 24.0  # a leaf's half width; its logarithm is uniform
_STRETCH = 0.7  # the logarithm of sqrt(length / width) is uniform from -0.7 to 0.7
_CHROMA = 0.2  # how far a colour's parts are from its brightness, at most
_SHADE = 0.02  # how far the slopes of a leaf's brightness are from 0, at most, by pixel
_BLUR = (0.2, 0.6, 0.2)  # as of a lens
_LEAVES = 1000  # at most in an image; what they leave free is black
_DRAWS = 12  # for each leaf


def dead_leaves(count: int, seed: int = 0) -> Tensor:
    """Images (count, 3, 32, 32) from 0 to 1, float32: those of a seed are the same on all machines."""
    sharp = np.stack([_image(seed, number) for number in range(count)])
    lens = torch.outer(torch.tensor(_BLUR), torch.tensor(_BLUR)).expand(3, 1, 3, 3)
    images = torch.from_numpy(sharp).permute(0, 3, 1, 2)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")
    return torch.nn.functional.conv2d(padded, lens, groups=3).clamp(0, 1)


def _image(seed: int, number: int) -> npt.NDArray[np.float32]:
    """An image (rows, columns, 3), whose leaves are laid from the top one down, where it is still free."""
    image = np.zeros((_SIDE, _SIDE, 3), np.float32)
    free = np.ones((_SIDE, _SIDE), bool)
    y, x = np.mgrid[:_SIDE, :_SIDE].astype(np.float32)
    leaf, draw = (part.ravel() for part in np.mgrid[:_LEAVES, :_DRAWS])
    chances = uniform(seed, np.full(len(leaf), number), leaf, draw).reshape(_LEAVES, _DRAWS)
    for size, down, right, angle, stretch, kind, *shown in chances:
        y_off, x_off = (
            at - (part * (_SIDE + 2 * _OUTSIDE) - _OUTSIDE) for at, part in ((y, down), (x, right))
        )
        half, longer = _LEAST * (_MOST / _LEAST) ** size, math.exp(_STRETCH * (2 * stretch - 1))
        cosine, sine = math.cos(math.pi * angle), math.sin(math.pi * angle)
        along = (cosine * x_off + sine * y_off) / (half * longer)
        across = (cosine * y_off - sine * x_off) / (half / longer)
        inside = along**2 + across**2 < 1 if kind < 0.5 else np.maximum(abs(along), abs(across)) < 1
        inside &= free
        brightness, *parts = shown
        colour = np.clip(brightness + _CHROMA * (2 * np.array(parts[:3]) - 1), 0, 1)
        slopes = _SHADE * (2 * np.array(parts[3:]) - 1)
        image[inside] = colour + (slopes[0] * x_off + slopes[1] * y_off)[inside][:, None]
        free &= ~inside
        if not free.any():
            break
    return image
