"""Events: what they accept, and that they survive JSON."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event, scaled, tally
from fedpriv.accounting.events import Relation, Sampling

FIXED = {"sampling": "without-replacement", "relation": "replace-one"}
EVENTS = st.one_of(
    st.builds(
        Event,
        st.floats(0, 1e6),
        st.just("poisson"),
        st.sampled_from(["add-remove", "replace-one"]),
        rate=st.floats(0, 1),
        population=st.none() | st.integers(1, 10**12),
        truncation=st.floats(0, 1),
        count=st.integers(1, 10**6),
    ),
    st.builds(Event, st.floats(0, 1e6), st.just("none"), st.sampled_from(["add-remove", "replace-one"])),
    st.integers(1, 10**6).flatmap(
        lambda n: st.integers(0, n).map(
            lambda m: Event(1.0, "without-replacement", "replace-one", m / n, population=n, cohort=m)
        )
    ),
)


@given(EVENTS)
def test_json_round_trip(event: Event) -> None:
    assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_json_holds_only_what_is_not_default() -> None:
    record = Event(1.0, "none", "add-remove").to_json()
    assert record == {"noise_multiplier": 1.0, "sampling": "none", "relation": "add-remove"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"noise_multiplier": math.nan}, "noise-multiplier is nan"),
        ({"noise_multiplier": -1.0}, "noise-multiplier is -1"),
        ({"sampling": "shuffled"}, "sampler is 'shuffled'"),
        ({"relation": "swap"}, "relation is 'swap'"),
        ({"rate": 1.5}, "sampling-rate is 1.5"),
        ({"count": 0}, "count is 0"),
        ({"truncation": 2.0}, "truncation is 2"),
        ({"sampling": "none"}, "sampling-rate is 0.1"),
        ({"sampling": "without-replacement"}, "relation is 'add-remove'.*use sampler poisson"),
        ({"cohort": 5}, "cohort is 5"),
        ({**FIXED, "population": 10, "cohort": 2}, "sampling-rate is 0.1"),
        ({**FIXED, "truncation": 0.1}, "truncation is 0.1"),
    ],
)
def test_refuses_by_name(arguments: dict[str, Any], named: str) -> None:
    given_arguments = {"noise_multiplier": 1.0, "sampling": "poisson", "relation": "add-remove", "rate": 0.1}
    with pytest.raises(ArgumentError, match=named):
        Event(**{**given_arguments, **arguments})


@pytest.mark.parametrize("record", [{"sampling": "none"}, {"noise_multiplier": 1.0, "size": 3}])
def test_unknown_and_missing_fields_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="event"):
        Event.from_json(record)


@given(EVENTS, st.floats(0, 10))
def test_scaling_changes_only_the_multiplier(event: Event, scale: float) -> None:
    other = scaled(event, scale)
    assert other.noise_multiplier == event.noise_multiplier * scale
    assert scaled(other, 1.0) == other
    assert {**other.to_json(), "noise_multiplier": 0} == {**event.to_json(), "noise_multiplier": 0}


@given(st.lists(EVENTS, max_size=8))
def test_tally_keeps_every_release(events: list[Event]) -> None:
    """Also of events that are the same object."""
    for some in (events, [*events, *events], [*events, *map(replace, events)]):
        assert sum(tally(some).values()) == sum(event.count for event in some)
        assert all(event.count == 1 for event in tally(some))


@pytest.mark.parametrize(("name", "own"), [("fixed-size", "without-replacement"), ("everyone", "none")])
def test_a_setting_name_of_a_sampler_gets_a_hint(name: str, own: str) -> None:
    with pytest.raises(ArgumentError, match=f"sampler is '{name}'.*an event calls this sampler '{own}'"):
        Event(1.0, name, "replace-one")


def test_a_number_without_a_name_is_not_taken_for_the_count() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        Event(1.0, "poisson", "add-remove", 0.01, 1000)  # type: ignore[misc]


def test_words_become_members_that_are_their_words() -> None:
    event = Event(1.0, "poisson", "replace-one", rate=0.5)
    assert (event.sampling, event.relation) == (Sampling.POISSON, Relation.REPLACE_ONE)
    assert event == Event(1.0, Sampling.POISSON, Relation.REPLACE_ONE, rate=0.5)
    assert hash(event) == hash(replace(event))
    assert {type(value) for value in event.to_json().values()} == {float, str}
    assert repr(event.relation) == "'replace-one'"


@pytest.mark.parametrize("sampling", Sampling)
@pytest.mark.parametrize("relation", Relation)
def test_a_sampling_knows_its_relations(sampling: Sampling, relation: Relation) -> None:
    assert sampling.allows(sampling.relation)
    rate = 0.5 if sampling.samples else 1.0
    with nullcontext() if sampling.allows(relation) else pytest.raises(ArgumentError, match="relation"):
        assert Event(1.0, sampling, relation, rate).sampled == (rate < 1)
