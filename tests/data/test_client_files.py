"""A deployed client's file: the same examples as in the simulation; its errors contain none of its data."""

import math
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype

from fedpriv._internal.validation import ArgumentError
from fedpriv.data import Arrays, DataError, OneExample, Silos, View, idx, load, population
from fedpriv.data.client_files import ClientFile, FileView, write_client_file

DIGITS = load("digits")


@pytest.fixture
def source():
    return load("infinite-digits")


def test_a_client_file_equals_the_simulated_client(tmp_path, source):
    people = population("dirichlet", source, clients=1000, examples_per_client=8, sizes="lognormal")
    write_client_file(tmp_path / "c.npz", source, people.examples(np.array([321]))[0])
    view = FileView(ClientFile(tmp_path / "c.npz", DIGITS), client=321)
    mine, simulated = view.batch(np.array([321])), View(source, people).batch(np.array([321]))
    assert all(torch.equal(a, b) for a, b in zip(mine, simulated, strict=True))
    among = view.batch(np.array([4, 321, 5]))
    assert torch.equal(among.x, mine.x)
    assert set(among.owner.tolist()) == {1}
    assert view.batch(np.array([4, 5])).x.shape == (0, 1, 28, 28)


def test_silo_files_together_equal_the_simulation(tmp_path, source):
    silos = Silos(3, 20, source.first)
    cohort = np.array([0, 3, 19, 20, 41, 59])
    whole = View(source, silos.units()).batch(cohort)
    parts = []
    for s in range(3):
        write_client_file(tmp_path / f"{s}.npz", source, silos.examples(np.array([s]))[0])
        parts.append(FileView(ClientFile(tmp_path / f"{s}.npz", DIGITS), s).units(silos, cohort))
    assert torch.equal(torch.cat([p.owner for p in parts]), whole.owner)
    assert torch.equal(torch.cat([p.x for p in parts]), whole.x)
    assert torch.equal(torch.cat([p.y for p in parts]), whole.y)


def test_rows_beyond_the_file_contribute_nothing(tmp_path, source):
    silos = Silos(2, 10)
    write_client_file(tmp_path / "short.npz", source, np.arange(400, 404))
    write_client_file(tmp_path / "long.npz", source, np.arange(400, 430))
    short = FileView(ClientFile(tmp_path / "short.npz", DIGITS), 1)
    assert short.units(silos, np.arange(20)).owner.tolist() == [10, 11, 12, 13]
    long = FileView(ClientFile(tmp_path / "long.npz", DIGITS), 0)
    assert long.units(silos, np.arange(20)).owner.tolist() == list(range(10))  # never another's units


def test_idx_pair(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
    idx.write(tmp_path / "mine-images-idx3-ubyte.gz", x)
    idx.write(tmp_path / "mine-labels-idx1-ubyte.gz", np.array([1, 2, 3, 4], np.uint8))
    file = ClientFile(tmp_path / "mine-images-idx3-ubyte.gz", DIGITS)
    got = file.rows(np.array([3, 0]))
    assert got.y.tolist() == [4, 1]
    assert torch.equal((got.x[:, 0] * 255).round().to(torch.uint8), torch.from_numpy(x[[3, 0]]))


def test_errors_of_damaged_files_contain_no_data(tmp_path):
    x, y = np.full((3, 28, 28), 77, np.uint8), np.array([0, 1, 7])

    def save(**arrays):
        np.savez(tmp_path / "c.npz", **arrays)

    def refusal():
        with pytest.raises(DataError) as caught:
            ClientFile(tmp_path / "c.npz", DIGITS)
        assert "77" not in str(caught.value).replace(str(tmp_path), "")
        assert caught.value.__cause__ is None
        return str(caught.value)

    save(x=x, y=y[:2])
    assert "one whole number for each example; they are fewer or more" in refusal()
    save(x=x, y=np.array(["no", "7" * 77, "yes"]))
    assert "these are text" in refusal()
    save(x=x.astype(np.int64), y=y)
    assert "an example must have the shape (1, 28, 28), as in digits" in refusal()
    for other in (x.astype(np.float32), x.astype(np.float64), x[:, :, :27], x[:, None].repeat(3, axis=1)):
        save(x=other, y=y)
        assert "an example must have the shape (1, 28, 28), as in digits" in refusal()
    for other in (x[:, 0], x.astype(str)):
        save(x=other, y=y)
        assert "examples x must be uint8 images" in refusal()
    for scalar in ({"x": x[0, 0, 0], "y": y}, {"x": x, "y": y[0]}):
        save(**scalar)
        assert "one row per example" in refusal()
    for fewer in ({"x": x[:0], "y": y[:1]}, {"x": x[:1], "y": y[:0]}):
        save(**fewer)
        assert "fewer or more" in refusal()
    save(x=x)
    assert "plain arrays x and y" in refusal()
    save(x=np.array([{"77": 77}], dtype=object), y=y)
    assert "plain arrays x and y" in refusal()
    (tmp_path / "c.npz").write_bytes(pickle.dumps({"x": 77}))
    assert "plain arrays x and y" in refusal()
    (tmp_path / "c.npz").write_bytes(b"")
    assert "plain arrays x and y" in refusal()
    save(x=x, y=y)
    (tmp_path / "c.npz").write_bytes((tmp_path / "c.npz").read_bytes()[:1500])
    assert "plain arrays x and y" in refusal()


def test_a_pickle_inside_the_archive_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Bomb()))
        archive.writestr("y.npy", pickle.dumps(Bomb()))
    with pytest.raises(DataError):
        ClientFile(tmp_path / "c.npz", DIGITS)
    assert not (tmp_path / "ran").exists()


