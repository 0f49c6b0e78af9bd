"""The data file of a deployed client.

Format: a NumPy ``.npz`` archive without pickled objects. It holds ``x`` and ``y`` in the form of the run's
data set: images as uint8 (n, height, width) or (n, channels, height, width), tokens and ids as integers, and
everything else as float32 (n, ...), to which other floats are rounded. Labels are integers (n,), values are
numbers (n,), and tags are numbers (n, classes). Alternatively a pair of IDX files, given by the file with the
images: its name contains ``images-idx3``, and the labels' name has ``labels-idx1`` in its place.

Errors travel to the server, so no error contains a value or a count of the data, and whether an error occurs
does not depend on any value. An example with a label, value, tag, token or number outside the ranges of the
run's data set counts as an empty place: it contributes nothing, like the places beyond the end of the file,
and all other examples keep their places. Only arrays of a wrong type or shape are refused, since type and
shape do not depend on a single example.

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

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpriv._internal import npy, validation
from fedpriv._internal.files import atomic
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data import idx
from fedpriv.data.archives import ZIP_DAMAGE, entry
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError, most_unpacked, read_at_most
from fedpriv.data.partitioning.populations import Silos
from fedpriv.data.ranges import Mask, blanked, within
from fedpriv.data.source import DataError, Indices, Pair, Source, to_unit, whole
from fedpriv.data.view import Batch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor


def write_client_file(path: str | Path, source: Source, indices: Indices) -> None:
    """Writes the examples of ``source`` at ``indices`` (n,) atomically to a client's ``.npz`` file.

    Reading the file gives the same examples, bit for bit. Raises ArgumentError if the name does not end in
    ``.npz`` or if ``indices`` is empty.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise validation.fail("path", str(path), "end in .npz")
    if not len(indices):
        raise validation.ArgumentError("indices is empty; a client's file needs at least one example.")
    x, y = source.batch(indices)
    if source.tokens:
        x = x.to(torch.int32)
    elif len(source.shape) == 3:
        x = _as_bytes(x)
    with atomic(path) as file:
        np.savez_compressed(file, x=x.numpy(), y=y.numpy())


def _as_bytes(x: Tensor) -> Tensor:
    """Images (n, channels, height, width) as the bytes they were converted from; otherwise unchanged."""
    pixels = (x * 255).round().clamp(0, 255).to(torch.uint8)
    if not torch.equal(to_unit(pixels), x):
        return x
    return pixels[:, 0] if x.shape[1] == 1 else pixels


def _read_npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            limit = most_unpacked(path.stat().st_size)
            items = (archive.getinfo(f"{name}.npy") for name in "xy")
            x, y = (npy.read(read_at_most(entry(archive, item), limit, path)) for item in items)
            return x, y
    except (KeyError, ValueError, *ZIP_DAMAGE):
        # The cause is dropped, because its text may quote the data.
        raise DataError(f"{path} is not an .npz file with the plain arrays x and y") from None


def _read_pair(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    labels = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    try:
        return idx.read(path), idx.read(labels)
    except DataError:
        raise DataError(f"{path}, or its labels, is not an intact IDX file") from None


class ClientFile:
    """The rows of one client's data file, in memory.

    Args:
        path: an ``.npz`` file, or the file with the images of an IDX pair.
        like: the run's data set, whose examples have the same type and shape.

    Attributes:
        size: the number of rows; it may be 0.
        valid: (size,), whether each row is an example within the ranges of the run's data set.

    Raises:
        DataError: the file is damaged or of another format, or its examples have another type or shape.
        MissingDataError: the file does not exist.
    """

    def __init__(self, path: str | Path, like: Source) -> None:
        path = Path(path)
        if path.suffix != ".npz" and "images-idx3" not in path.name:
            raise DataError(
                f"{path} cannot be a client's file: it must be an .npz file, or IDX images with images-idx3 "
                "in the name"
            )
        if not path.is_file():
            raise MissingDataError(
                f"{path} does not exist; set data-file in the node's configuration to the file with its "
                "examples"
            )
        x, y = _read_npz(path) if path.suffix == ".npz" else _read_pair(path)
        if not all(isinstance(part, np.ndarray) and part.ndim for part in (x, y)):
            raise DataError(f"{path}: x and y must be arrays with one row per example")
        self.size = len(x)
        if math.prod(x.shape[1:]) > math.prod(like.shape) or math.prod(y.shape[1:]) > like.classes:
            raise DataError(f"{path}: an example must have the shape {like.shape}, as in {like.name}")
        self.valid: Mask = within(x, y, like.tokens, like.target, like.classes)
        # An empty file gets one row that is never used, because the server must not learn that it is empty.
        empty = len(x) == len(y) == 0
        x, y = (_one_row(part) if empty else blanked(part, self.valid) for part in (x, y))
        options: dict[str, Any] = {"tokens": like.tokens, "target": like.target}
        self._rows = Arrays(str(path), x, y, x[:1], y[:1], like.classes, **options)
        if self._rows.shape != like.shape:
            raise DataError(f"{path}: an example must have the shape {like.shape}, as in {like.name}")

    def rows(self, rows: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``rows`` (n,); each must be ``valid``."""
        return self._rows.batch(rows, device)


def _one_row(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.zeros((1, *part.shape[1:]), part.dtype)


class Rows(Protocol):
    """The rows of a data file; see :class:`ClientFile`."""

    @property
    def size(self) -> int:
        """The number of rows."""

    @property
    def valid(self) -> Mask:
        """(size,), whether each row is an example."""

    def rows(self, rows: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``rows`` (n,)."""


@dataclass(frozen=True)
class FileView:
    """The counterpart of :class:`fedpriv.data.view.View` for a deployed client with its own file.

    Attributes:
        file: the client's rows.
        client: its number in the population. The view has no examples of other clients.
    """

    file: Rows
    client: int

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """All valid rows, once for each position of ``client_ids`` (k,) that names this client."""
        at = np.flatnonzero(whole("client_ids", client_ids) == self.client)
        valid = np.flatnonzero(self.file.valid)
        x, y = self.file.rows(np.tile(valid, len(at)), device)
        return Batch(x, y, torch.from_numpy(np.repeat(at, len(valid))))

    def units(self, silos: Silos, unit_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """The rows of the units in ``unit_ids`` (k,) that lie in this silo. Owners are positions in them.

        Unit u has the row u - (the silo's first unit). A unit without a valid row contributes nothing, so the
        public size of a silo may differ from the true number of rows.
        """
        low, high = silos.bounds(self.client)
        ids = whole("unit_ids", unit_ids)
        at = np.flatnonzero((ids >= low) & (ids < min(high, low + self.file.size)))
        at = at[self.file.valid[ids[at] - low]]
        x, y = self.file.rows(ids[at] - low, device)
        return Batch(x, y, torch.from_numpy(at))
