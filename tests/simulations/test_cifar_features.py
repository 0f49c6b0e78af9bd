"""simulations/cifar_features.py: an image's features are its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.scripts import script

from fedpriv.data import hugging_face


@pytest.mark.parametrize("side", [2, 3])
def test_features_depend_on_their_image_alone(side: int) -> None:
    transformed = script("cifar_features.py").transformed
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = transformed(images, side)
    assert found.shape == (5, 243 * side**2)
    torch.testing.assert_close(found.mean(1), torch.zeros(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.var(1, correction=0), torch.ones(5), atol=1e-2, rtol=0)
    others = torch.cat([images[:1], images.new_zeros(1, 3, 32, 32), images[3:] * 0.1])
    torch.testing.assert_close(transformed(others, side)[:1], found[:1])


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs CIFAR-10 (JPEG) under FEDPRIV_DATA")
def test_a_linear_model_of_few_images_names_half_of_others_by_their_features() -> None:
    """Least squares on 3,000 training images, where guessing names a tenth."""
    transformed = script("cifar_features.py").transformed
    source = hugging_face(Path(os.environ["FEDPRIV_DATA"]) / "cifar-10-jpeg" / "plain_text")
    images, labels = source.batch(np.arange(4000))
    rows = torch.cat([transformed(part, 3) for part in torch.split(images, 32)]).double()
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    x, targets = rows[:3000], torch.nn.functional.one_hot(labels[:3000], 10).double()
    weights = torch.linalg.solve(x.T @ x + 100 * torch.eye(x.shape[1], dtype=x.dtype), x.T @ targets)
    assert float(((rows[3000:] @ weights).argmax(1) == labels[3000:]).double().mean()) > 0.45