def test_other_refusals(tmp_path, source):
    with pytest.raises(ArgumentError, match=r"end in \.npz"):
        write_client_file(tmp_path / "c.bin", source, np.array([400]))
    with pytest.raises(ArgumentError, match="at least one"):
        write_client_file(tmp_path / "c.npz", source, np.array([], np.int64))
    with pytest.raises(DataError, match=r"an \.npz file, or IDX"):
        ClientFile(tmp_path / "c.csv", DIGITS)
    (tmp_path / "images-idx3").write_bytes(b"\0\0\x08\x03\0\0")
    with pytest.raises(DataError, match="not an intact IDX file"):
        ClientFile(tmp_path / "images-idx3", DIGITS)
    with pytest.raises(FileNotFoundError):
        ClientFile(tmp_path / "none.npz", DIGITS)
    assert list(tmp_path.glob("c.*")) == []


def test_finite_population_too(tmp_path):
    source = load("digits")
    write_client_file(tmp_path / "c.npz", source, OneExample(5).examples(np.array([2]))[0])
    assert ClientFile(tmp_path / "c.npz", DIGITS).size == 1


RNG = np.random.default_rng(0)
KINDS = {
    "features": ((RNG.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 2), {"classes": 2}),
    "colours": ((RNG.integers(0, 256, (6, 3, 5, 7)).astype(np.uint8), np.arange(6)), {"classes": 10}),
    "measured images": ((RNG.normal(size=(6, 1, 4, 4)).astype(np.float32), np.arange(6)), {"classes": 10}),
    "measured channels": ((RNG.random((6, 2, 4, 4)).astype(np.float32), np.arange(6)), {"classes": 10}),
    "words": ((RNG.integers(0, 70_000, (6, 9)), np.arange(6)), {"tokens": (70_000,), "classes": 10}),
    "ids": (
        (RNG.integers(0, 5, (6, 2)), RNG.normal(size=6)),
        {"tokens": (5, 5), "target": "value", "classes": 1},
    ),
    "tags": ((np.eye(6, dtype=np.float32), np.eye(6)), {"target": "tags", "classes": 6}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_example_comes_back_bit_for_bit(tmp_path, kind):
    (x, y), options = KINDS[kind]
    source = Arrays(kind, x, y, x, y, **options)
    at = np.array([5, 0, 3])
    write_client_file(tmp_path / "c.npz", source, at)
    batch = FileView(ClientFile(tmp_path / "c.npz", source), client=2).batch(np.array([2]))
    expected = source.batch(at)
    assert torch.equal(batch.x, expected.x)
    assert torch.equal(batch.y, expected.y)
    for name, ((x, y), options) in KINDS.items():
        if name != kind:
            with pytest.raises(DataError):
                ClientFile(tmp_path / "c.npz", Arrays(name, x, y, x, y, **options))


def test_images_of_bytes_are_kept_as_bytes(tmp_path):
    for name, shape in (("grey", (6, 5, 7)), ("colours", (6, 3, 5, 7))):
        x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        write_client_file(tmp_path / "c.npz", Arrays(name, x, np.arange(6), x, np.arange(6), 6), np.arange(6))
        with np.load(tmp_path / "c.npz") as archive:
            assert np.array_equal(archive["x"], x)
            assert archive["x"].dtype == np.uint8


def test_a_non_numeric_value_is_not_quoted(tmp_path):
    (x, _), options = KINDS["ids"]
    np.savez(tmp_path / "c.npz", x=x, y=np.array(["secret"] * 6))
    with pytest.raises(DataError) as caught:
        ClientFile(tmp_path / "c.npz", Arrays("ids", x, np.ones(6), x, np.ones(6), **options))
    assert "secret" not in str(caught.value)


def test_float64_is_rounded_to_float32(tmp_path):
    x, y = RNG.normal(size=(6, 4)), np.arange(6) % 2
    np.savez(tmp_path / "c.npz", x=x, y=y)
    rows = ClientFile(tmp_path / "c.npz", Arrays("features", x, y, x, y, 2)).rows(np.arange(6)).x
    assert torch.equal(rows, torch.from_numpy(x.astype(np.float32)))


BAD = {
    "features": [("x", math.nan), ("x", -math.inf), ("y", 2), ("y", -1)],
    "colours": [("y", 10), ("y", 255)],
    "words": [("x", 70_000), ("x", -1), ("x", 2**62), ("y", 10)],
    "ids": [("x", 5), ("x", -1), ("y", math.nan), ("y", 1e39)],
    "tags": [("x", math.inf), ("y", 2), ("y", 0.5), ("y", math.nan)],
}


@pytest.mark.parametrize(
    ("kind", "part", "value"), [(kind, *bad) for kind, several in BAD.items() for bad in several]
)
def test_an_example_outside_the_ranges_contributes_nothing(tmp_path, kind, part, value):
    """Whoever starts the run sets the ranges; an error would reveal whether there is such an example."""
    (x, y), options = KINDS[kind]
    source, silos = Arrays(kind, x, y, x, y, **options), Silos(3, 6)

    def view(*rows):
        mine = {"x": x.copy(), "y": y.copy()}
        for row in rows:
            mine[part][row].flat[-1:] = value
            if mine[part].ndim == 1:
                mine[part][row] = value
        np.savez(tmp_path / "c.npz", **mine)
        return FileView(ClientFile(tmp_path / "c.npz", source), client=1)

    one = view(4)
    assert one.file.valid.tolist() == [True] * 4 + [False, True]
    others = np.array([0, 1, 2, 3, 5])
    for batch in (one.batch(np.array([1])), one.units(silos, np.arange(18))):
        assert torch.equal(batch.x, source.batch(others).x)
        assert torch.equal(batch.y, source.batch(others).y)
    assert one.units(silos, np.arange(18)).owner.tolist() == [6, 7, 8, 9, 11]
    assert one.batch(np.array([1, 0, 1])).owner.tolist() == [0] * 5 + [2] * 5
    none = view(*range(6))
    assert len(none.batch(np.array([1])).x) == len(none.units(silos, np.arange(18)).y) == 0
    assert none.file.size == 6


@given(data=st.data())
def test_no_value_of_the_data_causes_a_refusal(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    (x, y), options = KINDS[kind]
    source, path = Arrays(kind, x, y, x, y, **options), tmp_path_factory.mktemp("any") / "c.npz"

    def anything(part):
        whole = ["i1", "i4", ">i4", "i8", "u2", "u8"]
        types = {"f": ["f2", "f4", "f8"], "u": ["u1"]}.get(part.dtype.kind, whole)
        dtype = np.dtype(data.draw(st.sampled_from(types)))
        return data.draw(arrays(dtype, part.shape, elements=from_dtype(dtype), fill=st.nothing()))

    few = data.draw(st.integers(0, 6))
    np.savez(path, x=anything(x[:few]), y=anything(y[:few]))
    file = ClientFile(path, source)
    pair = file.rows(np.flatnonzero(file.valid))
    assert pair.x.isfinite().all()
    assert pair.y.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_is_accepted(tmp_path, kind):
    (x, y), options = KINDS[kind]
    np.savez(tmp_path / "c.npz", x=x[:0], y=y[:0])
    source = Arrays(kind, x, y, x, y, **options)
    view = FileView(ClientFile(tmp_path / "c.npz", source), client=0)
    assert view.file.size == len(view.batch(np.array([0])).x) == 0
    assert view.units(Silos(1, 6), np.arange(6)).owner.tolist() == []
