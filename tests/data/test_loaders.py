"""From names to sources, and clear errors when files are missing."""

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import DataError, MissingDataError, data_folder, idx, load, names
from fedpriv.data.catalogue import card
from fedpriv.data.datasets.infinite_mnist import FIELDS_FILE
from fedpriv.data.datasets.mnist import IDX_FILES
from fedpriv.data.loaders import at_hand, options


def write_toy(folder, zipped=True, n=6):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in zip(IDX_FILES, (n, n, 2, 2), strict=True):
        array = rng.integers(0, 256, (count, 28, 28)) if "images" in name else np.arange(count) % 10
        idx.write(folder / (name + ".gz" if zipped else name), array.astype(np.uint8))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_sets(tmp_path, monkeypatch, name, zipped):
    write_toy(tmp_path / name, zipped)
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    source = load(name)
    assert (source.name, source.size, source.first, source.classes) == (name, 6, 0, 10)
    x, y = source.batch(np.array([5, 0, 5]))
    assert y.tolist() == [5, 0, 5]
    assert torch.equal(x[0], x[2])
    assert not torch.equal(x[0], x[1])
    assert source.test().y.tolist() == [0, 1]
    with pytest.raises(ArgumentError, match=r"indices is 6; .* below 6"):
        source.batch(np.array([6]))


def test_infinite_mnist_over_any_base(tmp_path):
    write_toy(tmp_path / "mnist")
    source = load("infinite-mnist", tmp_path)
    assert (source.first, source.size, source.base_size) == (2, None, 6)
    assert source.batch(np.array([2, 10**12])).x.shape == (2, 1, 28, 28)


def test_missing_files_say_what_to_do(tmp_path):
    for name in ("mnist", "fashion-mnist", "infinite-mnist"):
        with pytest.raises(MissingDataError, match=r"fedpriv data fetch .*infinite-digits"):
            load(name, tmp_path)
    with pytest.raises(FileNotFoundError):
        load("mnist", tmp_path)


def test_images_that_do_not_fit(tmp_path):
    write_toy(tmp_path / "mnist")
    idx.write(tmp_path / "mnist" / (IDX_FILES[1] + ".gz"), np.arange(5, dtype=np.uint8))
    with pytest.raises(DataError, match="one whole number for each example"):
        load("mnist", tmp_path)
    idx.write(tmp_path / "mnist" / (IDX_FILES[1] + ".gz"), np.full(6, 10, np.uint8))
    with pytest.raises(DataError, match=r"labels y must lie in 0\.\.9"):
        load("mnist", tmp_path)


def test_folder_order(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path / "a"))
    assert data_folder(tmp_path / "b") == tmp_path / "b"
    assert data_folder() == tmp_path / "a"
    assert data_folder("") == tmp_path / "a"
    monkeypatch.delenv("FEDPRIV_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "fedpriv"


def test_names():
    assert list(names()) == sorted(names())
    assert {"digits", "mnist", "a9a", "movielens-100k", "names"} <= set(names())
    with pytest.raises(ArgumentError, match="dataset is 'cifar'"):
        load("cifar")


def test_at_hand_does_not_read_the_files(tmp_path):
    write_toy(tmp_path / "mnist")
    (tmp_path / "mnist" / f"{IDX_FILES[0]}.gz").write_bytes(b"damaged")
    assert at_hand("mnist", tmp_path)
    assert at_hand("digits", tmp_path)
    assert not at_hand("fashion-mnist", tmp_path)
    (tmp_path / "infinite-mnist").mkdir()
    (tmp_path / "infinite-mnist" / FIELDS_FILE).write_bytes(b"half of the authors' files")
    assert not at_hand("infinite-mnist", tmp_path)


def check_source(source):
    """What every finite source must satisfy."""
    x, y = source.batch(np.array([source.size - 1, 0, 0]))
    assert x.shape == (3, *source.shape)
    assert torch.equal(x[1], x[2])
    assert x.dtype == (torch.int64 if source.tokens else torch.float32)
    test = source.test()
    for part in (y, test.y):
        tail = (source.classes,) if source.target == "tags" else ()
        assert part.shape[1:] == tail
        assert part.dtype == (torch.int64 if source.target == "label" else torch.float32)
    assert test.x.shape[1:] == source.shape
    assert test.x.dtype == x.dtype
    with pytest.raises(ArgumentError, match=f"indices is {source.size}"):
        source.batch(np.array([source.size]))


@pytest.mark.parametrize("name", ["digits", "infinite-digits"])
def test_bundled_sources_are_what_their_cards_say(name):
    assert described(load(name)) == (card(name).inputs, card(name).target)


@pytest.mark.parametrize("name", names())
def test_every_source_keeps_the_protocol(name, data):
    if not at_hand(name, data):
        pytest.skip(f"{name} is not at hand")
    source = load(name, data)
    assert source.name == name
    assert described(source) == (card(name).inputs, card(name).target)
    if source.size is not None:
        check_source(source)


def described(source):
    """What the card says of a source's examples and target."""
    target = {"label": f"{source.classes} labels", "value": "a value", "tags": f"{source.classes} tags"}
    if len(source.tokens) == 2:
        return "user, item", target[source.target]
    if source.tokens:
        return f"{source.shape[0]} tokens of {source.tokens[0]}", target[source.target]
    unit = "pixels" if len(source.shape) == 3 else "features"
    return f"{'x'.join(map(str, source.shape))} {unit}", target[source.target]


def test_unknown_options_are_refused(tmp_path):
    assert dict(options("imdb")) == {"vocabulary": 10_000, "sequence-length": 256}
    assert not options("mnist")
    for given, message in (
        ({"image_size": 64}, "image-size=64 has no effect: the data set digits"),
        ({"vocabulary": 5}, "vocabulary=5 has no effect: the data set digits"),
        ({"sequence_length": 5}, "sequence-length=5 has no effect: the data set digits"),
    ):
        with pytest.raises(ArgumentError, match=message):
            load("digits", tmp_path, **given)
    with pytest.raises(ArgumentError, match="image-size is 7; it must be 0 or at least 8"):
        load("pneumonia", tmp_path, image_size=7)
    with pytest.raises(ArgumentError, match="vocabulary is -1"):
        load("imdb", tmp_path, vocabulary=-1)
