"""Grouping of multipliers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting import Event
from fedpriv.accounting.methods.quantisation import floors


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=60), st.integers(1, 20))
def test_rounds_down_to_few_multipliers_in_use(multipliers: list[float], limit: int) -> None:
    events = [Event(z, "poisson", "add-remove", rate=0.1) for z in multipliers]
    rounded = floors(events, limit)
    assert set(rounded) == set(events)
    assert all(floor.noise_multiplier <= event.noise_multiplier for event, floor in rounded.items())
    assert len(set(rounded.values())) <= limit or len(set(multipliers)) <= limit
    assert set(rounded.values()) <= set(events)
    if len(set(multipliers)) <= limit:
        assert all(event == floor for event, floor in rounded.items())
