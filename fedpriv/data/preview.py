"""A PNG grid of examples, to look at data with one's own eyes.

>>> import tempfile
>>> from fedpriv.data import load
>>> with tempfile.TemporaryDirectory() as folder:
...     path = save_grid(load("infinite-digits"), np.arange(360, 372), Path(folder) / "grid.png")
...     path.read_bytes()[1:4]
b'PNG'
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv.data.source import Indices, Source

_ZOOM = 3  # screen pixels for one of the image's
_GAP = 2  # image pixels between two images
_INK = 90  # grey level of the gaps


def save_grid(source: Source, indices: Indices, path: str | Path, columns: int = 0) -> Path:
    """Write the images of ``source`` at ``indices`` (n,) as one PNG at ``path``, atomically.

    Args:
        source: where the images come from.
        indices: which, in reading order; at least one.
        path: of the PNG.
        columns: images in a row; 0: as many as make the grid about square.

    Returns the path. Raises ArgumentError when ``indices`` is empty or outside the source, or the source is
    not of images with one channel (grey) or three (red, green, blue).
    """
    if len(source.shape) != 3 or source.shape[0] not in (1, 3):
        hint = f"an example of it is {source.shape}"
        if len(source.shape) == 3 and source.shape[2] in (1, 3):
            hint += "; channels come first: x.transpose(0, 3, 1, 2)"
        raise validation.fail("dataset", source.name, "be of images (1 or 3, height, width)", hint)
    if not len(indices):
        raise validation.fail("indices", 0, "name at least one example")
    columns = validation.integer("columns", columns) or math.ceil(math.sqrt(len(indices)))
    images = (source.batch(indices).x * 255).round().numpy().astype(np.uint8)
    # Three channels also for grey, because a colour map would round grey levels down.
    images = np.moveaxis(np.broadcast_to(images, (len(images), 3, *source.shape[1:])), 1, -1)
    down, right = source.shape[1] + _GAP, source.shape[2] + _GAP
    rows = -(-len(images) // columns)
    grid = np.full((rows * down + _GAP, columns * right + _GAP, 3), _INK, np.uint8)
    for k, image in enumerate(images):
        top, left = k // columns * down + _GAP, k % columns * right + _GAP
        grid[top : top + image.shape[0], left : left + image.shape[1]] = image
    # A slow import that only this needs; `image` alone starts no plotting backend.
    from matplotlib import image as png

    path = Path(path)
    with atomic(path) as file:
        png.imsave(file, grid.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1), format="png")
    return path
