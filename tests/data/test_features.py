"""A source of features: its examples, its files, and that an example's features follow from it alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Arrays, DataError, features, load
from fedpriv.data.datasets.digits import digits
from fedpriv.data.features import with_features
from fedpriv.scattering import scattering

DIGITS = load("infinite-digits")


def test_features_are_those_of_the_images_in_half_precision():
    source = with_features(DIGITS, "scattering")
    at = np.array([700, 10**9, 365])
    x, y = source.batch(at)
    images, labels = DIGITS.batch(at)
    assert torch.equal(x, scattering(images).half().float())
    assert torch.equal(y, labels)
    assert (source.first, source.size, source.shape) == (DIGITS.first, None, (81, 7, 7))
    test = source.test()
    assert torch.equal(test.x[:2], scattering(DIGITS.test().x[:2]).half().float())
    assert torch.equal(test.y, DIGITS.test().y)
    assert with_features(DIGITS, "none") is DIGITS


def test_the_bits_of_an_example_do_not_depend_on_its_batch():
    source = with_features(DIGITS, "scattering")
    at = np.arange(1000, 1045)
    whole = source.batch(at).x
    for some in (at[:1], at[7:8], at[::-1][:33].copy(), at[3:40]):
        assert torch.equal(source.batch(some).x, whole[torch.from_numpy(some - 1000)])


def test_images_are_transformed_alone_where_batches_change_bits(monkeypatch):
    sizes = []

    def by_place(x):
        sizes.append(len(x))
        return scattering(x) + torch.arange(len(x)).view(-1, 1, 1, 1) * 1e-3

    monkeypatch.setattr(features, "scattering", by_place)
    source = with_features(DIGITS, "scattering")
    x = source.batch(np.arange(400, 440)).x
    assert torch.equal(x, scattering(DIGITS.batch(np.arange(400, 440)).x).half().float())
    assert sizes[-40:] == [1] * 40


def test_images_are_transformed_alone_where_others_change_their_bits(monkeypatch):
    """The largest number of a batch is the same at every place of that batch."""
    monkeypatch.setattr(features, "scattering", lambda x: scattering(x) + x.amax() * (len(x) > 1))
    source = with_features(DIGITS, "scattering")
    x = source.batch(np.arange(400, 410)).x
    assert torch.equal(x, scattering(DIGITS.batch(np.arange(400, 410)).x).half().float())


def test_stored_features_are_those_that_are_computed(tmp_path, monkeypatch):
    at = np.array([700, 2000, 701, 512, 511, 700])
    wanted = with_features(DIGITS, "scattering").batch(at)
    source = with_features(DIGITS, "scattering", tmp_path)
    for _ in range(2):
        found = source.batch(at)
        assert torch.equal(found.x, wanted.x)
        assert torch.equal(found.y, wanted.y)
    files = sorted(path.name for path in tmp_path.rglob("*.f16"))
    assert files == ["0.f16", "1.f16", "3.f16"]  # whole blocks, whoever is asked for

    def moved(x):
        raise AssertionError

    again = with_features(DIGITS, "scattering", tmp_path)
    again.batch(at)
    monkeypatch.setattr(features, "scattering", moved)
    assert torch.equal(again.batch(at).x, wanted.x)


def test_files_of_other_data_and_damaged_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Arrays, "digest", lambda self: "")  # as of data sets that have none
    x = np.random.default_rng(0).uniform(0, 1, (600, 1, 8, 8)).astype(np.float32)
    y = np.arange(600) % 2
    mine = with_features(Arrays("mine", x, y, x[:3], y[:3], 2), "scattering", tmp_path)
    assert mine.batch(np.array([599])).x.shape == (1, 81, 2, 2)
    mine.batch(np.array([0]))
    other = with_features(Arrays("mine", x[::-1], y, x[:3], y[:3], 2), "scattering", tmp_path)
    with pytest.raises(DataError, match="has the features of other data"):
        other.batch(np.array([599]))
    path = next(tmp_path.rglob("0.f16"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged"):
        with_features(Arrays("mine", x, y, x[:3], y[:3], 2), "scattering", tmp_path).batch(np.array([0]))


def test_what_has_no_features_is_refused():
    tokens = Arrays(
        "words", np.ones((2, 3), np.int64), [0, 1], np.ones((1, 3), np.int64), [0], 2, tokens=(5,)
    )
    with pytest.raises(ArgumentError, match="features is 'scattering'; it must be none: words has tokens"):
        with_features(tokens, "scattering")
    rows = Arrays("rows", np.ones((2, 9), np.float32), [0, 1], np.ones((1, 9), np.float32), [0], 2)
    with pytest.raises(ArgumentError, match="scattering features need images"):
        with_features(rows, "scattering")
    with pytest.raises(ArgumentError, match="features is 'fourier'"):
        with_features(DIGITS, "fourier")


MINE = np.random.default_rng(0).uniform(0, 1, (40, 1, 28, 28)).astype(np.float32)
IMAGES = Arrays("mine", MINE, np.arange(40) % 10, MINE[:5], np.arange(5), 10)


def test_components_are_those_of_the_public_digits():
    """scikit-learn's decomposition of the same features has the same mean and the same directions."""
    x, _, test_x, _ = digits()
    images = torch.from_numpy(np.concatenate([x, test_x]))[:, None] / 255

    def normalised(images):
        return F.group_norm(torch.cat([scattering(part) for part in torch.split(images, 64)]), 27).flatten(1)

    own = PCA(500, svd_solver="full").fit(normalised(images).double().numpy())
    found = with_features(IMAGES, "scattering-pca").batch(np.arange(40)).x
    assert found.shape == (40, 500, 1, 1)
    wanted = own.transform(normalised(torch.from_numpy(MINE)).double().numpy())
    signs = np.sign((wanted * found.flatten(1).numpy()).sum(0))
    np.testing.assert_allclose(found.flatten(1).numpy(), wanted * signs, rtol=2e-3, atol=2e-3)


