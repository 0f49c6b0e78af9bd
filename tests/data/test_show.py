"""The PNG grid shows the images, in reading order."""

import numpy as np
import pytest
from matplotlib import image

from fedpriv._check import ArgumentError
from fedpriv.data import load
from fedpriv.data.show import save_grid


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


def test_bad_arguments(tmp_path):
    with pytest.raises(ArgumentError, match="at least one"):
        save_grid(load("digits"), np.array([], np.int64), tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="below 1437"):
        save_grid(load("digits"), np.array([1437]), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []
