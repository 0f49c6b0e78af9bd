"""A stop reason is a string for JSON, and has all descriptions of it."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from fedpriv.federated.loop import Outcome
from fedpriv.federated.stop_reason import StopReason, divergence


@pytest.mark.parametrize("ending", StopReason)
def test_a_stop_reason_is_its_word(ending: StopReason) -> None:
    assert json.loads(json.dumps({"stopped": ending})) == {"stopped": ending} == {"stopped": ending.value}
    assert f"{ending}" == str(ending) == ending.value
    assert repr(ending) == repr(ending.value)
    assert asdict(Outcome(None, 3, ending))["stopped"] == ending.value  # type: ignore[arg-type]
    assert ending.sentence
    assert ending.short


def test_a_run_ends_by_itself_at_its_rounds_or_budget_alone() -> None:
    assert {ending.value for ending in StopReason if ending.complete} == {"rounds", "budget"}
    with pytest.raises(ValueError, match="epochs"):
        StopReason("epochs")


def test_a_run_that_ended_on_its_own_or_diverged_is_not_resumed() -> None:
    assert {ending.value for ending in StopReason if ending.resumable} == {
        "unanswered",
        "interrupted",
        "failed",
    }


def test_a_loss_that_is_not_finite_is_reported_once() -> None:
    lost, found = [{"loss": 1.0}, {"loss": None}], [{"loss": None}, {"loss": 1.0}]
    assert "diverged" in divergence(StopReason.ROUNDS, lost)
    assert "diverged" in divergence(StopReason.INTERRUPTED, lost)
    assert divergence(StopReason.DIVERGED, lost) == ""  # it says so
    assert divergence(StopReason.ROUNDS, found) == divergence(StopReason.FAILED, []) == ""


@pytest.mark.parametrize(
    ("losses", "note"),
    [
        ([3.8e28], "the public test loss is 3.8e+28: the model has diverged"),
        ([2e7, 1.9e7], "the public test loss is 1.9e+07: the model has diverged"),
        ([2.3, 0.5, 51.0], "the public test loss is 51 and was 0.5: the model has diverged"),
        ([None, 2.0, 201.0], "the public test loss is 201 and was 2: the model has diverged"),
        ([2.3, 0.5, 49.0], ""),
        ([1e-4, 0.2], ""),  # small all the same
        ([51.0, 0.5], ""),
    ],
)
def test_a_loss_that_has_grown_far_is_reported(losses: list[float | None], note: str) -> None:
    metrics = [{"round": t, "loss": loss} for t, loss in enumerate(losses, 1)]
    found = divergence(StopReason.ROUNDS, metrics)
    assert found == (f"{note}; a smaller learning-rate may help" if note else "")
    assert divergence(StopReason.DIVERGED, metrics) == ""


def test_large_losses_of_values_may_be_their_unit() -> None:
    assert divergence(StopReason.ROUNDS, [{"loss": 3e9, "mse": 6e9}, {"loss": 2e9, "mse": 4e9}]) == ""
    grown = [{"loss": 1e9, "mse": 2e9}, {"loss": 2e11, "mse": 4e11}]
    assert "has diverged" in divergence(StopReason.ROUNDS, grown)
