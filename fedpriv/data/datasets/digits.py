"""scikit-learn's bundled handwritten digits, scaled to MNIST's 28x28. They need no download.

The 1797 digits of 8x8 pixels with 17 grey levels (Alpaydin & Kaynak 1998, UCI "Optical Recognition of
Handwritten Digits", test part) are interpolated to 20x20, the size of MNIST's digits, within 28x28, and their
contrast is raised to that of MNIST. The first ten of every 50 digits are the public test part: 360 test and
1437 training digits. (Ten at a time, because the bundle counts 0..9 for long stretches.) Both parts have the
same writers, so the test is easier than one with new writers.

>>> x, y, test_x, test_y = digits()
>>> x.shape, test_x.shape, x.dtype.name, sorted(set(test_y.tolist()))
((1437, 28, 28), (360, 28, 28), 'uint8', [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
"""

from __future__ import annotations

import functools

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.registry import no_files, register
from fedpriv.data.source import Bytes, Indices

_PITCH = 2.5  # distance of two original pixels, in pixels of the 28x28 image


def _weights() -> Indices:
    """Cubic convolution (Keys 1981, a = -1/2) from 8 to 28 positions, in units of 1/4096: (28, 8)."""
    at = (np.arange(28) - 13.5) / _PITCH + 3.5
    t = np.abs(at[:, None] - np.arange(8)[None, :])
    near = 1.5 * t**3 - 2.5 * t**2 + 1
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    weights: Indices = np.rint(4096 * np.where(t < 1, near, np.where(t < 2, far, 0))).astype(np.int64)
    return weights


@functools.lru_cache(maxsize=1)
def digits() -> tuple[Bytes, Indices, Bytes, Indices]:
    """Training images uint8 (1437, 28, 28) and labels, then the 360 test images and labels."""
    # This import is slow, and only this data set needs it.
    from sklearn.datasets import load_digits

    bundle = load_digits()
    small = bundle.images.astype(np.int64)
    # Integer arithmetic throughout, so that every machine computes the same bytes.
    weights = _weights()
    large = np.einsum("ia,nab,jb->nij", weights, small, weights)
    full = 16 * 4096 * 4096
    # Grey levels 0.2..0.75 are stretched to 0..1, so that strokes are as sharp as MNIST's.
    bright = (20 * large - 4 * full) * 255 // (11 * full)
    images = np.clip(bright, 0, 255).astype(np.uint8)
    labels = bundle.target.astype(np.int64)
    test = np.arange(len(images)) % 50 < 10
    return images[~test], labels[~test], images[test], labels[test]


register("digits", no_files, lambda paths: Arrays("digits", *digits(), classes=10))
