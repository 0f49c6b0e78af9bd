"""The PNG grid shows the images, in reading order; a table shows what are no images."""

import numpy as np
import pytest
from matplotlib import image

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Arrays, DataError, load, preview
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
    last = np.zeros((1, 6, 5, 3), np.float32)
    with pytest.raises(ArgumentError, match=r"channels come first: x.transpose\(0, 3, 1, 2\)"):
        save_grid(Arrays("toy", last, labels, last, labels, 1), np.array([0]), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def arrays(x, y, **about):
    return Arrays("toy", x, y, x, y, **about)


TABLES = [
    (arrays(np.array([[5, 3, 0, 0]]), np.array([1]), classes=2, tokens=(9,)), ["5 3 (length 2)", "1"]),
    (
        arrays(np.array([[4, 6]]), np.array([2.5]), tokens=(5, 7), target="value"),
        ["id 4 of 5, id 6 of 7", "2.5"],
    ),
    (
        arrays(np.array([[0.5, 0, -2]], np.float32), np.eye(3)[:1], classes=3, target="tags"),
        ["0.5 0 -2 (3 features, 2 not 0)", "0"],
    ),
    (
        arrays(
            np.array([[2, 1, 2, 0]]),
            np.array([1]),
            classes=2,
            tokens=(3,),
            vocabulary=("", "a", "b"),
            class_names=("no", "yes"),
        ),
        ["bab (length 3)", "yes"],
    ),
    (
        arrays(np.array([[2, 1, 0]]), np.array([0]), classes=1, tokens=(3,), vocabulary=("", "film", "good")),
        ["good film (length 2)", "0"],
    ),
    (
        arrays(
            np.array([[0.5, 0, 1]], np.float32),
            np.eye(3)[:1] + np.eye(3)[1:2],
            classes=3,
            target="tags",
            vocabulary=("a", "b", "c"),
            class_names=("x", "y", "z"),
        ),
        ["a c (3 features, 2 not 0)", "x y"],
    ),
    (
        arrays(np.arange(12, dtype=np.float32)[None], np.array([0]), classes=1),
        ["0 1 2 3 4 5 6 7 8 9 ... (12 features, 11 not 0)", "0"],
    ),
]


@pytest.mark.parametrize(("source", "cells"), TABLES)
def test_what_are_no_images_are_rows_of_text(source, cells):
    header, [row] = preview.rows(source, np.array([0]))
    assert header == ("index", "example", source.target)
    assert row == ["0", *cells]
    assert not preview.is_images(source)


def test_natural_clients_are_a_column():
    source = arrays(np.ones((2, 3), np.float32), np.array([0, 1]), classes=2, owners=np.array([1, 0]))
    header, rows = preview.rows(source, np.array([1]))
    assert dict(zip(header, rows[0], strict=True))["client"] == "0"


def test_size_is_limited(tmp_path):
    source = load("infinite-digits")
    many = np.arange(preview.MOST + 1) + source.first
    for show in (lambda: preview.rows(source, many), lambda: save_grid(source, many, tmp_path / "x.png")):
        with pytest.raises(ArgumentError, match="at most 1,024"):
            show()
    large = arrays(np.zeros((4, 1, 700, 700), np.uint8), np.zeros(4, np.int64), classes=1)
    for count, side in ((1, 3 * 704), (4, 2 * 1406)):
        assert image.imread(save_grid(large, np.arange(count), tmp_path / "x.png")).shape[0] == side


def test_names_are_as_many_as_what_they_name():
    x, y = np.array([[2, 1, 0]]), np.array([1])
    for names, message in (
        ({"vocabulary": ("", "a")}, "vocabulary must have 3 names; it has 2"),
        ({"class_names": ("a",)}, "class_names must have 2 names; it has 1"),
    ):
        with pytest.raises(DataError, match=message):
            arrays(x, y, classes=2, tokens=(3,), **names)


def test_numbers_outside_the_range_of_images_are_black_or_white(tmp_path):
    x = np.array([[[[-0.5, 1.5]]]], np.float32)
    source = Arrays("toy", x, np.zeros(1, np.int64), x, np.zeros(1, np.int64), 1)
    grid = image.imread(save_grid(source, np.arange(1), tmp_path / "grid.png"))[1::3, 1::3, 0]
    assert grid[2, 2:4].tolist() == [0.0, 1.0]
