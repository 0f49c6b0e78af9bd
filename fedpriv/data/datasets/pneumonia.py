"""Paediatric pneumonia: chest radiographs of children with (1) and without (0) pneumonia.

The images of Kermany, Zhang & Goldbaum 2018 are in ``{train,test}/{NORMAL,PNEUMONIA}``, or in a folder
``chest_xray`` that contains these, as in their archive. They differ in size; each is converted to grey and
resized bilinearly to a square of one public size. Ziller et al. 2021, whom Du 2021 (appendix A.10) follow,
train on 224 x 224.

It needs Pillow: ``pip install 'fedpriv[images]'``. Different versions of the JPEG decoder may differ by a
grey level.
"""

from __future__ import annotations

from pathlib import Path

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.settings import Settings
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError
from fedpriv.data.image_decoding import MAX_PIXELS, DamagedImageError, image_decoder
from fedpriv.data.registry import option, register
from fedpriv.data.source import Bytes, DataError, Indices
from fedpriv.data.splits import shuffled

LABELS = ("NORMAL", "PNEUMONIA")
PARTS = ("train", "test")
_ENDINGS = {".jpeg", ".jpg", ".png"}


def find(folder: Path) -> Path:
    """The folder with the two parts. Raises MissingDataError if there is none."""
    for root in (folder, folder / "chest_xray"):
        if all((root / part / label).is_dir() for part in PARTS for label in LABELS):
            return root
    raise MissingDataError(
        f"{folder} has no folders train and test that each contain {LABELS[0]} and {LABELS[1]}: extract "
        "ChestXRay2017.zip there (see `fedpriv data info pneumonia`), or set FEDPRIV_DATA to the parent of "
        "pneumonia"
    )


def _images(folder: Path, size: int) -> list[Bytes]:
    """The images (size, size) of one folder, sorted by file name."""
    try:
        decode = image_decoder(("JPEG", "PNG"), size, grey=True)
    except ImportError:
        raise DataError("pneumonia needs Pillow to read images: pip install 'fedpriv[images]'") from None
    images = []
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS):
        try:
            images.append(decode(path))
        except DamagedImageError:
            # The message omits the file's name, which may identify a patient.
            what = f"a damaged image, or one of more than {MAX_PIXELS:,} pixels"
            raise DataError(f"{folder} has {what}; extract the archive again") from None
    if not images:
        raise DataError(f"{folder} has no images ({', '.join(sorted(_ENDINGS))}); extract the archive again")
    return images


def _part(root: Path, size: int) -> tuple[Bytes, Indices]:
    groups = [_images(root / label, size) for label in LABELS]
    labels = np.repeat(np.arange(len(LABELS)), [len(group) for group in groups])
    order = shuffled(len(labels))  # the images are sorted by label
    return np.stack([image for group in groups for image in group])[order], labels[order]


def read(root: Path, size: int) -> Arrays:
    """The source, with images (1, size, size). Raises DataError for a damaged image or without Pillow."""
    train, test = (_part(root / part, size) for part in PARTS)
    return Arrays("pneumonia", *train, *test, classes=len(LABELS))


class ImageSettings(Settings):
    """Settings of data sets whose images are resized."""

    image_size: int = option("image-size", "pixels of a side", at_least=8)


register("pneumonia", lambda folder: find(folder / "pneumonia"), read, {"image-size": 224}, ImageSettings)
