"""Events for tests of accounting."""

from __future__ import annotations

from fedpriv.accounting.events import Event, Relation, Sampling


def poisson(z: float, rate: float, count: int = 1) -> Event:
    """Releases over Poisson cohorts, whose neighbours add or remove a unit."""
    return Event(z, Sampling.POISSON, Relation.ADD_REMOVE, rate=rate, count=count)


def fixed_size(z: float, rate: float, count: int = 1) -> Event:
    """Releases over cohorts of a fixed size, whose neighbours replace a unit."""
    return Event(z, Sampling.WITHOUT_REPLACEMENT, Relation.REPLACE_ONE, rate=rate, count=count)
