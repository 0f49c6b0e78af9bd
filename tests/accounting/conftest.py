"""Accounting without its cache, so that each test measures the computation."""

from __future__ import annotations

import pytest

from fedpriv.accounting.methods import registry


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epsilon is computed, also the second time that a test asks for it."""
    monkeypatch.setattr(registry, "_epsilons", registry._epsilons.__wrapped__)
