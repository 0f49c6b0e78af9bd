"""What all methods share: truncation, refusals, lower bounds."""

from __future__ import annotations

import math

import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import METHODS, Event, PrivacyGuarantee, UnsupportedEvent, epsilon
from fedpriv.accounting.methods import gaussian
from fedpriv.accounting.methods.gdp_clt import GdpProfile
from fedpriv.accounting.methods.registry import epsilons, non_decreasing, with_truncation


@pytest.mark.parametrize("mu", [0.1, 1.0, 1.2])
def test_truncation_gives_the_smallest_sufficient_epsilon(mu: float) -> None:
    delta, distance = 1e-5, 1e-8
    value, _ = with_truncation(GdpProfile(mu), delta, distance)
    used = math.exp(gaussian.log_delta(mu, value)) + (1 + math.exp(value)) * distance
    assert used <= delta
    less = value * (1 - 1e-4)
    assert math.exp(gaussian.log_delta(mu, less)) + (1 + math.exp(less)) * distance > delta


def test_truncation_out_of_reach_is_infinite() -> None:
    assert with_truncation(GdpProfile(6.0), 1e-5, 1e-6)[0] == math.inf


def test_truncation_lowers_the_lower_bound() -> None:
    def answer(truncation: float) -> tuple[float, float]:
        found = epsilon([Event(1.0, "poisson", "add-remove", 0.05, truncation=truncation, count=100)], 1e-5)
        assert found.epsilon_lower is not None
        return found.epsilon, found.epsilon_lower

    (upper, lower), (wide, low) = answer(0.0), answer(1e-9)
    assert low < lower < upper < wide


def test_truncation_counts_for_releases_that_cost_nothing_else() -> None:
    event = Event(math.inf, "poisson", "add-remove", 0.05, truncation=1e-5)
    assert epsilon([event], 1e-5).epsilon == math.inf
    assert epsilon([event], 3e-5).epsilon == 0


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ArgumentError, match="accounting is 'prv'; it must be one of pld, rdp, gdp-clt, tcdp"):
        epsilon([], 1e-5, "prv")


def test_every_sampler_and_relation_has_a_method() -> None:
    for sampling, relation, rate in (
        ("poisson", "add-remove", 0.1),
        ("poisson", "replace-one", 0.1),
        ("without-replacement", "replace-one", 0.1),
        ("none", "add-remove", 1.0),
        ("none", "replace-one", 1.0),
    ):
        event = Event(1.0, sampling, relation, rate)
        able = {name for name, method in METHODS.items() if method.refusal(event) is None}
        assert any(epsilon([event], 1e-5, name).kind == "bound" for name in able)
        for name in set(METHODS) - able:
            with pytest.raises(UnsupportedEvent, match=rf"by {name} does not support .*use "):
                epsilon([event], 1e-5, name)


def test_stages_and_their_lower_bounds() -> None:
    event = Event(1.0, "poisson", "add-remove", 0.05)
    for name in METHODS:
        with_lower = epsilons([[event], [], [event] * 9], 1e-5, name)
        without = epsilons([[event], [], [event] * 9], 1e-5, name, lower=False)
        assert [answer.epsilon for answer in without] == [answer.epsilon for answer in with_lower]
        assert with_lower[0].epsilon == with_lower[1].epsilon < with_lower[2].epsilon
        assert all(answer.epsilon_lower is None for answer in without)
        assert all((answer.epsilon_lower is None) is not METHODS[name].bounds_below for answer in with_lower)


def test_no_stage_is_above_a_later_one() -> None:
    values = [1.0, 2.5, 2.0, 3.0, 3.0]
    answers = [PrivacyGuarantee(value, None, "bound", "pld", 1e-5) for value in values]
    assert non_decreasing(answers) == [1.0, 2.0, 2.0, 3.0, 3.0]
    assert non_decreasing([]) == []
