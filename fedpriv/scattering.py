"""Scattering features of images: a fixed transform that learns nothing, and so costs no privacy.

Source: Bruna & Mallat 2013, "Invariant scattering convolution networks", with the Morlet filters of Andreux
et al. 2020 (Kymatio). Tramer & Boneh 2021 ("Differentially private learning needs better features") train
linear models on them. With J = 2 and L = 8 angles, an image of one channel (height, width) has 81 channels
of (height / 4, width / 4):

| order | here | channels |
|---|---|---|
| 0 | x * phi | 1 |
| 1 | abs(x * psi_{j, l}) * phi, for j = 0, 1 and 8 angles | 16 |
| 2 | abs(abs(x * psi_{0, l}) * psi_{1, m}) * phi, for 8 times 8 angles | 64 |

phi is a Gaussian of std 0.8 * 2^(J - 1). Images are reflected at their borders. The result for one image
depends on no other one.

>>> import torch
>>> scattering(torch.zeros(2, 1, 28, 28)).shape
torch.Size([2, 81, 7, 7])
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

SCALES = 2  # J
ANGLES = 8  # L
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2  # for each channel of an image
STRIDE = 2**SCALES
_PAD = 2**SCALES  # pixels on each side
_WIDTH = 0.8  # the std of a filter's envelope at scale 0, in pixels
_FREQUENCY = 3 * math.pi / 4  # of the filters at scale 0
_SLANT = 4 / ANGLES  # how much longer an envelope is along the waves
_WRAPS = 2  # copies of a filter on each side, which make it periodic
_GROUPS = 27  # of channels that are normalised together, as Tramer & Boneh's; 81 channels are 27 groups of 3


def feature_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of the features of images of this shape.

    Raises ArgumentError unless it is (channels, height, width) with sides that are multiples of 4, from 8.
    """
    if len(shape) != 3 or any(side % STRIDE or side < 2 * STRIDE for side in shape[1:]):
        allowed = f"be (channels, height, width) with sides that are multiples of {STRIDE}, at least 8"
        raise validation.fail("input shape", shape, allowed, "scattering features need images")
    return shape[0] * CHANNELS, shape[1] // STRIDE, shape[2] // STRIDE


def groups(channels: int) -> int:
    """How many groups of channels are normalised."""
    return math.gcd(channels, _GROUPS)


def scattering(images: Tensor) -> Tensor:
    """The features (n, channels * 81, height / 4, width / 4) of images (n, channels, height, width).

    Raises ArgumentError where :func:`feature_shape` does.
    """
    shape = feature_shape(tuple(images.shape[1:]))
    padded = torch.nn.functional.pad(images, (_PAD,) * 4, mode="reflect")
    kept = (padded.shape[2], padded.shape[3], images.device, images.dtype)
    wide, narrow = (_waves(*kept, scale) for scale in (0, 1))
    spectrum = torch.fft.fft2(padded)[:, :, None]  # (n, channels, 1, rows, columns)
    first = _modulus(torch.fft.ifft2(spectrum * wide))
    second = _modulus(torch.fft.ifft2(_halved(spectrum, narrow)))
    third = _modulus(torch.fft.ifft2(_halved(torch.fft.fft2(first)[:, :, :, None], narrow))).flatten(2, 3)
    parts = [_smoothed(padded[:, :, None], 1), _smoothed(first, 1), _smoothed(second, 2), _smoothed(third, 2)]
    return torch.cat(parts, 2).reshape(len(images), *shape)


def _modulus(waves: Tensor) -> Tensor:
    """Absolute values; torch's own take twice the time, because they guard against overflow."""
    parts = torch.view_as_real(waves)
    return (parts[..., 0].square() + parts[..., 1].square()).sqrt()


def _halved(spectrum: Tensor, waves: Tensor) -> Tensor:
    """The spectra of every second row and column of an image's waves: its quarters, times theirs, added."""
    rows, columns = (side // 2 for side in spectrum.shape[-2:])
    quarters = [
        (slice(down, down + rows), slice(right, right + columns))
        for down in (0, rows)
        for right in (0, columns)
    ]
    parts = [  # copies in one piece, since products of strided complex numbers are slow
        (spectrum[(..., *quarter)].contiguous(), waves[(..., *quarter)].contiguous() / 4)
        for quarter in quarters
    ]
    total = parts[0][0] * parts[0][1]
    for spectra, others in parts[1:]:
        total = torch.addcmul(total, spectra, others)
    return total


def _smoothed(images: Tensor, step: int) -> Tensor:
    """Images (..., rows, columns), one value for ``step`` pixels, times phi, at every fourth pixel.

    phi is separable, so that this is a product with a matrix on each side.
    """
    rows, columns = (_averages(side * step, step, images.device, images.dtype) for side in images.shape[-2:])
    return rows @ images @ columns.mT


@functools.lru_cache(maxsize=64)
def _averages(side: int, step: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The matrix (kept, side / step) of phi along one padded side, without the padding."""
    at = np.arange(side // step) * step
    centres = np.arange(_PAD, side - _PAD, STRIDE)
    away = at[None, :] - centres[:, None]
    std = _WIDTH * 2 ** (SCALES - 1)
    wrapped = sum(np.exp(-((away + wrap * side) ** 2) / (2 * std**2)) for wrap in range(-_WRAPS, _WRAPS + 1))
    return torch.as_tensor(wrapped * step / (math.sqrt(2 * math.pi) * std)).to(device, dtype)


@functools.lru_cache(maxsize=64)
def _waves(rows: int, columns: int, device: torch.device, dtype: torch.dtype, scale: int) -> Tensor:
    """The spectra (angles, rows, columns) of the Morlet waves of a scale: complex, without imaginary part."""
    spectra = [np.fft.fft2(morlet(rows, columns, scale, angle)).real for angle in range(ANGLES)]
    return torch.as_tensor(np.stack(spectra)).to(device, dtype.to_complex())


def morlet(rows: int, columns: int, scale: int, angle: int) -> npt.NDArray[np.complex128]:
    """A Morlet wave (rows, columns), periodic, with its centre at (0, 0): a Gabor wave without mean."""
    std, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    wave, envelope = (_gabor(rows, columns, std, theta, each) for each in (frequency, 0.0))
    found: npt.NDArray[np.complex128] = wave - wave.sum() / envelope.sum() * envelope
    return found


def _gabor(rows: int, columns: int, std: float, theta: float, frequency: float) -> npt.NDArray[np.complex128]:
    """A wave along ``theta`` under a Gaussian that is 1 / slant times as wide across it."""
    cosine, sine = math.cos(theta), math.sin(theta)
    total = np.zeros((rows, columns), np.complex128)
    for down in range(-_WRAPS, _WRAPS + 1):
        for right in range(-_WRAPS, _WRAPS + 1):
            y, x = np.mgrid[down * rows : (down + 1) * rows, right * columns : (right + 1) * columns]
            along, across = cosine * y + sine * x, cosine * x - sine * y
            decay = -(along**2 + (_SLANT * across) ** 2) / (2 * std**2)
            total += np.exp(decay + 1j * frequency * along)
    return total / (2 * math.pi * std**2 / _SLANT)
