"""The data file of a deployed client, which owns nothing else.

Format: a NumPy ``.npz`` archive without pickled objects, holding ``x`` and ``y`` as the run's data set has
them: images as uint8 (n, height, width) or (n, channels, height, width), tokens and ids as whole numbers,
all else as float32 (n, ...), to which other floats are rounded; labels as whole numbers (n,), values and
tags as numbers, (n,) and (n, classes). Or a pair of IDX files, named by the one with the images, whose name
holds ``images-idx3`` where that of the labels holds ``labels-idx1``.

Nothing here puts a value, or a count, of the data into an error: errors travel to the server. Nor does any
error depend on a value: an example with a label, a value, a tag, a token or a number that the run's data set
does not have is an empty place, which adds nothing, as the places beyond the end of the file are; all others
keep theirs. What is refused is arrays of other kinds or shapes, which are no single example's.

>>> import tempfile
>>> from fedpriv.data import Silos
>>> from fedpriv.data import load
>>> source, silos = load("infinite-digits"), Silos(2, 5, first=360)
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "silo-1.npz"
...     write_client_file(path, source, silos.examples(np.array([1]))[0])
...     view = FileView(ClientFile(path, source), client=1)
>>> batch = view.batch(np.array([0, 1]))    # client 0 lives elsewhere, and adds nothing here
>>> batch.owner.tolist()
[1, 1, 1, 1, 1]
>>> view.units(silos, np.array([4, 5, 9])).owner.tolist()
[1, 2]
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv.data import idx
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError
from fedpriv.data.partitioning.populations import Silos
from fedpriv.data.ranges import Mask, blanked, within
from fedpriv.data.source import DataError, Indices, Pair, Source, to_unit, whole
from fedpriv.data.view import Batch


def write_client_file(path: str | Path, source: Source, indices: Indices) -> None:
    """Write the examples of ``source`` at ``indices`` (n,) as a client's ``.npz`` file, atomically.

    Reading it back gives the same examples, bit for bit. Raises ArgumentError unless the name ends
    in ``.npz``, or when ``indices`` is empty.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise validation.fail("path", str(path), "end in .npz")
    if not len(indices):
        raise validation.fail("indices", 0, "name at least one example")
    x, y = source.batch(indices)
    if source.tokens:
        x = x.to(torch.int32)
    elif len(source.shape) == 3:
        x = _as_bytes(x)
    with atomic(path) as file:
        np.savez_compressed(file, x=x.numpy(), y=y.numpy())


def _as_bytes(x: Tensor) -> Tensor:
    """Images (n, channels, height, width) as the bytes that they were made from; as they are if of none."""
    pixels = (x * 255).round().clamp(0, 255).to(torch.uint8)
    if not torch.equal(to_unit(pixels), x):
        return x
    return pixels[:, 0] if x.shape[1] == 1 else pixels


def _read_npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except (KeyError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile):
        # Without the cause: its text may quote the data.
        raise DataError(f"{path}: not an .npz file with plain arrays x and y") from None


def _read_pair(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    labels = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    try:
        return idx.read(path), idx.read(labels)
    except DataError:
        raise DataError(f"{path}, or its labels, is not an intact IDX file") from None


class ClientFile:
    """The rows of one client's data file, held in memory.

    Args:
        path: an ``.npz`` file, or the images' file of an IDX pair.
        like: the run's data set, whose examples are of the same kind.

    Attributes:
        size: its rows, of which there may be none.
        held: (size,), which of them are examples in the ranges of the run's data set.

    Raises:
        DataError: the file is damaged, not of this format, or its examples are of another kind.
        MissingDataError: there is no such file.
    """

    def __init__(self, path: str | Path, like: Source) -> None:
        path = Path(path)
        if path.suffix != ".npz" and "images-idx3" not in path.name:
            raise DataError(f"{path}: a client's file is an .npz file or IDX images (images-idx3)")
        if not path.is_file():
            raise MissingDataError(f"{path}: no such file; a node's data-file names its owner's examples")
        x, y = _read_npz(path) if path.suffix == ".npz" else _read_pair(path)
        if not all(isinstance(part, np.ndarray) and part.ndim for part in (x, y)):
            raise DataError(f"{path}: x and y must have a row for each example")
        self.size = len(x)
        self.held: Mask = within(x, y, like.tokens, like.target, like.classes)
        # Where there is no row, one that nobody asks for: that there is none is not the server's to know.
        empty = len(x) == len(y) == 0
        x, y = (_one_row(part) if empty else blanked(part, self.held) for part in (x, y))
        options: dict[str, Any] = {"tokens": like.tokens, "target": like.target}
        self._rows = Arrays(str(path), x, y, x[:1], y[:1], like.classes, **options)
        if self._rows.shape != like.shape:
            raise DataError(f"{path}: an example must have the shape {like.shape}, as in {like.name}")

    def rows(self, rows: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``rows`` (n,), each of them held."""
        return self._rows.batch(rows, device)


def _one_row(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.zeros((1, *part.shape[1:]), part.dtype)


@dataclass(frozen=True)
class FileView:
    """What :class:`fedpriv.data.view.View` is in a simulation, for a client with its own file.

    Attributes:
        file: the client's rows.
        client: its number in the population; it answers for no other.
    """

    file: ClientFile
    client: int

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """All rows held, for each position of ``client_ids`` (k,) at which this client is asked for."""
        at = np.flatnonzero(whole("client_ids", client_ids) == self.client)
        held = np.flatnonzero(self.file.held)
        x, y = self.file.rows(np.tile(held, len(at)), device)
        return Batch(x, y, torch.from_numpy(np.repeat(at, len(held))))

    def units(self, silos: Silos, unit_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """The rows of those of ``unit_ids`` (k,) that lie in this silo; owners are positions in them.

        Unit u is row u minus the silo's first unit. A unit whose row is not held, or lies beyond the end of
        the file, contributes nothing, so the public size of a silo need not be its true one.
        """
        low, high = silos.bounds(self.client)
        ids = whole("unit_ids", unit_ids)
        at = np.flatnonzero((ids >= low) & (ids < min(high, low + self.file.size)))
        at = at[self.file.held[ids[at] - low]]
        x, y = self.file.rows(ids[at] - low, device)
        return Batch(x, y, torch.from_numpy(at))
