"""Notes before a run whose signal the noise may drown, and after one that learned nothing."""

from __future__ import annotations

import math

import pytest
from helpers.small import small

from fedpriv.config.plan import make_plan
from fedpriv.report.notices import drowned, guessing
from fedpriv.simulation.run import check, simulate


@pytest.mark.parametrize(("placement", "parties"), [("central", 1), ("local", 40)])
def test_the_ratio_is_of_the_noise_on_the_mean_to_the_clip_norm(placement: str, parties: int) -> None:
    plan = make_plan(small(placement=placement, sampler="fixed-size", optimizer="dp-sgd"))
    z = plan.mechanism.planned_events()[0].noise_multiplier
    ratio = 100 * z * math.sqrt(parties) / 40
    [note] = drowned(plan, 100**2)
    assert f"about {ratio:.3g} times the clip norm" in note
    assert drowned(plan, int((100 * 1.99 / ratio) ** 2)) == []


def test_a_run_without_noise_and_silos_of_their_own_get_no_note() -> None:
    assert drowned(make_plan(small(placement="none")), 10**9) == []
    silos = {"level": "client", "unit": "example", "clients": 4, "examples_per_client": 100}
    assert drowned(make_plan(small(**silos)), 10**9) == []


def test_a_small_federation_is_warned_and_says_that_it_learned_nothing() -> None:
    config = small(clients=40, epsilon=0.1, delta=1e-4, rounds=2, seed=1)
    plan = make_plan(config)
    assert any("drown" in note for note in check(config).warnings(plan))
    result = simulate(config)
    noted = any("that of guessing" in note for note in result.notes)
    assert noted == (result.metrics[-1]["accuracy"] < 0.14)  # ten labels, 360 test images


@pytest.mark.parametrize(("accuracy", "said"), [(0.5, True), (0.53, True), (0.54, False), (1.0, False)])
def test_an_accuracy_within_two_standard_errors_of_the_largest_share_is_guessing(
    accuracy: float, said: bool
) -> None:
    labels = [0, 1] * 500  # the standard error of a share of one half is 0.0158
    assert bool(guessing(accuracy, labels)) == said


@pytest.mark.parametrize("accuracy", [None, math.nan])
def test_a_model_without_a_score_gets_no_such_note(accuracy: float | None) -> None:
    assert guessing(accuracy, [0, 1]) == []
