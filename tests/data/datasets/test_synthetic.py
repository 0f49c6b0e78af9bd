"""synthetic(1, 1): the recipe of Li et al. 2020, a device at a time."""

import numpy as np

from fedpriv.data import load
from fedpriv.data.datasets.synthetic import device


def test_a_device_follows_from_its_number_alone():
    few, many = load("synthetic-1-1", devices=4), load("synthetic-1-1", devices=9)
    size = few.size
    assert many.owners[:size].tolist() == few.owners.tolist()
    assert (many.batch(np.arange(size)).x == few.batch(np.arange(size)).x).all()
    assert len(set(load("synthetic-1-1").owners.tolist())) == 30


def test_the_last_tenth_of_each_device_is_public():
    source, sizes = load("synthetic-1-1", devices=5), [len(device(k)[1]) for k in range(5)]
    assert np.bincount(source.owners).tolist() == [size - size // 10 for size in sizes]
    assert len(source.test().y) == sum(size // 10 for size in sizes)
    first = device(0)[0]
    assert (source.test().x[: sizes[0] // 10].numpy() == first[sizes[0] - sizes[0] // 10 :]).all()


def test_sizes_inputs_and_labels_have_the_recipes_laws():
    """Of 400 devices: half have more than 50 + e^4 examples; the largest spread of feature j is j^-0.6."""
    made = [device(number) for number in range(400)]
    sizes = np.array([len(y) for _, y in made])
    assert sizes.min() >= 50
    assert sizes.max() == 500
    assert abs((sizes > 50 + np.exp(4)).mean() - 0.5) < 0.1
    within = np.sqrt(np.mean([x.var(0, ddof=1) for x, _ in made], 0))
    assert np.allclose(within, np.arange(1, 61) ** -0.6, rtol=0.1)
    means = np.array([x.mean(0) for x, _ in made])
    assert abs(means.mean(1).std() - np.sqrt(1 + 1 / 60)) < 0.15  # the centres B_k
    assert abs((means - means.mean(1, keepdims=True)).std() - 1) < 0.05  # v_k around them


def test_labels_are_those_of_a_linear_rule_of_each_device():
    """A device's own least squares on one-hot labels fits better than that of another device."""
    own, others = [], []
    for number in range(20):
        (x, y), (z, w) = device(number), device(number + 1)
        columns = [np.column_stack([part, np.ones(len(part))]) for part in (x, z)]
        rule = np.linalg.lstsq(columns[0], np.eye(10)[y], rcond=None)[0]
        own.append(((columns[0] @ rule).argmax(1) == y).mean())
        others.append(((columns[1] @ rule).argmax(1) == w).mean())
    assert np.mean(own) > 0.8 > 0.4 > np.mean(others)
