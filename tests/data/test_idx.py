"""IDX: round trips, and a clear error for everything that is not IDX."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpriv.data import DataError, idx

TYPES = ["u1", "i1", "i2", "i4", "f4", "f8"]


@settings(max_examples=60)
@given(
    array=st.sampled_from(TYPES).flatmap(
        lambda kind: hnp.arrays(kind, hnp.array_shapes(max_dims=4, min_side=0, max_side=5))
    ),
    zipped=st.booleans(),
)
def test_round_trip(tmp_path_factory, array, zipped):
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if zipped else "a")
    idx.write(path, array)
    back = idx.read(path)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_known_bytes(tmp_path):
    """Two labels as LeCun's page describes them."""
    path = tmp_path / "labels"
    path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    assert idx.read(path).tolist() == [7, 9]
    path.write_bytes(bytes([0, 0, 11, 1, 0, 0, 0, 1, 1, 2]))
    assert idx.read(path).tolist() == [258]  # big-endian


def test_gzip_is_recognised_by_content_not_name(tmp_path):
    path = tmp_path / "plain-name"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1, 5])))
    assert idx.read(path).tolist() == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are too short"),
        (b"\0\0\x08", "3 bytes are too short"),
        (b"PK\x03\x04abcd", "0x504b0304 is not IDX"),
        (b"\0\0\x07\x01\0\0\0\0", "0x00000701 is not IDX"),
        (b"\0\0\x08\x03\0\0\0\x01", "cut short within its header of 3"),
        (b"\0\0\x08\x01\0\0\0\x03ab", "cut short: 2 data bytes, .* needs 3"),
        (b"\0\0\x08\x01\0\0\0\x01ab", "bytes left over: 2 data bytes"),
        (b"\0\0\x08\x04" + struct.pack(">4I", *[2**32 - 1] * 4), "cut short"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x01a" * 99, mtime=0)[:-12], "damaged gzip"),
        (b"\x1f\x8bnot gzip", "damaged gzip"),
    ],
)
def test_damage_is_named(tmp_path, content, message):
    path = tmp_path / "damaged"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_unknown_type(tmp_path):
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "none")
    with pytest.raises(idx.IdxError, match="no type for int64"):
        idx.write(tmp_path / "x", np.zeros(2, np.int64))


@pytest.mark.data
def test_mnist(data):
    images = idx.read(data / "mnist" / "train-images-idx3-ubyte.gz")
    labels = idx.read(data / "mnist" / "train-labels-idx1-ubyte.gz")
    assert images.shape == (60_000, 28, 28)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert images.mean() == pytest.approx(33.3184, abs=1e-3)
