"""The choice of lattice, window and tilt."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.accounting.pld.discretisation import Group, choose


def group(z: float, rate: float, count: int, family: str = "poisson") -> Group:
    return Group(family, rate, np.array([z]), np.array([[count]]))


@pytest.mark.parametrize("z", [0.1, 1.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-12])
def test_tilts_are_ordered_and_lattices_bounded(z: float, delta: float) -> None:
    for family in ("poisson", "replace", "fixed"):
        lattice = choose([group(z, 0.01, 100, family)], delta)
        for direction in (lattice.removal, lattice.addition):
            assert direction.lower_tilt < direction.tilt < direction.upper_tilt
            assert direction.tilt > 0
        assert lattice.width > 0
        assert 2**14 <= lattice.points <= 2**20 + 2**18


def test_more_releases_want_a_finer_lattice() -> None:
    assert choose([group(1.0, 0.01, 5000)], 1e-5).width < choose([group(1.0, 0.01, 50)], 1e-5).width
