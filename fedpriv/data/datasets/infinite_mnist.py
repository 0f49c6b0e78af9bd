"""InfiniteMNIST: an infinite set of deformed digits, computed from the index and never stored.

Source: Loosli, Canu & Bottou 2007. With n_test and n_train base images (10000 and 60000 for MNIST), index i
is

    i <  n_test                   test image i, undeformed
    i <  n_test + n_train         training image i - n_test, undeformed
    otherwise                     training image a = (i - n_test) mod n_train, deformed:

    k1 = ((i mod 2^32) * 131071 mod 2^32) mod (fields - 1),    k2 = (k1 + 1 + 2 i) mod fields
    x  = clamp(x_a + alpha (F[k1] T0 - F[k2] T1), 0, 255)       alpha negated when k1 + k2 is odd

in float32 without fused multiply-add, truncated to a byte and shifted by translation k1 mod 9. F are the
displacement fields, T0 and T1 the image's tangents. With the authors' two binary files the images equal
theirs byte for byte. Without the files, fields and tangents are computed
(:mod:`fedpriv.data.datasets.deformation`).

>>> from fedpriv.data.datasets.digits import digits
>>> source = InfiniteMNIST("infinite-digits", *digits())
>>> source.first, source.size
(360, None)
>>> x, y = source.batch(np.array([360, 10**12]))
>>> tuple(x.shape), bool(torch.equal(x[1:], source.batch(np.array([10**12])).x))
((2, 1, 28, 28), True)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.datasets import deformation
from fedpriv.data.datasets.digits import digits
from fedpriv.data.datasets.mnist import IDX_FILES, read_mnist
from fedpriv.data.files import MissingDataError
from fedpriv.data.registry import files, no_files, register
from fedpriv.data.source import (
    Bytes,
    DataError,
    Indices,
    Pair,
    Target,
    require_examples,
    unit_interval,
    whole,
)

if TYPE_CHECKING:
    from torch import Tensor

PIXELS = 784
SIDE = 28
FIELDS_FILE = "fields_float_1522x28x28.bin"
TANGENTS_FILE = "tangVec_float_60000x28x28.bin"
_IDENTITY = 8  # the number of the translation that does not move the image
_MARGIN = SIDE + 1  # the largest flat shift of any translation
_SMALL_BASE = 4096  # up to this many base images, the tangents are kept in memory (24 MiB)


@functools.lru_cache(maxsize=1)
def _translations() -> Tensor:
    """The source pixel of each pixel for each of the nine translations, int64 (9, 784); 784 means black.

    0: up, 1: down, 2: left, 3: right, 4..7: up-left, up-right, down-left, down-right, 8: none. The original
    implementation shifts the image as one row of 784 pixels. Therefore "left" makes column 0 and pixel 783
    black and puts the next row's first pixel into column 27; "right" makes column 1 and pixel 0 black and
    puts the previous row's last pixel into column 0.
    """
    at = np.arange(PIXELS)
    column = at % SIDE
    moves = {
        "up": np.where(at < PIXELS - SIDE, at + SIDE, PIXELS),
        "down": np.where(at >= SIDE, at - SIDE, PIXELS),
        "left": np.where((column == 0) | (at == PIXELS - 1), PIXELS, at + 1),
        "right": np.where((column == 1) | (at == 0), PIXELS, at - 1),
        "none": at,
    }
    order: list[tuple[str, ...]] = [("up",), ("down",), ("left",), ("right",)]
    order += [(v, h) for v in ("up", "down") for h in ("left", "right")]  # vertical first
    order += [("none",)]
    table = []
    for steps in order:
        source = np.append(at, PIXELS)
        for step in steps:
            source = np.append(source[moves[step]], PIXELS)
        table.append(source[:PIXELS])
    return torch.from_numpy(np.stack(table).astype(np.int64))


@functools.lru_cache(maxsize=1)
def _shifts() -> tuple[Tensor, Tensor]:
    """The translations as flat shifts (9,) and masks uint8 (9, 784): 255, or 0 where the result is black.

    Reading a shifted row in one piece takes a tenth of the time of gathering its pixels.
    """
    table = _translations()
    away, lit = table - torch.arange(PIXELS), table < PIXELS
    steps = away.masked_fill(~lit, -PIXELS).amax(1)  # all lit pixels of a translation have the same shift
    return steps, torch.where(lit, 255, 0).to(torch.uint8)


@dataclass(frozen=True)
class _Tables:
    """The tensors that stay on a device: base images, labels, fields, translations, stored tangents."""

    images: Tensor  # uint8 (n_test + n_train, 784)
    labels: Tensor  # int64 (n_test + n_train,)
    fields: Tensor  # float32 (fields, 784)
    steps: Tensor  # int64 (9,)
    lit: Tensor  # uint8 (9, 784)
    tangents: Tensor | None  # float32 (n_train, 2, 784), or None if computed for each batch


class InfiniteMNIST:
    """The infinite source over a base set of digits.

    Args:
        name: the name of the data set.
        x, y: base training images uint8 (n_train, 28, 28) and labels (n_train,).
        test_x, test_y: base test images and labels, which are the public test part.
        classes: the number of labels.
        alpha: the strength of the deformations.
        fields: displacement fields float32 (an even number of at least 2, 784); None: computed.
        tangents: float32 (n_train, 2, 784), planes T0 and T1; None: computed, once for a small base set and
            for each batch otherwise.

    Raises:
        DataError: the arrays' shapes or types do not match.
        ArgumentError: alpha is not a finite number.
    """

    shape = (1, 28, 28)
    tokens: tuple[int, ...] = ()
    target: Target = "label"
    owners = None
    size = None

    def __init__(
        self,
        name: str,
        x: Bytes,
        y: Indices,
        test_x: Bytes,
        test_y: Indices,
        *,
        classes: int = 10,
        alpha: float = 1.0,
        fields: Tensor | None = None,
        tangents: Tensor | None = None,
    ) -> None:
        require_examples(name, x, y, classes)
        require_examples(name, test_x, test_y, classes)
        self.name, self.classes = name, classes
        self.alpha = validation.real("alpha", alpha)
        self.first, self._base = len(test_x), len(x)
        self._labels = np.concatenate([test_y, y]).astype(np.int64)
        fields = deformation.fields() if fields is None else fields
        if fields.dtype != torch.float32 or fields.shape[1:] != (PIXELS,) or len(fields) < 2:
            raise DataError(f"{name}: fields must be float32 of shape (at least 2, 784)")
        if tangents is not None and tangents.shape != (len(x), 2, PIXELS):
            raise DataError(f"{name}: tangents must have the shape ({len(x)}, 2, 784)")
        if tangents is None and len(x) <= _SMALL_BASE:
            tangents = deformation.tangents(torch.from_numpy(x))
        images = np.concatenate([test_x, x]).reshape(-1, PIXELS)
        here = _Tables(
            torch.from_numpy(images),
            torch.from_numpy(self._labels),
            fields,
            *_shifts(),
            tangents,
        )
        self._tables = {torch.device("cpu"): here}

    @property
    def base_size(self) -> int:
        """The number of base training images, n_train."""
        return self._base

    def _on(self, device: torch.device | str) -> tuple[torch.device, _Tables]:
        where = torch.device(device)
        if where not in self._tables:
            t = self._tables[torch.device("cpu")]
            moved = [None if a is None else a.to(where) for a in vars(t).values()]
            self._tables[where] = _Tables(*moved)  # type: ignore[arg-type]
        return where, self._tables[where]

    def _rows(self, i: Tensor) -> Tensor:
        """The number of the base image (test images first) of each index."""
        return torch.where(i < self.first, i, (i - self.first) % self._base + self.first)

    def pixels(self, indices: Indices, device: torch.device | str = "cpu") -> Tensor:
        """The images at ``indices`` (n,) as bytes, uint8 (n, 28, 28).

        Raises ArgumentError for an index outside 0..2^62 - 1.
        """
        where, tables = self._on(device)
        i = torch.from_numpy(whole("indices", indices, below=2**62)).to(where)
        return self._render(tables, i, self._rows(i)).view(-1, SIDE, SIDE)

    def batch(self, indices: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``indices`` (n,) on ``device``, in that order.

        Raises ArgumentError for an index outside 0..2^62 - 1.
        """
        where, tables = self._on(device)
        i = torch.from_numpy(whole("indices", indices, below=2**62)).to(where)
        rows = self._rows(i)
        grey = self._render(tables, i, rows)
        return Pair(unit_interval(grey.view(-1, SIDE, SIDE)), tables.labels.index_select(0, rows))

    def labels(self, indices: Indices) -> Indices:
        """The labels (n,) at ``indices``, without computing images."""
        i = whole("indices", indices, below=2**62)
        rows = np.where(i < self.first, i, (i - self.first) % self._base + self.first)
        return self._labels[rows]

    def test(self, device: torch.device | str = "cpu") -> Pair:
        """The public test examples, undeformed: the indices below ``first``."""
        return self.batch(np.arange(self.first), device)

    def _render(self, tables: _Tables, i: Tensor, rows: Tensor) -> Tensor:
        """Bytes (n, 784) of the images at ``i``, whose base images are ``rows``."""
        count = len(tables.fields)
        k1 = (i & 0xFFFFFFFF).mul_(131071).bitwise_and_(0xFFFFFFFF).remainder_(count - 1)
        k2 = torch.add(k1 + 1, i, alpha=2).remainder_(count)
        plain = i < self.first + self._base
        alpha = self.alpha * (1 - 2 * ((k1 + k2) & 1)).to(torch.float32)
        alpha = alpha.masked_fill_(plain, 0.0).unsqueeze(1)
        image = tables.images.index_select(0, rows)
        if tables.tangents is None:
            slopes = deformation.tangents(image.view(-1, SIDE, SIDE))
        else:
            slopes = tables.tangents.index_select(0, (rows - self.first).clamp_(min=0))
        # Separate operations: each rounds once, and none is fused with another.
        bent = tables.fields.index_select(0, k1).mul_(slopes[:, 0])
        bent.sub_(tables.fields.index_select(0, k2).mul_(slopes[:, 1]))
        bent.mul_(alpha).add_(image).clamp_(0, 255)
        # Converting float32 to uint8 via int16 is three times as fast as directly.
        padded = torch.nn.functional.pad(bent.to(torch.int16).to(torch.uint8), (_MARGIN, _MARGIN)).view(-1)
        windows = padded.as_strided((max(len(padded) - PIXELS + 1, 0), PIXELS), (1, 1))
        move = (k1 % 9).masked_fill_(plain, _IDENTITY)
        starts = torch.arange(len(i), device=i.device).mul_(PIXELS + 2 * _MARGIN).add_(_MARGIN)
        moved = windows.index_select(0, starts.add_(tables.steps.index_select(0, move)))
        return moved.bitwise_and_(tables.lit.index_select(0, move))


