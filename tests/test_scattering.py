"""Scattering features against sums over pixels, and what they promise about examples beside each other."""

import math

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.scattering import CHANNELS, feature_shape, morlet, scattering

PAD = 4


def wave_by_definition(side, scale, angle):
    """A Morlet wave on a torus of ``side`` pixels, from the formula in coordinates along and across it."""
    std, frequency, slant = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale, 0.5
    theta = (3 - angle) * math.pi / 8
    at = np.arange(-3 * side, 3 * side)
    y, x = np.meshgrid(at, at, indexing="ij")
    along = y * math.cos(theta) + x * math.sin(theta)
    across = x * math.cos(theta) - y * math.sin(theta)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * std**2)) * slant / (2 * math.pi * std**2)
    gabor = envelope * np.exp(1j * frequency * along)
    wave = gabor - envelope * gabor.sum() / envelope.sum()
    return wave.reshape(6, side, 6, side).sum((0, 2))


def convolved(image, kernel):
    """The circular convolution, as a sum of shifted images."""
    total = np.zeros(image.shape, np.complex128)
    for row, column in np.ndindex(kernel.shape):
        total += kernel[row, column] * np.roll(image, (row, column), (0, 1))
    return total


def low_pass(image, step):
    side, at = image.shape[0] * step, np.arange(-2 * image.shape[0] * step, 2 * image.shape[0] * step)
    bell = np.exp(-(at**2) / (2 * 1.6**2)) / math.sqrt(2 * math.pi) / 1.6
    bell = bell.reshape(4, side).sum(0)[::step] * step
    kept = convolved(image, np.outer(bell, bell)).real[:: 4 // step, :: 4 // step]
    return kept[1:-1, 1:-1]


def by_definition(image):
    """The 81 channels of one square image, one convolution at a time."""
    padded = np.pad(image, PAD, mode="reflect")
    waves = [[wave_by_definition(len(padded), scale, angle) for angle in range(8)] for scale in (0, 1)]
    first = [np.abs(convolved(padded, wave)) for wave in waves[0]]
    second = [np.abs(convolved(padded, wave))[::2, ::2] for wave in waves[1]]
    third = [np.abs(convolved(image, wave))[::2, ::2] for image in first for wave in waves[1]]
    channels = [low_pass(padded, 1), *(low_pass(each, 1) for each in first)]
    return np.stack([*channels, *(low_pass(each, 2) for each in (*second, *third))])


def test_the_features_are_those_of_the_definition():
    image = np.random.default_rng(0).uniform(0, 1, (12, 12))
    found = scattering(torch.as_tensor(image)[None, None])[0].numpy()
    assert found.shape == (81, 3, 3)
    assert np.abs(found - by_definition(image)).max() < 1e-6


def test_waves_have_no_mean_and_turn_by_their_angle():
    for scale in (0, 1):
        assert all(abs(morlet(32, 32, scale, angle).sum()) < 1e-12 for angle in range(8))
    stripes = torch.tensor([1.0, 1.0, 0.0, 0.0]).repeat(7)[:, None].expand(28, 28)[None, None]
    energy = scattering(stripes.contiguous())[0].sum((1, 2))
    assert int(energy[9:17].argmax()) == 3  # the angle that is along the rows
    assert int(scattering(stripes.mT.contiguous())[0].sum((1, 2))[9:17].argmax()) == 7


def test_the_features_of_an_image_do_not_depend_on_those_beside_it():
    x = torch.rand(5, 2, 16, 8, generator=torch.Generator().manual_seed(0))
    x[4] = torch.nan
    together = scattering(x)
    assert together.shape == (5, 2 * CHANNELS, 4, 2)
    for i in range(4):
        assert torch.allclose(together[i], scattering(x[i : i + 1])[0], atol=1e-6)


def test_channels_of_an_image_are_transformed_one_by_one():
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    apart = torch.cat([scattering(x[:, c : c + 1]) for c in range(3)], 1)
    assert torch.allclose(scattering(x), apart, atol=1e-6)


@pytest.mark.parametrize("shape", [(10,), (1, 30, 28), (1, 28, 4), (28, 28)])
def test_other_inputs_are_refused(shape):
    with pytest.raises(ArgumentError, match=r"at least 8 .scattering features need images"):
        feature_shape(shape)
