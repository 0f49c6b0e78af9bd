"""Pneumonia: folders of images, brought to one size."""

import sys

import numpy as np
import pytest

from fedpriv.data import DataError, MissingDataError, load

Image = pytest.importorskip("PIL.Image")


def write(root, **counts):
    for part in ("train", "test"):
        for level, label in ((40, "NORMAL"), (200, "PNEUMONIA")):
            folder = root / part / label
            folder.mkdir(parents=True)
            for number in range(counts.get(f"{part}_{label}", 2)):
                mode, ending = (("L", "jpeg"), ("RGB", "png"))[number % 2]
                colour = level + number if mode == "L" else (level + number,) * 3
                Image.new(mode, (30 + 7 * number, 20), colour).save(folder / f"child{number}.{ending}")
            (folder / ".DS_Store").write_bytes(b"not an image")


@pytest.mark.parametrize("top", ["pneumonia", "pneumonia/chest_xray"])
def test_images_are_grey_squares_with_their_folder_as_label(tmp_path, top):
    write(tmp_path / top, train_NORMAL=1, train_PNEUMONIA=3)
    source = load("pneumonia", tmp_path, image_size=16)
    assert (source.size, source.shape, source.classes, len(source.test().y)) == (4, (1, 16, 16), 2, 4)
    x, y = source.batch(np.arange(4))
    grey = (x * 255).round().flatten(1)
    assert (grey.max(1).values - grey.min(1).values).max() <= 1
    assert sorted(zip(grey.mean(1).round().tolist(), y.tolist(), strict=True)) == [
        (40.0, 0),
        (200.0, 1),
        (201.0, 1),
        (202.0, 1),
    ]


def test_a_picture_keeps_its_sides(tmp_path):
    write(tmp_path / "pneumonia")
    half = np.zeros((64, 128), np.uint8)
    half[:, 64:] = 255
    Image.fromarray(half).save(tmp_path / "pneumonia" / "train" / "NORMAL" / "child0.jpeg", quality=95)
    source = load("pneumonia", tmp_path, image_size=8)
    images = source.batch(np.arange(source.size)).x[:, 0]
    (picture,) = [image for image in images if image.max() > 0.95]
    assert picture[:, :3].max() < 0.1 < 0.9 < picture[:, 5:].min()


def test_errors_name_the_damage_but_no_file(tmp_path):
    with pytest.raises(MissingDataError, match=r"ChestXRay2017\.zip"):
        load("pneumonia", tmp_path)
    write(tmp_path / "pneumonia", test_NORMAL=0)
    with pytest.raises(DataError, match="NORMAL has no images"):
        load("pneumonia", tmp_path, image_size=8)
    (tmp_path / "pneumonia" / "train" / "PNEUMONIA" / "child0.jpeg").write_bytes(b"\xff\xd8 cut")
    with pytest.raises(DataError, match="PNEUMONIA has a damaged image") as caught:
        load("pneumonia", tmp_path, image_size=8)
    assert "child0" not in str(caught.value)


def test_the_error_without_pillow_names_the_package(tmp_path, monkeypatch):
    write(tmp_path / "pneumonia")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'fedpriv\[images\]'"):
        load("pneumonia", tmp_path)
