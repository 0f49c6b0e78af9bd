"""The index rule, compared with a plain per-pixel reading of it."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import DataError, load
from fedpriv.data.datasets import deformation
from fedpriv.data.datasets.digits import digits
from fedpriv.data.datasets.infinite_mnist import InfiniteMNIST, read_floats

F = np.float32


def shift_up(p):
    return [p[j + 28] if j + 28 < 784 else 0 for j in range(784)]


def shift_down(p):
    return [p[j - 28] if j >= 28 else 0 for j in range(784)]


def shift_left(p):
    moved = [0] * 784
    for j in range(783):
        moved[j] = 0 if j % 28 == 0 else p[j + 1]
    return moved


def shift_right(p):
    moved = [0] * 784
    for j in range(1, 784):
        moved[j] = 0 if j % 28 == 1 else p[j - 1]
    return moved


SHIFTS = [
    [shift_up],
    [shift_down],
    [shift_left],
    [shift_right],
    [shift_up, shift_left],
    [shift_up, shift_right],
    [shift_down, shift_left],
    [shift_down, shift_right],
    [],
]


def plain(i, images, n_test, fields, tangents, alpha=1.0):
    """Image i of ``images`` (test first, then train), one pixel at a time: 784 Python ints."""
    n_train = len(images) - n_test
    if i < len(images):
        return [int(v) for v in images[i].ravel()]
    k1 = ((i & 0xFFFFFFFF) * 131071 & 0xFFFFFFFF) % (len(fields) - 1)
    k2 = (k1 + 1 + 2 * i) % len(fields)
    a = (i - n_test) % n_train
    strength = F(-alpha) if (k1 + k2) % 2 else F(alpha)
    pixels = []
    for j in range(784):
        bend = F(F(fields[k1][j] * tangents[a][0][j]) - F(fields[k2][j] * tangents[a][1][j]))
        value = F(F(images[n_test + a].ravel()[j]) + F(strength * bend))
        pixels.append(0 if value < 0 else 255 if value > 255 else int(value))
    for shift in SHIFTS[k1 % 9]:
        pixels = shift(pixels)
    return pixels


def random_case(seed, n_fields, n_test=3, n_train=7):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n_test + n_train, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, n_test + n_train)
    fields = rng.normal(0, 1.3, (n_fields, 784)).astype(F)
    tangents = rng.normal(0, 40, (n_train, 2, 784)).astype(F)
    return images, labels, fields, tangents


def build(images, labels, n_test, fields, tangents, alpha=1.0):
    return InfiniteMNIST(
        "toy",
        images[n_test:],
        labels[n_test:],
        images[:n_test],
        labels[:n_test],
        alpha=alpha,
        fields=torch.from_numpy(fields),
        tangents=None if tangents is None else torch.from_numpy(tangents),
    )


@pytest.mark.parametrize(("n_fields", "alpha"), [(1522, 1.0), (20, 0.7), (7, 1.0), (2, 2.5)])
def test_rule_on_random_fields_and_tangents(n_fields, alpha):
    images, labels, fields, tangents = random_case(1, n_fields)
    source = build(images, labels, 3, fields, tangents, alpha)
    # All nine translations, 32-bit wrap-around and 64-bit indices; 2^32 + 5 and 5 differ in k2 only.
    indices = [*range(0, 40), 2**32 - 1, 2**32 + 5, 2**33 + 11, 7 * 10**10, 10**12 + 7, 2**61 + 3]
    got = source.pixels(np.array(indices)).numpy().reshape(-1, 784)
    k1 = {((i & 0xFFFFFFFF) * 131071 & 0xFFFFFFFF) % max(n_fields - 1, 1) % 9 for i in indices[10:]}
    assert n_fields < 1522 or k1 == set(range(9))
    for row, i in zip(got, indices, strict=True):
        assert row.tolist() == plain(i, images, 3, fields, tangents, alpha), i
    rows = [i if i < 10 else 3 + (i - 3) % 7 for i in indices]
    assert source.batch(np.array(indices)).y.tolist() == labels[rows].tolist()
    assert source.labels(np.array(indices)).tolist() == labels[rows].tolist()


def test_rule_with_computed_tangents():
    images, labels, fields, _ = random_case(2, 1522)
    computed = deformation.tangents(torch.from_numpy(images[3:])).numpy()
    source = build(images, labels, 3, fields, None)
    indices = np.array([0, 5, 10, 4711, 10**9 + 1])
    got = source.pixels(indices).numpy().reshape(-1, 784)
    for row, i in zip(got, indices.tolist(), strict=True):
        assert row.tolist() == plain(i, images, 3, fields, computed)


def test_horizontal_edges_of_the_original():
    """A zero field leaves only the translation; the edges are those of the original program."""
    image = np.arange(784).reshape(1, 28, 28).astype(np.uint8) | 1  # nowhere black
    zeros = np.zeros((1522, 784), F)
    still = np.zeros((1, 2, 784), F)
    source = build(np.concatenate([image, image]), np.array([0, 0]), 1, zeros, still)
    number = {((i & 0xFFFFFFFF) * 131071 & 0xFFFFFFFF) % 1521 % 9: i for i in range(2, 300)}
    up, down, left, right, *_ = (source.pixels(np.array([number[t]]))[0].numpy() for t in range(9))
    p = image[0]
    assert (up[27] == 0).all()
    assert (up[:27] == p[1:]).all()
    assert (down[0] == 0).all()
    assert (down[1:] == p[:27]).all()
    assert (left[:, 0] == 0).all()
    assert left[27, 27] == 0
    assert (left[:27, 27] == p[1:, 0]).all()
    assert (left[:, 1:27] == p[:, 2:]).all()
    assert (right[:, 1] == 0).all()
    assert right[0, 0] == 0
    assert (right[1:, 0] == p[:27, 27]).all()
    assert (right[:, 2:] == p[:, 1:27]).all()
    assert (source.pixels(np.array([number[8]]))[0].numpy() == p).all()


@pytest.fixture(scope="module")
def infinite():
    return load("infinite-digits")


@settings(max_examples=40)
@given(indices=st.lists(st.integers(0, 2**60), min_size=1, max_size=40), data=st.data())
def test_image_depends_only_on_its_index(indices, data):
    source = load("infinite-digits")
    x, y = source.batch(np.array(indices))
    k = data.draw(st.integers(0, len(indices) - 1))
    alone = source.batch(np.array([indices[k]]))
    assert torch.equal(x[k], alone.x[0])
    assert y[k] == alone.y[0]
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert source.labels(np.array(indices)).tolist() == y.tolist()


def test_batch_is_the_bytes_over_255(infinite):
    indices = np.arange(100_000, 100_300)
    x = infinite.batch(indices).x
    pixels = infinite.pixels(indices)
    assert pixels.dtype == torch.uint8
    assert torch.allclose(x[:, 0], pixels / 255, atol=1e-7)
    assert torch.equal((x[:, 0] * 255).round().to(torch.uint8), pixels)
    assert float(x.max()) == 1.0


def test_first_copies_are_the_base_images_and_later_ones_differ(infinite):
    x, _, test_x, test_y = digits()
    assert (infinite.pixels(np.arange(360)).numpy() == test_x).all()
    assert infinite.test().y.tolist() == test_y.tolist()
    train = np.arange(360, 360 + 1437)
    assert (infinite.pixels(train).numpy() == x).all()
    moved = infinite.pixels(train + 1437 * 5).float() - infinite.pixels(train).float()
    assert float(moved.abs().flatten(1).amax(1).min()) > 60  # every image is visibly deformed
    assert infinite.labels(train).tolist() == infinite.labels(train + 1437 * 10**9).tolist()


def test_known_images(infinite):
    """These values never change: with another seed, field or tangent, old results would be of other data."""
    total = infinite.pixels(np.array([360, 1797, 10**6, 10**12])).flatten(1).long().sum(1)
    assert total.tolist() == [33581, 36517, 30503, 28412]
    many = infinite.pixels(np.arange(360, 3360)).numpy().tobytes()
    assert hashlib.sha256(many).hexdigest()[:16] == "b8a653a62e879e49"


def test_bad_arguments(infinite):
    with pytest.raises(ArgumentError, match=r"indices is -1; .* at least 0"):
        infinite.batch(np.array([3, -1]))
    with pytest.raises(ArgumentError, match="whole numbers"):
        infinite.batch(np.array([0.5]))
    with pytest.raises(ArgumentError, match="whole numbers"):
        infinite.batch(np.zeros((2, 2), np.int64))
    assert infinite.batch(np.array([], np.int64)).x.shape == (0, 1, 28, 28)
    base = digits()
    with pytest.raises(DataError, match="tangents"):
        InfiniteMNIST("toy", *base, tangents=torch.zeros(3, 2, 784))
    with pytest.raises(DataError, match="fields"):
        InfiniteMNIST("toy", *base, fields=torch.zeros(5, 784, dtype=torch.float64))
    with pytest.raises(DataError, match="one whole number"):
        InfiniteMNIST("toy", base[0], base[1][:-1], base[2], base[3])


def test_float_file_is_mapped_and_its_size_checked(tmp_path):
    values = np.arange(2 * 3, dtype="<f4").reshape(2, 3)
    (tmp_path / "f.bin").write_bytes(values.tobytes())
    assert read_floats(tmp_path / "f.bin", 2, 3).tolist() == values.tolist()
    with pytest.raises(DataError, match="24 bytes where 28"):
        read_floats(tmp_path / "f.bin", 7)


@pytest.mark.data
def test_real_mnist_and_the_authors_files(tmp_path, data):
    """The authors' binary files are used if they exist, and the images follow the rule byte for byte."""
    (tmp_path / "mnist").symlink_to(data / "mnist")
    computed = load("infinite-mnist", tmp_path)
    assert computed.first == 10_000
    assert computed.base_size == 60_000
    rng = np.random.default_rng(3)
    fields = rng.normal(0, 1, (1522, 784)).astype("<f4")
    where = tmp_path / "infinite-mnist"
    where.mkdir()
    (where / "fields_float_1522x28x28.bin").write_bytes(fields.tobytes())
    with pytest.raises(DataError, match="both"):
        load("infinite-mnist", tmp_path)
    # A sparse file, so that 376 MB take no space: only the requested images have tangents.
    tangents = {}
    path = where / "tangVec_float_60000x28x28.bin"
    with path.open("wb") as file:
        file.truncate(60_000 * 2 * 784 * 4)
        for a in (0, 17, 59_999):
            tangents[a] = rng.normal(0, 40, (2, 784)).astype("<f4")
            file.seek(a * 2 * 784 * 4)
            file.write(tangents[a].tobytes())
    given_files = load("infinite-mnist", tmp_path)
    base = [given_files.pixels(np.array([10_000 + a])).numpy()[0] for a in (0, 17, 59_999)]
    for a, image in zip((0, 17, 59_999), base, strict=True):
        i = 10_000 + a + 60_000 * 123_457
        got = given_files.pixels(np.array([i])).numpy().ravel().tolist()
        assert got == plain_one(i, image, fields, tangents[a])
        assert got != computed.pixels(np.array([i])).numpy().ravel().tolist()


def plain_one(i, image, fields, tangent):
    """``plain`` for MNIST's sizes, given the one base image and tangent that index i shows."""

    class One:
        def __init__(self, value, length):
            self.value, self.length = value, length

        def __len__(self):
            return self.length

        def __getitem__(self, _):
            return self.value

    return plain(i, One(image, 70_000), 10_000, fields, One(tangent, 60_000))


@pytest.mark.data
def test_mnist_indices_are_test_then_train(data):
    source, mnist = load("infinite-mnist", data), load("mnist", data)
    assert torch.equal(source.batch(np.arange(100)).x, mnist.test().x[:100])
    assert torch.equal(source.batch(np.arange(10_000, 10_100)).x, mnist.batch(np.arange(100)).x)
    assert source.labels(np.array([10_000, 70_000, 10_000 + 60_000 * 10**6])).tolist() == [5, 5, 5]