def test_the_bits_of_an_examples_components_do_not_depend_on_its_batch():
    source = with_features(IMAGES, "scattering-pca")
    whole = source.batch(np.arange(40)).x
    for some in (np.array([0]), np.array([7]), np.arange(40)[::-1].copy(), np.arange(3, 38)):
        assert torch.equal(source.batch(some).x, whole[torch.from_numpy(some)])


def test_components_are_refused_where_they_are_not_public_or_do_not_fit():
    with pytest.raises(ArgumentError, match=r"must be scattering .*digits has, so they are not public here"):
        with_features(DIGITS, "scattering-pca")
    small = Arrays("small", MINE[:, :, :8, :8], np.arange(40) % 2, MINE[:2, :, :8, :8], [0, 1], 2)
    with pytest.raises(
        ArgumentError, match=r"it is for grey images of 28x28 pixels, and small has .*\(1, 8, 8\)"
    ):
        with_features(small, "scattering-pca")


def test_files_of_other_data_in_memory_are_not_read(tmp_path):
    """A corrected image must not train on the features of the wrong one."""
    images = np.random.default_rng(0).integers(0, 256, (12, 28, 28)).astype(np.uint8)
    labels = np.zeros(12, np.int64)
    corrected = images.copy()
    corrected[5] = 255 - corrected[5]
    one, other = (
        with_features(Arrays("mine", x, labels, images[:2], labels[:2], 2), "scattering", tmp_path)
        for x in (images, corrected)
    )
    before, after = one.batch(np.arange(12)).x, other.batch(np.arange(12)).x
    changed = (before != after).flatten(1).any(1)
    assert changed.tolist() == [number == 5 for number in range(12)]


def test_features_of_images_in_another_scale_stay_finite():
    """Half precision ends at 65,504: infinite features would make every gradient count as zero."""
    x, y = torch.full((4, 1, 8, 8), 6e4) * torch.rand(4, 1, 8, 8), torch.arange(4)
    found = with_features(Arrays("large", x, y, x, y, classes=4), "scattering")
    assert torch.isfinite(found.batch(np.arange(4)).x).all()
    assert torch.isfinite(found.test().x).all()
