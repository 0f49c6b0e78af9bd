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

from fedpriv import _check
from fedpriv.data.files import atomic
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

    Returns the path. Raises ArgumentError when ``indices`` is empty or outside the source.
    """
    if not len(indices):
        raise _check.fail("indices", 0, "name at least one example")
    columns = _check.integer("columns", columns) or math.ceil(math.sqrt(len(indices)))
    images = (source.batch(indices).x[:, 0] * 255).round().numpy().astype(np.uint8)
    side = images.shape[1] + _GAP
    height = -(-len(images) // columns) * side + _GAP
    grid = np.full((height, columns * side + _GAP), _INK, np.uint8)
    for k, image in enumerate(images):
        top, left = k // columns * side + _GAP, k % columns * side + _GAP
        grid[top : top + image.shape[0], left : left + image.shape[1]] = image
    # A slow import that only this needs; `image` alone starts no plotting backend.
    from matplotlib import image as png

    path = Path(path)
    with atomic(path) as file:
        zoomed = np.kron(grid, np.ones((_ZOOM, _ZOOM), np.uint8))
        # Three channels, because a colour map would round grey levels down.
        png.imsave(file, np.stack([zoomed] * 3, axis=-1), format="png")
    return path
