"""The finite source: every kind of x and y, and what it refuses."""

import numpy as np
import pytest
import torch

from fedpriv.data import Arrays, DataError


def make(x, y, classes=10, **options):
    return Arrays("toy", x, y, x, y, classes, **options)


def test_pixels_keep_their_channels_and_become_unit_intervals():
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (3, 4, 5)):
        x = rng.integers(0, 256, (6, *shape)).astype(np.uint8)
        source = make(x, np.arange(6))
        assert source.shape == ((1, 3, 5) if len(shape) == 2 else (3, 4, 5))
        at = np.array([4, 0])
        expected = torch.from_numpy(x[at].reshape(2, *source.shape) / np.float32(255))
        torch.testing.assert_close(source.batch(at).x, expected, rtol=1e-6, atol=0)
        assert source.test().x.shape == (6, *source.shape)


def test_floats_tokens_and_columns_come_back_as_they_are():
    floats = np.linspace(-3, 3, 8, dtype=np.float32).reshape(4, 2)
    assert make(floats, np.arange(4)).batch(np.array([3])).x.tolist() == floats[[3]].tolist()
    words = np.array([[65535, 1, 0], [2, 0, 0]], np.uint16)
    source = make(words, np.array([0, 1]), tokens=(65536,), classes=2)
    x = source.test().x
    assert (x.dtype, x.tolist()) == (torch.int64, words.tolist())
    assert (source.shape, source.target, source.owners) == ((3,), "label", None)
    columns = make(np.array([[4, 1], [0, 2]]), np.array([1.5, -2]), tokens=(5, 3), target="value", classes=1)
    assert columns.batch(np.array([0])).x.tolist() == [[4, 1]]
    assert (columns.test().y.dtype, columns.test().y.tolist()) == (torch.float32, [1.5, -2.0])


def test_tags_are_floats_of_zero_and_one():
    tags = np.array([[0, 1, 1], [0, 0, 0]], np.uint8)
    source = make(np.zeros((2, 4), np.float32), tags, target="tags", classes=3)
    assert (source.batch(np.array([0])).y.tolist(), source.classes) == ([[0.0, 1.0, 1.0]], 3)


FLOATS, IDS, LABELS = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.int32), np.array([0, 1])
BAD = {
    "one axis": (FLOATS[:, 0], LABELS, {}, "float32 .*; these are float32 with 1 axis"),
    "one number": (np.float32(3)[...], LABELS, {}, "an axis of examples"),
    "texts": (FLOATS.astype(str), LABELS, {}, "float32 .*; these are text with 2 axes"),
    "flat bytes": (FLOATS.astype(np.uint8), LABELS, {}, "uint8 images"),
    "channels last": (np.zeros((2, 8, 8, 3), np.uint8), LABELS, {}, r"first, as x\.transpose\(0, 3, 1, 2\)"),
    "nan": (FLOATS * np.float32("nan"), LABELS, {}, "finite numbers"),
    "too large for float32": (FLOATS.astype(np.float64) + 1e39, LABELS, {}, "as float32 has them"),
    "no rows": (FLOATS[:0], LABELS[:0], {}, "at least one example"),
    "label count": (FLOATS, LABELS[:1], {}, "one whole number for each example; they are fewer or more"),
    "label column": (FLOATS, LABELS[:, None], {}, r"these are \(n, 1\): take the column, y\[:, 0\]"),
    "label rows": (FLOATS, np.eye(2), {}, "these have 2 axes"),
    "label texts": (FLOATS, np.array(["secret", "no"]), {}, r"for each example, 0\.\.9; these are text$"),
    "label floats": (FLOATS, LABELS + 0.0, {}, r"these are float64 \(where they are whole, y\.astype"),
    "label range": (FLOATS, LABELS + 9, {}, r"labels y must lie in 0\.\.9"),
    "no classes": (FLOATS, LABELS, {"classes": None}, "classes is None; .* public knowledge"),
    "no tag classes": (FLOATS, FLOATS, {"target": "tags", "classes": None}, "classes is None"),
    "value classes": (FLOATS, FLOATS[:, 0], {"target": "value", "classes": 2}, "classes is 2; it must be 1"),
    "target": (FLOATS, LABELS, {"target": "values"}, r"target is 'values'; .* \(did you mean 'value'\?\)"),
    "tokens are a number": (IDS, LABELS, {"tokens": 50}, r"a tuple of numbers of ids, such as \(50,\)"),
    "tokens are a list": (IDS, LABELS, {"tokens": [7]}, "a tuple of numbers of ids"),
    "tokens are texts": (IDS, LABELS, {"tokens": ("7",)}, "a tuple of numbers of ids"),
    "no tokens at all": (IDS, LABELS, {"tokens": (0,)}, "a tuple of numbers of ids"),
    "tokens are floats": (FLOATS, LABELS, {"tokens": (5,)}, "whole numbers"),
    "token range": (IDS + 5, LABELS, {"tokens": (5,)}, "outside its range"),
    "token negative": (IDS - 1, LABELS, {"tokens": (5,)}, "outside its range"),
    "column range": (IDS + 1, LABELS, {"tokens": (5, 1)}, "outside its range"),
    "column count": (IDS, LABELS, {"tokens": (5, 5, 5)}, "whole numbers"),
    "value shape": (FLOATS, FLOATS, {"target": "value", "classes": 1}, "a finite value"),
    "value inf": (FLOATS, np.array([1, np.inf]), {"target": "value", "classes": 1}, "a finite value"),
    "tag shape": (FLOATS, FLOATS, {"target": "tags", "classes": 4}, "4 tags"),
    "tag range": (FLOATS, FLOATS + 2, {"target": "tags", "classes": 3}, "0 or 1"),
    "owner count": (FLOATS, LABELS, {"owners": np.array([0])}, "one owner"),
    "owner negative": (FLOATS, LABELS, {"owners": np.array([0, -1])}, "one user for each .* 0 or more"),
    "owner floats": (FLOATS, LABELS, {"owners": np.array([0.0, 1.0])}, "; these are float64"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arrays_are_refused_without_quoting_data(case):
    x, y, options, message = BAD[case]
    with pytest.raises(DataError, match=f"toy: .*{message}"):
        make(x, y, **options)


def test_parts_must_have_one_shape():
    with pytest.raises(DataError, match="same shape"):
        Arrays("toy", FLOATS, LABELS, FLOATS[:, :2], LABELS, 2)


@pytest.mark.parametrize("case", ["one axis", "nan", "label count", "label floats", "label range"])
def test_the_error_names_the_invalid_part(case):
    x, y, _, _ = BAD[case]
    with pytest.raises(DataError, match=r" [xy] must "):
        Arrays("toy", x, y, FLOATS, LABELS, 10)
    with pytest.raises(DataError, match=r" test_[xy] must "):
        Arrays("toy", FLOATS, LABELS, x, y, 10)


def test_floats_of_any_kind_are_rounded_to_float32():
    x = np.random.default_rng(0).normal(size=(2, 3))
    for kind in (np.float16, np.float64, np.dtype(">f8")):
        batch = make(x.astype(kind), LABELS).batch(np.array([0, 1]))
        assert batch.x.dtype == torch.float32
        assert np.array_equal(batch.x.numpy(), x.astype(kind).astype(np.float32))


def test_values_are_of_one_class():
    assert make(FLOATS, FLOATS[:, 0], None, target="value").classes == 1
