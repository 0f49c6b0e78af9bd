"""A source of fixed features in place of images: what a model learns from is computed once, and kept.

The features of an example depend on that example alone, bit for bit: batches have one size, for which a trial
found the same bits at every place, or each example is transformed by itself. They are rounded to float16, so
that stored features are those that are computed anew.

Scattering features learn from no data. Those of ``scattering-pca`` are fewer: :mod:`fedpriv.data.components`.
Features of ``patches`` are from made-up images: :mod:`fedpriv.data.patches`.

A folder for features holds a file for each block of 512 examples whose indices follow each other, and one
for the public test examples. A block is computed whole when one of its examples is asked for, so that the
files do not show who took part. They hold what the data holds: protect them as the data.

>>> from fedpriv.data.loaders import load
>>> source = with_features(load("infinite-digits"), "scattering")
>>> source.shape, tuple(source.batch(np.array([1000])).x.shape)
((81, 7, 7), (1, 81, 7, 7))
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data import components, patches
from fedpriv.data.arrays import Arrays
from fedpriv.data.source import DataError, Indices, Pair, Source, Target, whole
from fedpriv.scattering import feature_shape, scattering

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

Features = Literal["none", "scattering", "scattering-pca", "patches", "patches-mirrored"]
FEATURES: tuple[Features, ...] = get_args(Features)
_VERSION = 1  # of the features; another one has other files
_BATCH = 32  # examples that are transformed at once
_BLOCK = 512  # examples of a file
_OPEN_BLOCKS = 4096  # memory maps that stay open
_CHECKED = 4  # examples of a file, or a few more, that are computed anew when it is first read


def with_features(source: Source, kind: str, folder: str | Path = "") -> Source:
    """``source`` with features in place of its inputs, or itself where ``kind`` is none.

    Args:
        source: images.
        kind: one of FEATURES.
        folder: where features are kept; empty: nowhere.

    Raises ArgumentError where the source does not have images that suit this kind.
    """
    if validation.choice("features", kind, FEATURES) == "none":
        return source
    if source.tokens:
        raise validation.fail("features", kind, f"be none: {source.name} has tokens")
    return FeatureSource(source, Path(folder) if str(folder) else None, kind)


def _shape(kind: str, images: Source) -> tuple[int, ...]:
    """The shape of an example's features. Raises ArgumentError where the images do not suit them."""
    if kind.startswith("patches"):
        return patches.feature_shape(images.shape)
    if kind == "scattering-pca":
        components.require_suited(images)
        return components.SHAPE
    return feature_shape(images.shape)


