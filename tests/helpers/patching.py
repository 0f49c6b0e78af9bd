"""Puts a fault into the package's code for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def patched(owner: Any, name: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """``owner.name`` is a function that calls ``wrong`` with the right one and its arguments."""
    right = getattr(owner, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *given, **named: wrong(right, *given, **named))
        yield
