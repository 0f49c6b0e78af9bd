"""Examples to look at: a PNG grid of images, a text table of anything else.

>>> import tempfile
>>> from fedpriv.data import load
>>> with tempfile.TemporaryDirectory() as folder:
...     path = save_grid(load("infinite-digits"), np.arange(360, 372), Path(folder) / "grid.png")
...     path.read_bytes()[1:4]
b'PNG'
>>> print_me = rows(load("infinite-digits"), np.arange(360, 362))
>>> print_me[0], print_me[1][0][0], print_me[1][0][2]
(('index', 'example', 'label'), '360', '0')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.source import Indices, Source

if TYPE_CHECKING:
    import numpy.typing as npt

MOST = 1024  # examples that are shown at once
_ZOOM = 3  # screen pixels for one of the image's, where the picture stays small
_SIDE = 4096  # screen pixels that a picture's side has at most, unless one for each of the images' is more
_GAP = 2  # image pixels between two images
_INK = 90  # grey level of the gaps
_LETTERS = 40  # letters of a text that a table shows
_ITEMS = 10  # tokens or features of an example that a table shows


def is_images(source: Source) -> bool:
    """Whether examples are images with one channel (grey) or three (red, green, blue)."""
    return not source.tokens and len(source.shape) == 3 and source.shape[0] in (1, 3)


def columns_of(count: int) -> int:
    """How many images a row of a grid has, so that the grid is about square."""
    return math.ceil(math.sqrt(count))


def save_grid(source: Source, indices: Indices, path: str | Path, columns: int = 0) -> Path:
    """Write the images of ``source`` at ``indices`` (n,) as one PNG at ``path``, atomically.

    Args:
        source: where the images come from.
        indices: which, in reading order; at least one.
        path: of the PNG.
        columns: images in a row; 0: as many as make the grid about square.

    Returns the path. Raises ArgumentError when ``indices`` is empty, longer than MOST or outside the source,
    or the source is not of images with one channel (grey) or three (red, green, blue).
    """
    if not is_images(source):
        hint = f"an example of it is {source.shape}"
        if len(source.shape) == 3 and source.shape[2] in (1, 3):
            hint += "; channels come first: x.transpose(0, 3, 1, 2)"
        raise validation.fail("dataset", source.name, "be of images (1 or 3, height, width)", hint)
    _require_some(indices)
    columns = validation.integer("columns", columns) or columns_of(len(indices))
    images = (source.batch(indices).x * 255).round().clamp(0, 255).numpy().astype(np.uint8)
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
    zoom = max(1, min(_ZOOM, _SIDE // max(grid.shape)))
    with atomic(path) as file:
        png.imsave(file, grid.repeat(zoom, axis=0).repeat(zoom, axis=1), format="png")
    return path


def _require_some(indices: Indices) -> None:
    if not 0 < len(indices) <= MOST:
        raise validation.fail("indices", len(indices), f"name at least one example, and at most {MOST:,}")


def targets(source: Source, indices: Indices) -> list[str]:
    """What is to be predicted of the examples at ``indices`` (n,), as text."""
    y, names = source.batch(indices).y, class_names(source)
    if source.target == "tags":
        return [" ".join(names[tag] for tag in one.nonzero().flatten().tolist()) or "none" for one in y]
    return [f"{one:.4g}" if source.target == "value" else names[one] for one in y.tolist()]


def class_names(source: Source) -> Sequence[str]:
    """The names of the labels or tags; their numbers where the source names none."""
    return getattr(source, "class_names", ()) or [str(number) for number in range(source.classes)]


def rows(source: Source, indices: Indices) -> tuple[tuple[str, ...], list[list[str]]]:
    """The header and the rows of a table of the examples at ``indices`` (n,): index, natural client where
    there is one, the example's first tokens or features, and what is to be predicted.

    Raises ArgumentError when ``indices`` is empty, longer than MOST or outside the source.
    """
    _require_some(indices)
    examples = [_example(source, one) for one in source.batch(indices).x.numpy()]
    columns = {"index": [str(index) for index in indices.tolist()]}
    if source.owners is not None:
        columns["client"] = [str(owner) for owner in source.owners[indices - source.first].tolist()]
    columns |= {"example": examples, source.target: targets(source, indices)}
    return tuple(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def _example(source: Source, x: npt.NDArray[Any]) -> str:
    """One example as text, cut after its first items."""
    if len(source.tokens) > 1:
        return ", ".join(
            f"id {number} of {many}" for number, many in zip(x.tolist(), source.tokens, strict=True)
        )
    items, texts = x.flatten(), getattr(source, "vocabulary", ())
    if source.tokens:
        length = int(items.nonzero()[0].max(initial=-1)) + 1  # without the padding
        tokens = items[:length].tolist()
        if texts and max(map(len, texts)) == 1:
            return _cut([texts[token] for token in tokens], f"length {length:,}", _LETTERS, "")
        return _cut([texts[token] if texts else str(token) for token in tokens], f"length {length:,}")
    used = f"{items.size:,} features, {np.count_nonzero(items):,} not 0"
    if texts:
        return _cut([texts[column] for column in items.nonzero()[0].tolist()], used)
    return _cut([f"{value:.3g}" for value in items[: _ITEMS + 1].tolist()], used)


def _cut(items: list[str], size: str, most: int = _ITEMS, between: str = " ") -> str:
    more = " ..." if len(items) > most else ""
    return f"{between.join(items[:most])}{more} ({size})"
