"""Encoded images as arrays of one size.

It needs Pillow (extra ``data``). Different versions of the JPEG decoder may differ by a grey level.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.files import most_unpacked
from fedpriv.data.image_decoding import MAX_PIXELS, DamagedImageError, image_decoder
from fedpriv.data.source import Bytes, DataError

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")


def decoded(images: Iterable[bytes], name: str, size: int = 0, grey: bool = False) -> Bytes:
    """The images as uint8 (n, channels, height, width), with 1 or 3 channels.

    Args:
        images: encoded images (JPEG, PNG, BMP, GIF, WebP).
        name: the data set's, for errors.
        size: the pixels of a side, to which each image is resized bilinearly; 0: images keep their size,
            which must be the same for all.
        grey: whether the images become grey.

    Raises DataError, which names no image, for a damaged image, or images of several sizes with ``size`` 0.
    """
    try:
        decode = image_decoder(_FORMATS, size, grey)
    except ImportError:
        raise DataError(f"{name}: Pillow reads images: pip install 'fedpriv[data]'") from None
    found = []
    stored = pixels_in_all = 0
    for encoded in images:
        stored += len(encoded)
        try:
            found.append(decode(io.BytesIO(encoded)))
        except DamagedImageError:
            raise DataError(
                f"{name} has a damaged image, or one of more than {MAX_PIXELS:,} pixels"
            ) from None
        pixels_in_all += found[-1].nbytes
        if pixels_in_all > most_unpacked(stored):
            limit = f"more than {most_unpacked(stored):,} bytes"
            raise DataError(f"{name} has images that unpack to {limit}; image_size makes them smaller")
    if not found:
        raise DataError(f"{name} has no images")
    if len({image.shape for image in found}) > 1:
        raise DataError(f"{name} has images of several sizes; give image_size, to which they are resized")
    stacked = np.stack(found)
    return stacked[:, None] if grey else np.ascontiguousarray(np.moveaxis(stacked, 3, 1))
