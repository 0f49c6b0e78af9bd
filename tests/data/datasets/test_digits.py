"""The bundled digits at 28x28: balanced, disjoint, legible to a model."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedpriv.data import load
from fedpriv.data.datasets.digits import digits


def test_parts_are_disjoint_balanced_and_complete():
    x, y, test_x, test_y = digits()
    assert (x.shape, test_x.shape) == ((1437, 28, 28), (360, 28, 28))
    assert np.bincount(test_y).min() >= 30
    assert np.bincount(y).min() >= 130
    together = np.concatenate([y, test_y])
    assert np.bincount(together).tolist() == np.bincount(load_digits().target).tolist()
    assert not {image.tobytes() for image in x} & {image.tobytes() for image in test_x}


def test_images_resemble_their_originals():
    x = digits()[0].astype(float)
    originals = load_digits().images
    small = originals[np.arange(len(originals)) % 50 >= 10]
    # 28 pixels hold 11.2 of the old ones; sample the new image where the old pixels have their centres.
    at = np.rint((np.arange(8) - 3.5) * 2.5 + 13.5).astype(int)
    correlation = np.corrcoef(x[:, at][:, :, at].ravel(), small.ravel())[0, 1]
    assert correlation > 0.9


def test_digits_lie_within_a_margin_and_use_the_full_range():
    x = digits()[0]
    assert x.max() == 255
    assert x.min() == 0
    assert x[:, [0, 1, 26, 27]].max() == 0
    assert x[:, :, [0, 1, 26, 27]].max() == 0
    assert 20 < x.mean() < 60  # MNIST's mean is 33


def test_a_linear_model_learns_them():
    """Non-private softmax regression on 10,000 generated images: over 90 % on the held-out digits."""
    source = load("infinite-digits")
    test_x, test_y = source.test()
    weights = torch.zeros(785, 10, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.01)
    order = 360 + np.random.default_rng(0).permutation(20_000)

    def logits(x):
        return torch.cat([x.flatten(1), torch.ones(len(x), 1)], 1) @ weights

    for start in range(0, 20_000, 250):
        x, y = source.batch(order[start : start + 250])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits(x), y).backward()
        optimizer.step()
    accuracy = (logits(test_x).argmax(1) == test_y).float().mean()
    assert accuracy > 0.9