class FeatureSource:
    """The features of a source's images.

    Attributes:
        images: the source of the images.
        kind: one of FEATURES, and not none.
        name, classes, tokens, target, owners, size, first: those of the images.
        shape: the shape of an example's features.
    """

    tokens: tuple[int, ...] = ()

    def __init__(self, images: Source, folder: Path | None = None, kind: str = "scattering") -> None:
        """The features of ``images``, which are kept in ``folder`` if there is one."""
        self.images, self.kind = images, kind
        self.name, self.classes = images.name, images.classes
        self.target: Target = images.target
        self.owners, self.size, self.first = images.owners, images.size, images.first
        self.shape = _shape(kind, images)
        self.class_names = getattr(images, "class_names", ())
        self._folder = folder
        self._blocks: dict[int, Tensor] = {}
        self._sizes: dict[torch.device, int] = {}

    def batch(self, indices: Indices, device: torch.device | str = "cpu") -> Pair:
        """The features of the examples at ``indices`` (n,), float32, and their labels, on ``device``."""
        at = whole("indices", indices)
        if self._folder is None or not len(at):
            x, y = self.images.batch(at, device)
            return Pair(self.transformed(x), y)
        rows = torch.empty((len(at), *self.shape), dtype=torch.float16)
        for number in np.unique(at // _BLOCK):
            own = np.flatnonzero(at // _BLOCK == number)
            rows[torch.from_numpy(own)] = self._block(int(number))[torch.from_numpy(at[own] % _BLOCK)]
        return Pair(rows.to(device).float(), self._targets(at, device))

    def labels(self, indices: Indices) -> Indices:
        """The labels of the images."""
        return self.images.labels(indices)

    def test(self, device: torch.device | str = "cpu") -> Pair:
        """The features of the public test examples, which stay in memory."""
        x, y = self._test
        return Pair(x.to(device), y.to(device))

    @cached_property
    def _test(self) -> Pair:
        x, y = self.images.test()
        if self._folder is None or not len(x):
            return Pair(self.transformed(x), y)
        path = self._place / "test.f16"
        if not path.is_file():
            _write(path, self.transformed(x).half().numpy())
        some = np.arange(0, len(x), max(1, len(x) // _CHECKED))
        return Pair(self._read(path, len(x), some, x[torch.from_numpy(some)]).float(), y)

    def _targets(self, at: Indices, device: torch.device | str) -> Tensor:
        if self.target == "label":
            return torch.from_numpy(self.labels(at)).to(device)
        return self.images.batch(at, device).y

    def transformed(self, x: Tensor) -> Tensor:
        """The features of images x (n, ...): float32, rounded to float16."""
        size = self._batch_size(x)
        rows = x.new_empty((len(x), *self.shape))
        for start in range(0, len(x), size):
            part = x[start : start + size]
            padding = part[:1].expand(size - len(part), *part.shape[1:])
            rows[start : start + size] = self._features(torch.cat([part, padding]))[: len(part)]
        most = torch.finfo(torch.float16).max
        return rows.clamp(-most, most).half().float()

    def _features(self, x: Tensor) -> Tensor:
        if self.kind.startswith("patches"):
            return patches.patch_features(x, mirrored=self.kind == "patches-mirrored")
        found = scattering(x)
        return components.projected(found) if self.kind == "scattering-pca" else found

    def _batch_size(self, like: Tensor) -> int:
        """_BATCH where an example's bits do not depend on its place in such a batch; else 1."""
        if like.device not in self._sizes:
            made_up = np.random.default_rng(0).uniform(0, 1, (_BATCH, *self.images.shape))
            x = torch.as_tensor(made_up).to(like)
            # Each example among copies of itself: neither its place nor the others may change its bits.
            wanted = torch.cat([self._features(one.expand(_BATCH, *one.shape))[:1] for one in x])
            turns = (0, 1, 5)
            same = all(torch.equal(self._features(x.roll(turn, 0)), wanted.roll(turn, 0)) for turn in turns)
            self._sizes[like.device] = _BATCH if same else 1
        return self._sizes[like.device]

    def _block(self, number: int) -> Tensor:
        """The features of a block of indices, float16 (_BLOCK, *shape), from its file."""
        if number not in self._blocks:
            if len(self._blocks) >= _OPEN_BLOCKS:
                self._blocks.clear()
            self._blocks[number] = self._stored(number)
        return self._blocks[number]

    def _stored(self, number: int) -> Tensor:
        end = (
            _BLOCK * (number + 1) if self.size is None else min(_BLOCK * (number + 1), self.first + self.size)
        )
        at = np.arange(max(_BLOCK * number, self.first), end)
        path = self._place / f"{number}.f16"
        if not path.is_file():
            rows = np.zeros((_BLOCK, *self.shape), np.float16)
            rows[at - _BLOCK * number] = self.transformed(self.images.batch(at).x).numpy()
            _write(path, rows)
        some = at[:: max(1, len(at) // _CHECKED)]
        return self._read(path, _BLOCK, some - _BLOCK * number, self.images.batch(some).x)

    def _read(self, path: Path, count: int, some: Indices, images: Tensor) -> Tensor:
        """The rows of a file, float16 (count, *shape). Raises DataError if it is damaged, or if its rows at
        ``some`` are not the features of these images."""
        if path.stat().st_size != 2 * count * int(np.prod(self.shape)):
            raise DataError(f"{path} is damaged; remove it, and its features are computed anew")
        rows = torch.from_numpy(np.memmap(path, np.float16, "c", shape=(count, *self.shape)))
        # Bits may differ in a batch of another size, so no padding is needed to compare.
        if not torch.allclose(rows[torch.from_numpy(some)].float(), self._features(images), 1e-2, 1e-3):
            raise DataError(f"{path} has the features of other data; remove its folder, or name another one")
        return rows

    @property
    def _place(self) -> Path:
        assert self._folder is not None
        return self._folder / f"{self.name}-{self.kind}-{self._mark}"

    @cached_property
    def _mark(self) -> str:
        """What the files' folder is named by, besides the source: its public numbers and test examples, and
        of data in memory all examples."""
        x, y = self.images.test()
        digest = hashlib.sha256(repr((_VERSION, self.size, self.first, self.images.shape)).encode())
        for part in (x, y):
            digest.update(np.ascontiguousarray(part.numpy()).tobytes())
        if isinstance(self.images, Arrays):
            digest.update(self.images.digest().encode())
        return digest.hexdigest()[:12]


def _write(path: Path, rows: npt.NDArray[np.float16]) -> None:
    with atomic(path) as file:
        file.write(rows.tobytes())
