"""CIFAR's binary records."""

import numpy as np
import pytest

from fedpriv.data import DataError, load
from fedpriv.data.datasets.cifar import CIFAR_10, CIFAR_100, parse


def records(labels, seed=0):
    """Records with the label bytes ``labels`` (n, k), and their pixels (n, 3, 32, 32)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    rows = [bytes(label) + image.tobytes() for label, image in zip(labels, pixels, strict=True)]
    return b"".join(rows), pixels


@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
def test_images_come_file_after_file(tmp_path, name):
    files, labels = (CIFAR_10, [[3], [9]]) if name == "cifar-10" else (CIFAR_100, [[19, 3], [0, 99]])
    (tmp_path / name).mkdir()
    expected = []
    for seed, file in enumerate(files):
        data, pixels = records(labels, seed)
        (tmp_path / name / file).write_bytes(data)
        expected.append(pixels)
    source = load(name, tmp_path)
    assert (source.size, source.shape) == (2 * len(files) - 2, (3, 32, 32))
    assert source.classes == int(name[6:])
    x, y = source.batch(np.arange(source.size))
    assert np.array_equal((x * 255).round().numpy(), np.concatenate(expected[:-1]))
    assert y.tolist() == [label[-1] for label in labels] * (len(files) - 1)
    assert np.array_equal((source.test().x * 255).round().numpy(), expected[-1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "records of 3073 bytes"),
        (bytes(3072), "records of 3073 bytes"),
        (bytes(3074), "records of 3073 bytes"),
        (bytes([10]) + bytes(3072), r"labels must lie in 0\.\.9"),
    ],
)
def test_damage_is_named(data, message):
    with pytest.raises(DataError, match=f"toy: .*{message}"):
        parse(data, 1, 10, "toy")
