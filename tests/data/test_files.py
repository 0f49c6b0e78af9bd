"""Atomic writing: all or nothing."""

import pytest

from fedpriv.data.files import atomic


def test_all(tmp_path):
    with atomic(tmp_path / "new" / "a") as file:
        file.write(b"one")
        assert not (tmp_path / "new" / "a").exists()
    assert (tmp_path / "new" / "a").read_bytes() == b"one"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a"]


def test_or_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def fail():
        with atomic(tmp_path / "a") as file:
            file.write(b"half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
