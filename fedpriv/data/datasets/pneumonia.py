"""Paediatric pneumonia: chest radiographs of children, with and without pneumonia.

The images of Kermany, Zhang & Goldbaum 2018 lie in ``{train,test}/{NORMAL,PNEUMONIA}``, or in a folder
``chest_xray`` with these, as their archive has it. They differ in size; each is brought to one public size
(grey, squeezed to a square, bilinear over the area). Ziller et al. 2021, whom Du 2021 (appendix A.10)
follow, train on 224 x 224. Labels: 0 normal, 1 pneumonia.

Needs Pillow: ``pip install 'fedpriv[images]'``. JPEG decoders may differ by a grey level between versions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError
from fedpriv.data.source import Bytes, DataError, Indices
from fedpriv.data.splits import shuffled

LABELS = ("NORMAL", "PNEUMONIA")
PARTS = ("train", "test")
_ENDINGS = {".jpeg", ".jpg", ".png"}


def find(folder: Path) -> Path:
    """The folder with the parts. Raises MissingDataError."""
    for root in (folder, folder / "chest_xray"):
        if all((root / part / label).is_dir() for part in PARTS for label in LABELS):
            return root
    raise MissingDataError(
        f"{folder} has no folders train and test with {LABELS[0]} and {LABELS[1]} in each: unpack "
        "ChestXRay2017.zip there (see `fedpriv data info pneumonia`), or name its parent with FEDPRIV_DATA"
    )


def _images(folder: Path, size: int) -> list[Bytes]:
    """The images (size, size) of one folder, in the order of their names."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("pneumonia needs Pillow to read images: pip install 'fedpriv[images]'") from None
    images = []
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS):
        try:
            with Image.open(path, formats=("JPEG", "PNG")) as image:
                image.draft("L", (2 * size, 2 * size))  # a JPEG can be decoded small, several times faster
                grey = image.convert("L").resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            # Without the file's name, which is about a patient.
            raise DataError(f"{folder}: holds an image that is damaged; unpack it again") from None
        images.append(np.asarray(grey, np.uint8))
    if not images:
        raise DataError(f"{folder}: holds no images ({', '.join(sorted(_ENDINGS))}); unpack it again")
    return images


def _part(root: Path, size: int) -> tuple[Bytes, Indices]:
    groups = [_images(root / label, size) for label in LABELS]
    labels = np.repeat(np.arange(len(LABELS)), [len(group) for group in groups])
    order = shuffled(len(labels))  # else the labels would come in two runs
    return np.stack([image for group in groups for image in group])[order], labels[order]


def read(root: Path, size: int) -> Arrays:
    """The source, with images (1, size, size). Raises DataError for a damaged image, or without Pillow."""
    train, test = (_part(root / part, size) for part in PARTS)
    return Arrays("pneumonia", *train, *test, classes=len(LABELS))
