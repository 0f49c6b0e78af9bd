"""Atomic writing: all or nothing."""

import errno
import os

import pytest

from fedpriv._internal.files import atomic, naming


def test_an_atomic_write_appears_complete(tmp_path):
    with atomic(tmp_path / "new" / "a") as file:
        file.write(b"one")
        assert not (tmp_path / "new" / "a").exists()
    assert (tmp_path / "new" / "a").read_bytes() == b"one"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a"]


def test_a_failed_atomic_write_leaves_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def fail():
        with atomic(tmp_path / "a") as file:
            file.write(b"half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_system_errors_name_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space") as caught, naming(tmp_path / "a"):
        full(0)
    assert caught.value.filename == str(tmp_path / "a")
    with pytest.raises(OSError, match="other") as caught, naming(tmp_path / "a"):
        raise OSError(errno.EIO, "other", "b")
    assert caught.value.filename == "b"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught, atomic(tmp_path / "a") as file:
        file.write(b"whole")
    assert caught.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
