"""Epsilon against steps."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

from fedpriv.accounting import METHODS, Event, epsilon
from fedpriv.accounting.plots import Curves, curves, draw


def poisson(z: float, count: int = 1) -> Event:
    return Event(z, "poisson", "add-remove", rate=0.05, count=count)


RUN = [poisson(3.0), poisson(2.0, 7), poisson(1.5), poisson(1.5), poisson(2.5, 15)]


def test_each_point_is_epsilon_of_the_releases_so_far() -> None:
    found = curves(RUN, 1e-5, points=5)
    assert found.steps == (5, 10, 15, 20, 25)
    so_far = [poisson(3.0), poisson(2.0, 7), poisson(1.5, 2)]
    for method in METHODS:
        values = found.epsilon[method]
        assert values[1] == pytest.approx(epsilon(so_far, 1e-5, method).epsilon, rel=5e-3)
        assert values[-1] == pytest.approx(epsilon(RUN, 1e-5, method).epsilon, rel=1e-9)
        assert list(values) == sorted(values)
    assert set(found.lower) == {"pld"}
    assert all(low <= high for low, high in zip(found.lower["pld"], found.epsilon["pld"], strict=True))


def test_fewer_steps_than_points_and_none() -> None:
    assert curves(RUN[:1], 1e-5, ["rdp"]).steps == (1,)
    empty = curves([], 1e-5)
    assert (empty.steps, empty.epsilon["pld"]) == ((), ())
    assert draw(empty).startswith(b"\x89PNG")


def test_curves_that_coincide_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    draw(curves([Event(3.0, "none", "add-remove", count=20)], 1e-5, ["pld", "tcdp", "zcdp", "gdp-clt"]))
    draw(Curves(1e-5, (1, 2), {"pld": (1.0, 2.0), "rdp": (1.0, 2.1)}, {}, {}))
    assert len(drawn[1].axes[0].lines) == 2
    labels = [line.get_label() for line in drawn[0].axes[0].lines]
    assert labels == ["pld (upper bound)", "tcdp, zcdp (upper bound)", "gdp-clt (an estimate)"]


def test_errors_name_their_method_and_infinities_are_not_drawn() -> None:
    found = curves([Event(1.0, "without-replacement", "replace-one", 0.1, count=3)], 1e-5, ["pld", "gdp-clt"])
    assert set(found.epsilon) == {"pld"}
    assert "does not support" in found.errors["gdp-clt"]
    bare = curves([poisson(0.0)], 1e-5, ["pld", "zcdp"])
    assert bare.epsilon["zcdp"] == (math.inf,)
    assert draw(bare, "no noise").startswith(b"\x89PNG")


def test_a_curve_that_becomes_infinite_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    draw(Curves(1e-5, (1, 2, 3), {"pld": (1.0, 2.0, 3.0), "rdp": (1.0, 2.5, math.inf)}, {}, {}))
    draw(Curves(1e-5, (1,), {"pld": (math.inf,)}, {}, {}))
    labels = [[line.get_label() for line in figure.axes[0].lines] for figure in drawn]
    assert labels == [
        ["pld (upper bound)", "rdp (upper bound), infinite from 3 on"],
        ["pld (upper bound), infinite"],
    ]
