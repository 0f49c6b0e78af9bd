"""How a run ends is a word that JSON and plain strings know, and that all that is said of it comes from."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from fedpriv.endings import Ending, divergence
from fedpriv.round import Outcome


@pytest.mark.parametrize("ending", Ending)
def test_an_ending_is_its_word(ending: Ending) -> None:
    assert json.loads(json.dumps({"stopped": ending})) == {"stopped": ending} == {"stopped": ending.value}
    assert f"{ending}" == str(ending) == ending.value
    assert repr(ending) == repr(ending.value)
    assert asdict(Outcome(None, 3, ending))["stopped"] == ending.value  # type: ignore[arg-type]
    assert ending.sentence
    assert ending.short


def test_a_run_ends_by_itself_at_its_rounds_or_budget_alone() -> None:
    assert {ending.value for ending in Ending if ending.whole} == {"rounds", "budget"}
    with pytest.raises(ValueError, match="epochs"):
        Ending("epochs")


def test_a_loss_that_is_not_finite_is_told_once() -> None:
    lost, found = [{"loss": 1.0}, {"loss": None}], [{"loss": None}, {"loss": 1.0}]
    assert "diverged" in divergence(Ending.ROUNDS, lost)
    assert "diverged" in divergence(Ending.INTERRUPTED, lost)
    assert divergence(Ending.DIVERGED, lost) == ""  # it says so
    assert divergence(Ending.ROUNDS, found) == divergence(Ending.FAILED, []) == ""
