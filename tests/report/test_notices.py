"""Notes before a run whose signal the noise may drown, and after one that learned nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.small import small
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.report.notices import drowned, guessing, remark


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


def lines_of(folder: Path, **changes: object) -> list[str]:
    """What `fedpriv simulate` prints for the small configuration with these keys changed."""
    table = small(seed=1, out=str(folder / "run"), **changes).table()
    keys = (
        "model",
        "clients",
        "sampling-rate",
        "rounds",
        "learning-rate",
        "evaluate-every",
        "engine",
        "seed",
    )
    given = (*keys, "out", *(key.replace("_", "-") for key in changes))
    result = CliRunner().invoke(app, ["simulate", *(f"--set={key}={table[key]}" for key in given)])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_a_drowned_run_has_a_note_before_its_first_round_and_one_after_its_last(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, clients=40, epsilon=0.1, delta=1e-4, rounds=2, evaluate_every=1)
    first, last = (next(i for i, line in enumerate(lines) if f"round {t}/2" in line) for t in (1, 2))
    assert any("NOTE: the noise may drown the signal" in line for line in lines[:first])
    assert any("is that of guessing" in line for line in lines[last:])


def test_a_run_that_learns_has_neither_note(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, clients=4000, rounds=3)
    assert not [line for line in lines if "drown" in line or "guessing" in line]


@pytest.mark.parametrize(("accuracy", "noted"), [(0.5, True), (0.53, True), (0.54, False), (1.0, False)])
def test_an_accuracy_within_two_standard_errors_of_the_largest_share_is_guessing(
    accuracy: float, noted: bool
) -> None:
    labels = [0, 1] * 500  # the standard error of a share of one half is 0.0158
    assert bool(guessing(accuracy, labels)) == noted


@pytest.mark.parametrize("accuracy", [None, math.nan])
def test_a_model_without_a_score_gets_no_such_note(accuracy: float | None) -> None:
    assert guessing(accuracy, [0, 1]) == []


def test_runs_that_give_no_protection_are_marked() -> None:
    assert remark(small()) is None
    for changes, said in (
        ({"noise_draws": "fast"}, "simulation grade: do not publish this model (noise-draws=fast)"),
        ({"seed": 7}, "reproducible, not private (seed 7)"),
        ({"placement": "none"}, "not private: no noise is added"),
    ):
        assert remark(small(**changes)) == said