def read_floats(path: Path, *shape: int) -> Tensor:
    """The authors' little-endian float32 file of ``shape``, which has no header, as a memory map.

    Raises DataError if the file's size does not match the shape.
    """
    expected = 4 * int(np.prod(shape))
    found = path.stat().st_size
    if found != expected:
        raise DataError(f"{path} has {found} bytes where {expected} are expected; fetch it again")
    # Copy-on-write, because torch warns about read-only memory. Only rows that are used are read from disk.
    mapped = np.memmap(path, dtype="<f4", mode="c", shape=shape)
    return torch.from_numpy(np.asarray(mapped))


def _find_infinite(folder: Path) -> tuple[list[Path], list[Path]]:
    base = files("mnist", *IDX_FILES)(folder)
    where = folder / "infinite-mnist"
    given = [path for path in (where / FIELDS_FILE, where / TANGENTS_FILE) if path.is_file()]
    if len(given) == 1:
        # One of the authors' two files would give a data set that differs from all others.
        raise MissingDataError(
            f"{where} has only {given[0].name}; infinite-mnist needs both {FIELDS_FILE} and "
            f"{TANGENTS_FILE}, or neither"
        )
    return base, given


def _read_infinite(paths: tuple[list[Path], list[Path]]) -> InfiniteMNIST:
    base = read_mnist(paths[0])
    if not paths[1]:
        return InfiniteMNIST("infinite-mnist", *base)
    fields = read_floats(paths[1][0], deformation.FIELDS, PIXELS)
    tangents = read_floats(paths[1][1], len(base[0]), 2, PIXELS)
    return InfiniteMNIST("infinite-mnist", *base, fields=fields, tangents=tangents)


register("infinite-digits", no_files, lambda paths: InfiniteMNIST("infinite-digits", *digits()))
register("infinite-mnist", _find_infinite, _read_infinite)
