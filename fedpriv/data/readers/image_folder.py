"""Folders of images with a folder for each class, or a zip file of one."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fedpriv._internal.files import expanded
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.archives import ZIP_DAMAGE, entry
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError, most_unpacked, read_at_most, too_large
from fedpriv.data.readers import pictures
from fedpriv.data.source import Bytes, DataError, Indices

_ENDINGS = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp"}
_PARTS = ("train", "test")


def image_folder(path: str | Path, image_size: int, grey: bool = False) -> Arrays:
    """Images in ``train/CLASS/`` and ``test/CLASS/`` as a source; the test part is public.

    The classes are the folders of the test part, in alphabetical order. Images of one class are in the order
    of their names.

    Args:
        path: the folder, or a zip file of it.
        image_size: the pixels of a side, to which each image is resized bilinearly.
        grey: whether the images become grey.

    Raises:
        MissingDataError: there is no such folder or file, or a part has no images.
        DataError: an image is damaged, or a training folder is no class of the test part. It names no image.
    """
    path = expanded(path)
    if not path.exists():
        raise MissingDataError(f"{path.absolute()} does not exist")
    found: dict[str, list[tuple[str, bytes]]] = {part: [] for part in _PARTS}
    for part, label, content in _in_zip(path) if path.is_file() else _in_folder(path):
        found[part].append((label, content))
    for part, images in found.items():
        if not images:
            raise MissingDataError(f"{path} has no images in {part}/CLASS/ ({', '.join(sorted(_ENDINGS))})")
    classes = sorted({label for label, _ in found["test"]})
    if not {label for label, _ in found["train"]} <= set(classes):
        raise DataError(f"{path}: a folder of train is not a folder of test, whose folders are the classes")
    x, y = _arrays(found["train"], classes, path, image_size, grey)
    test_x, test_y = _arrays(found["test"], classes, path, image_size, grey)
    return Arrays(path.stem, x, y, test_x, test_y, len(classes), class_names=classes)


def _arrays(
    images: list[tuple[str, bytes]], classes: list[str], path: Path, size: int, grey: bool
) -> tuple[Bytes, Indices]:
    pixels = pictures.decoded((content for _, content in images), str(path), size, grey)
    return pixels, np.array([classes.index(label) for label, _ in images], np.int64)


def _in_folder(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """(part, class, content) of each image. Links that lead out of the folder are left out."""
    root = path.resolve()
    for file in sorted(path.glob("*/*/*")):
        part, label = file.relative_to(path).parts[:2]
        wanted = part in _PARTS and _is_image(file.name) and file.is_file()
        if wanted and file.resolve().is_relative_to(root):
            yield part, label, file.read_bytes()


def _is_image(name: str) -> bool:
    """Whether a file is an image by its name; hidden files are none, such as macOS leaves beside images."""
    return not name.startswith(".") and PurePosixPath(name).suffix.lower() in _ENDINGS


def _in_zip(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """The same of a zip file, in which the folder may lie deeper."""
    left = limit = most_unpacked(path.stat().st_size)
    try:
        with zipfile.ZipFile(path) as archive:
            for info in sorted(archive.infolist(), key=lambda each: each.filename):
                names = PurePosixPath(info.filename).parts
                if len(names) < 3 or names[-3] not in _PARTS or not _is_image(names[-1]):
                    continue
                content = read_at_most(entry(archive, info), left, path)
                left -= len(content)
                if left < 0:
                    raise too_large(path, limit)
                yield names[-3], names[-2], content
    except ZIP_DAMAGE:
        raise DataError(f"{path} is not an intact zip file") from None
