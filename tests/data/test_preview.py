"""The PNG grid shows the images, in reading order."""

import numpy as np
import pytest
from matplotlib import image

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Arrays, load
from fedpriv.data.preview import save_grid


@pytest.mark.parametrize(("count", "columns", "shape"), [(7, 0, (3, 3)), (5, 2, (3, 2)), (1, 0, (1, 1))])
def test_grid_holds_the_images(tmp_path, count, columns, shape):
    source = load("infinite-digits")
    indices = np.arange(10**6, 10**6 + count)
    path = save_grid(source, indices, tmp_path / "grid.png", columns)
    grid = image.imread(path)[1::3, 1::3, 0]
    assert grid.shape == (shape[0] * 30 + 2, shape[1] * 30 + 2)
    for k, x in enumerate(source.batch(indices).x[:, 0].numpy()):
        row, column = divmod(k, shape[1])
        tile = grid[row * 30 + 2 : row * 30 + 30, column * 30 + 2 : column * 30 + 30]
        assert ((tile * 255).round() == (x * 255).round()).all()
    assert [p.name for p in tmp_path.iterdir()] == ["grid.png"]


def test_colours_are_shown_as_colours(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 5, 7)).astype(np.uint8)
    labels = np.zeros(3, np.int64)
    source = Arrays("toy", pixels, labels, pixels, labels, 1)
    grid = image.imread(save_grid(source, np.arange(3), tmp_path / "grid.png"))[1::3, 1::3, :3]
    assert grid.shape == (2 * 7 + 2, 2 * 9 + 2, 3)
    assert ((grid[2:7, 11:18] * 255).round() == pixels[1].transpose(1, 2, 0)).all()
    assert ((grid[9:14, 2:9] * 255).round() == pixels[2].transpose(1, 2, 0)).all()


def test_bad_arguments(tmp_path):
    with pytest.raises(ArgumentError, match="at least one"):
        save_grid(load("digits"), np.array([], np.int64), tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="below 1437"):
        save_grid(load("digits"), np.array([1437]), tmp_path / "x.png")
    ids, labels = np.ones((1, 4), int), np.array([0])
    words = Arrays("words", ids, labels, ids, labels, 1, tokens=(2,))
    with pytest.raises(ArgumentError, match="dataset is 'words'; it must be of images"):
        save_grid(words, np.array([0]), tmp_path / "x.png")
    last = np.zeros((1, 6, 5, 3), np.uint8)
    with pytest.raises(ArgumentError, match=r"channels come first: x.transpose\(0, 3, 1, 2\)"):
        save_grid(Arrays("toy", last, labels, last, labels, 1), np.array([0]), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []
