"""Puts a fault into the package's code for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor


@contextmanager
def patched(owner: Any, name: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """``owner.name`` is a function that calls ``wrong`` with the right one and its arguments."""
    right = getattr(owner, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *given, **named: wrong(right, *given, **named))
        yield


def expect_found(fault: tuple[Any, Any, str, Callable[..., Any], str], audited: Callable[[Any], Any]) -> None:
    """The audit of these settings finds the fault without guesses, and says what it is.

    A fault is its settings, an owner, the name of what is wrong there, the wrong one, and the words.
    """
    settings, owner, name, wrong, said = fault
    with patched(owner, name, wrong):
        found = audited(settings)
    assert found.irregular, found
    assert said in found.oddest


EXACT: dict[str, Tensor] = {}  # the last exact sum, for faults that use it in place of a noisy one


def remembering(right: Callable[..., Any], side: Any, request: Any) -> Any:
    """``Worker.gather`` that keeps the sum of its reply in EXACT."""
    reply = right(side, request)
    EXACT["sum"] = reply.sums[0]
    return reply
