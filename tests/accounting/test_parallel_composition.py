"""Parallel composition over disjoint silos, and where it does not hold."""

from __future__ import annotations

import pytest

from fedpriv.accounting import Event, UnsupportedEvent, epsilon, parallel_composition
from fedpriv.accounting.parallel_composition import compose, costs_no_more, of_each

DELTA = 1e-5


def events(z: float, relation: str, count: int = 10) -> list[Event]:
    sampling = "poisson" if relation == "add-remove" else "without-replacement"
    return [Event(z, sampling, relation, rate=0.1, count=count)]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_silos_compose_in_parallel(relation: str) -> None:
    schedules = {name: events(z, relation) for name, z in (("a", 3.0), ("b", 1.5), ("c", 2.0))}
    assert compose(schedules, DELTA) == epsilon(schedules["b"], DELTA)
    assert compose(schedules, DELTA, "rdp").epsilon == epsilon(schedules["b"], DELTA, "rdp").epsilon


def test_a_replacement_in_another_silo_composes_two_silos() -> None:
    schedules = {name: events(z, "replace-one") for name, z in (("a", 3.0), ("b", 1.5), ("c", 2.0))}
    both = epsilon(schedules["b"] + schedules["c"], DELTA)
    assert compose(schedules, DELTA, stays=False).epsilon == pytest.approx(both.epsilon, rel=1e-12)
    assert both.epsilon > compose(schedules, DELTA).epsilon
    alone = {"b": schedules["b"]}
    assert compose(alone, DELTA, stays=False) == compose(alone, DELTA)


def test_under_add_remove_a_unit_is_in_one_silo_only() -> None:
    schedules = {"a": events(2.0, "add-remove"), "b": events(2.0, "add-remove")}
    assert compose(schedules, DELTA, stays=False) == epsilon(schedules["a"], DELTA)


def test_equal_silos_are_accounted_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = parallel_composition.epsilon

    def counted(run: list[Event], delta: float, method: str) -> object:
        calls.append(len(run))
        return real(run, delta, method)

    monkeypatch.setattr(parallel_composition, "epsilon", counted)
    run = [Event(2.0, "none", "replace-one"), Event(3.0, "none", "replace-one")]
    many = {str(i): run for i in range(1000)}
    value = compose(many, DELTA, stays=False).epsilon
    assert calls == [4]
    assert value == pytest.approx(real(many["0"] * 2, DELTA).epsilon)


def test_no_silo_and_mixed_relations() -> None:
    assert compose({}, DELTA).epsilon == 0
    assert compose({"a": []}, DELTA, stays=False).epsilon == 0
    with pytest.raises(UnsupportedEvent, match="add-remove and replace-one"):
        compose({"a": events(1.0, "add-remove"), "b": events(1.0, "replace-one")}, DELTA)


def release(rate: float, z: float = 2.0, count: int = 1) -> Event:
    return Event(z, "poisson", "add-remove", rate=rate, count=count)


def test_smaller_rates_cost_no_more_whatever_the_order() -> None:
    low, high = [release(0.1), release(0.2)], [release(0.3), release(0.1)]
    assert costs_no_more(low, high)
    assert not costs_no_more(high, low)
    assert costs_no_more(low, low[::-1])
    assert costs_no_more([release(0.1, count=10**9)], [release(0.2, count=10**9)])
    for other in ([release(0.3)], [release(0.3), release(0.3, z=3.0)], [release(0.3), release(0.05)]):
        assert not costs_no_more(low, other)  # fewer releases, other noise, a smaller rate


def test_silos_without_an_order_are_all_accounted_for() -> None:
    silos = {"a": [release(0.3), release(0.1)], "b": [release(0.2), release(0.2)]}
    silos["c"] = [release(0.1, count=2)]
    own = {name: epsilon(events, DELTA).epsilon for name, events in silos.items()}
    assert compose(silos, DELTA).epsilon == pytest.approx(max(own.values()), rel=1e-9)
    found = {name: each.epsilon for names, each in of_each(silos, DELTA) for name in names}
    assert found == pytest.approx(own, rel=1e-9)
