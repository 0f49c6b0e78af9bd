"""The allocator's thresholds."""

from fedpriv._internal import memory


def test_the_allocator_is_left_alone_where_it_cannot_be_tuned(monkeypatch):
    def missing(_):
        raise OSError

    monkeypatch.setattr(memory.ctypes, "CDLL", missing)
    assert memory.tune_allocator.__wrapped__() is False
