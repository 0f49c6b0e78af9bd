"""Features from patches of made-up images: they follow from the image alone, as they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Arrays, DataError, hugging_face, patches
from fedpriv.data.dead_leaves import dead_leaves
from fedpriv.data.features import with_features

IMAGES = torch.from_numpy(np.random.default_rng(0).uniform(0, 1, (40, 1, 12, 14))).float()
SOURCE = Arrays("mine", IMAGES, np.arange(40) % 10, IMAGES[:5], np.arange(5), 10)


@pytest.fixture(scope="module", autouse=True)
def few_leaves() -> Iterator[None]:
    """A dictionary of few images, which takes a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patches, "_IMAGES", 200)
        forget()
        yield
    forget()


def forget() -> None:
    for cached in (patches._dictionary, patches._dictionary_as):
        cached.cache_clear()


def test_dead_leaves_repeat_by_seed_and_have_edges_and_plain_areas() -> None:
    images = dead_leaves(30)
    assert images.shape == (30, 3, 32, 32)
    assert 0 <= float(images.min()) < 0.1 < 0.9 < float(images.max()) <= 1
    assert torch.equal(images, dead_leaves(30))
    assert torch.equal(images[:3], dead_leaves(3))
    assert not torch.equal(images[:3], dead_leaves(3, seed=1))
    steps = images.diff(dim=3).abs().mean(1)
    assert float(steps.quantile(0.5)) < 0.03 < 0.1 < float(steps.quantile(0.98))
    grey = (images.mean(1) - images.mean()).flatten(0, 1)
    near, far = (float((grey[:, :-k] * grey[:, k:]).mean() / grey.square().mean()) for k in (1, 16))
    assert far < 0.4 < 0.85 < near


def test_an_answer_is_a_product_with_a_patch_of_unit_contrast() -> None:
    filters, _ = patches._filters(dead_leaves(60))
    images = dead_leaves(2, seed=5)
    found = patches._answers(images, filters)
    assert found.shape == (2, 600, 25, 25)
    torch.testing.assert_close(filters.flatten(1).sum(1), torch.zeros(600), atol=1e-4, rtol=0)
    for image, row, column in ((0, 0, 0), (1, 24, 3), (1, 7, 24)):
        patch = images[image, :, row : row + 8, column : column + 8].flatten().double()
        patch = (patch - patch.mean()) / (patch.var(correction=0) + 0.01).sqrt()
        wanted = filters.flatten(1).double() @ patch
        torch.testing.assert_close(found[image, :, row, column].double(), wanted, atol=1e-4, rtol=1e-4)


def test_areas_have_the_mean_of_what_exceeds_the_threshold_of_either_sign() -> None:
    filters, threshold = patches._filters(dead_leaves(60))
    images = dead_leaves(2, seed=5)
    found, answers = patches._pooled(images, filters, threshold), patches._answers(images, filters)
    corner = answers[:, :, :9, 16:]  # of 25 places on a side, 9 belong to an area
    assert found.shape == (2, 1200, 3, 3)
    over, under = ((sign * corner - threshold).clamp(min=0).mean((2, 3)) for sign in (1, -1))
    torch.testing.assert_close(found[:, :, 0, 2], torch.cat([over, under], 1))
    assert 0.05 < float((answers.abs() > threshold).float().mean()) < 0.6


@pytest.mark.parametrize("mirrored", [False, True])
def test_components_of_dead_leaves_have_mean_0_variance_1_and_no_correlation(mirrored: bool) -> None:
    images = dead_leaves(200).mean(1, keepdim=True)
    rows = patches.patch_features(images, mirrored=mirrored).flatten(2).mT.flatten(0, 1).double()
    assert rows.shape == (1800, 250)
    torch.testing.assert_close(rows.mean(0), torch.zeros(250).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(torch.cov(rows.T), torch.eye(250).double(), atol=5e-3, rtol=0)


def test_mirrored_features_are_those_of_the_mirror_image() -> None:
    found, other = (
        patches.patch_features(images, mirrored=True) for images in (IMAGES[:6], IMAGES[:6].flip(3))
    )
    torch.testing.assert_close(found, other, atol=1e-4, rtol=1e-4)
    found, other = (patches.patch_features(images) for images in (IMAGES[:6], IMAGES[:6].flip(3)))
    assert float((found - other).abs().max()) > 0.1


@pytest.mark.parametrize("kind", ["patches", "patches-mirrored"])
def test_the_bits_of_an_examples_features_do_not_depend_on_its_batch(kind: str) -> None:
    source = with_features(SOURCE, kind)
    whole = source.batch(np.arange(40)).x
    assert whole.shape == (40, 250, 3, 3)
    for some in (np.array([0]), np.array([7]), np.arange(40)[::-1].copy(), np.arange(3, 38)):
        assert torch.equal(source.batch(some).x, whole[torch.from_numpy(some)])


def test_features_of_test_examples_are_kept_and_checked(tmp_path: Path) -> None:
    wanted = with_features(SOURCE, "patches").test()
    assert torch.equal(with_features(SOURCE, "patches", tmp_path).test().x, wanted.x)
    [path] = tmp_path.rglob("test.f16")
    kept = with_features(SOURCE, "patches", tmp_path).test()
    assert torch.equal(kept.x, wanted.x)
    assert torch.equal(kept.y, wanted.y)
    rows = np.fromfile(path, np.float16)
    path.write_bytes(np.roll(rows, 250).tobytes())
    with pytest.raises(DataError, match="has the features of other data"):
        with_features(SOURCE, "patches", tmp_path).test()
    path.write_bytes(rows[1:].tobytes())
    with pytest.raises(DataError, match="is damaged"):
        with_features(SOURCE, "patches", tmp_path).test()


def test_images_of_other_shapes_are_refused() -> None:
    for shape in ((2, 12, 12), (1, 9, 12)):
        x = np.zeros((2, *shape), np.float32)
        with pytest.raises(ArgumentError, match="1 or 3 channels and sides of at least 10"):
            with_features(Arrays("others", x, [0, 1], x, [0, 1], 2), "patches")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs CIFAR-10 (JPEG) under FEDPRIV_DATA")
def test_a_linear_model_of_few_photographs_names_half_of_others_by_their_features() -> None:
    """Ridge regression on 2,000 training images, where guessing names a tenth."""
    source = hugging_face(Path(os.environ["FEDPRIV_DATA"]) / "cifar-10-jpeg" / "plain_text")
    images, labels = source.batch(np.arange(3000))
    rows = torch.cat([patches.patch_features(part, mirrored=True) for part in torch.split(images, 32)])
    x, targets = rows[:2000].flatten(1), torch.nn.functional.one_hot(labels[:2000], 10).float()
    weights = torch.linalg.solve(x.T @ x + 3000 * torch.eye(x.shape[1]), x.T @ targets)
    found = (rows[2000:].flatten(1) @ weights).argmax(1)
    assert float((found == labels[2000:]).double().mean()) > 0.5
