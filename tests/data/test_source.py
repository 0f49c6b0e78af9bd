"""Shared pieces of sources."""

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.data.source import unit_interval, whole


def test_every_byte_maps_into_the_unit_interval_and_back():
    pixels = torch.arange(256, dtype=torch.uint8).repeat(28 * 28).view(-1, 28, 28)
    x = unit_interval(pixels)
    assert x.dtype == torch.float32
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert torch.equal((x[:, 0] * 255).round().to(torch.uint8), pixels)


def test_whole():
    assert whole("n", [], below=0).dtype == np.int64
    assert whole("n", np.array([3], np.uint8), below=4).tolist() == [3]
    for bad in ([-1], [4]):
        with pytest.raises(ArgumentError, match="n is"):
            whole("n", bad, below=4)
    for bad in ([0.0], [[1]], 3, ["a"]):
        with pytest.raises(ArgumentError, match="whole numbers"):
            whole("n", bad)
