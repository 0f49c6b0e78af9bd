"""Only fedpriv's programs, not its library functions, tune a process's allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedpriv
from fedpriv._internal import allocator


def test_the_allocator_is_left_alone_where_it_cannot_be_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> None:
        raise OSError

    monkeypatch.setattr(allocator.ctypes, "CDLL", missing)
    assert allocator.tune_allocator.__wrapped__() is False


def test_only_programs_tune_the_allocator() -> None:
    """The command line and a node's ClientApp do, at their start; no library function does."""
    package = Path(fedpriv.__file__).parent
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "tune_allocator()" in path.read_text().replace("def tune_allocator()", "")
    }
    assert callers == {"cli/__init__.py", "flower/client_app.py"}
