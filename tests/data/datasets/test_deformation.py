"""Fields and tangents: smooth, seeded, exact."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.data.datasets.deformation import AMPLITUDE, FIELDS, fields, tangents


def test_fields_have_the_amplitude_and_smoothness_documented():
    f = fields().double().view(FIELDS, 28, 28)
    # 1.2 million strongly correlated values; about 1522 * (28 / 16)^2 = 4600 independent ones.
    assert float(f.std()) == pytest.approx(AMPLITUDE, rel=0.05)
    assert abs(float(f.mean())) < 0.1
    for axis in (1, 2):
        steps = f.diff(dim=axis).std()
        # A Gaussian of std s gives sqrt(1 - exp(-1/(4 s^2))) * sqrt(2) of the amplitude a pixel.
        expected = AMPLITUDE * np.sqrt(2 * (1 - np.exp(-1 / (4 * 20))))
        assert float(steps) == pytest.approx(expected, rel=0.1)


def test_field_k_does_not_depend_on_the_number_of_fields():
    assert torch.equal(fields(3), fields()[:3])


def test_fields_differ():
    assert torch.corrcoef(fields()[:40]).fill_diagonal_(0).abs().max() < 0.9


def plain_tangents(image):
    """Sobel over 8 with zeros outside, one pixel at a time."""
    padded = np.zeros((30, 30))
    padded[1:29, 1:29] = image
    out = np.zeros((2, 28, 28), np.float32)
    for r in range(28):
        for c in range(28):
            window = padded[r : r + 3, c : c + 3]
            for k, weight in enumerate((1, 2, 1)):
                out[0, r, c] += weight * (window[k, 2] - window[k, 0]) / 8
                out[1, r, c] += weight * (window[2, k] - window[0, k]) / 8
    return out.reshape(2, 784)


@settings(max_examples=10)
@given(hnp.arrays(np.uint8, (2, 28, 28), elements=st.integers(0, 255)))
def test_tangents_equal_the_plain_twin_exactly(images):
    got = tangents(torch.from_numpy(images)).numpy()
    assert (got == np.stack([plain_tangents(image) for image in images])).all()


def test_a_tangent_moves_the_image():
    """x_a + T0 is about the image moved by one pixel: closer to it than the image itself is."""
    at = torch.arange(28.0)
    blob = 255 * torch.exp(-((at[:, None] - 14) ** 2 + (at - 14) ** 2) / 18)
    image = blob.round().to(torch.uint8)[None]
    moved = blob.roll(-1, dims=1)
    bent = image[0] + tangents(image)[0, 0].view(28, 28)
    assert (bent - moved).norm() < 0.35 * (image[0] - moved).norm()
