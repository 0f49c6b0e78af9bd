"""Decoding one image that is not trusted.

It needs Pillow. Different versions of the JPEG decoder may differ by a grey level.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.source import Bytes

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 24  # the largest radiograph has half as many; a forged header may claim any number
# What Pillow raises for damaged images.
_DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, AttributeError, RuntimeError,
    OverflowError, struct.error, zlib.error,
)  # fmt: skip


class DamagedImageError(Exception):
    """The image is damaged, or has more than MAX_PIXELS pixels."""


def _of_16_bits(image: Image) -> Image:
    """A grey image of 16 bits with 8: Pillow's own conversion cuts its values at 255."""
    from PIL.Image import fromarray

    return fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))


def image_decoder(formats: tuple[str, ...], size: int, grey: bool) -> Callable[[Path | IO[bytes]], Bytes]:
    """A function that gives an encoded image as uint8 (height, width), or with three channels at the end.

    Args:
        formats: Pillow's names of the allowed formats.
        size: the pixels of a side, to which the image is resized bilinearly; 0 keeps its size.
        grey: whether the image becomes grey.

    The function raises DamagedImageError. Raises ImportError if Pillow is not installed.
    """
    from PIL import Image

    mode = "L" if grey else "RGB"

    def decoded(source: Path | IO[bytes]) -> Bytes:
        try:
            with Image.open(source, formats=formats) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError
                if size:
                    image.draft(mode, (2 * size, 2 * size))  # decodes a JPEG at low resolution, much faster
                if image.mode == "F":
                    raise ValueError
                deep = image.mode == "I" or image.mode.startswith("I;16")
                pixels = (_of_16_bits(image) if deep else image).convert(mode)
                if size:
                    pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
                return np.asarray(pixels, np.uint8)
        except (*_DAMAGE, Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise DamagedImageError from None

    return decoded
