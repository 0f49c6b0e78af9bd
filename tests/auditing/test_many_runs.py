"""Audits of small runs that are repeated, with a guess about one unit each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.patching import patched
from helpers.small import small
from typer.testing import CliRunner

import fedpriv
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event
from fedpriv.auditing import auditor, judgement
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.judgement import Attack
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.subject import Subject
from fedpriv.cli import app
from fedpriv.federated.stop_reason import StopReason
from fedpriv.mechanism.placement import Central

SMALL: dict[str, Any] = {
    "clients": 12, "sampler": "everyone", "sampling_rate": 1.0, "epsilon": 1.0, "delta": 1e-6, "rounds": 1,
    "model": "logistic", "engine": "in-process", "optimizer": "dp-sgd", "seed": 0,
}  # fmt: skip
RUNS = 40
KINDS: dict[str, dict[str, Any]] = {"canaries": {}, "own data": {"own_data": True}}


def audited(**changes: Any) -> Finding:
    return fedpriv.audit(**{**SMALL, "runs": RUNS, **changes})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_sound_small_run_passes(kind: str) -> None:
    found = audited(**KINDS[kind], runs=10)
    assert not found.violated, found
    assert (found.runs, found.canaries, found.releases) == (10, 10, 1)
    assert max(found.proved, found.proved_by_curves) <= found.claimed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["canaries", "own data"])
def test_guesses_alone_find_noise_that_is_too_small(kind: str) -> None:
    """At the rate that is allowed, 54 %, all of 40 guesses are right once in 1e10 audits."""
    with patched(Central, "server_stds", lambda right, *given: tuple(0.02 * std for std in right(*given))):
        found = audited(**KINDS[kind])
    assert found.leaks, found
    assert found.right == RUNS
    assert found.proved > found.claimed


@pytest.mark.slow
def test_a_lone_score_of_the_last_model_is_compared_with_those_of_other_runs() -> None:
    """Present or not, a unit's gradient meets that of the others: one score tells nothing by its sign."""
    last = {"own_data": True, "view": "last-model", "averaging": 0.0}
    sound = audited(**last)
    assert not sound.violated, sound
    with patched(Central, "server_stds", lambda right, *given: tuple(0.02 * std for std in right(*given))):
        found = audited(**last)
    assert found.leaks, found
    assert found.right >= RUNS - 5
    assert found.proved <= found.claimed < found.measured


def test_no_later_run_enters_a_guess() -> None:
    def attack(score: float) -> Attack:
        events = (Event(1.0, "none", "add-remove"),)
        there = np.array([True])
        return Attack(np.array([[score]]), there, Residuals(1), events, StopReason.ROUNDS, True, lone=True)

    scores = judgement.joined([attack(score) for score in (5.0, 7.0, 3.0, 9.0)]).scores
    np.testing.assert_array_equal(scores, [[5.0, 2.0, -3.0, 4.0]])


def test_each_run_has_coins_and_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, started = list[Subject](), auditor.with_canaries

    def recorded(*given: Any) -> Subject:
        subjects.append(started(*given))
        return subjects[-1]

    monkeypatch.setattr(auditor, "with_canaries", recorded)
    found = audited(runs=20)
    coins = np.array([subject.there for subject in subjects])
    assert len(np.unique(coins, axis=0)) == 20
    assert len({subject.key.integer("noise") for subject in subjects}) == 20
    guessed = coins[np.arange(20), np.arange(20) % 12]  # one coin a run, which does not depend on the coins
    assert found.curve.true[-1] == found.curve.false[-1] == 1.0
    assert 0 < guessed.sum() < 20


def test_steps_on_neighbouring_data_are_repeated_in_the_first_run() -> None:
    with patched(
        auditor, "_compare_neighbours", lambda right, subject, watched, residuals: residuals.fault("a fault")
    ):
        assert audited(runs=2).irregular


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": 0}, "runs is 0; it must be a whole number of at least 1"),
        ({"own_data": True, "canaries": 5}, "canaries is 5; it must be 0 or 1 with several runs"),
        ({"own_data": True, "engine": "ray"}, "engine is 'ray'; it must be in-process with several runs"),
    ],
)
def test_what_cannot_be_repeated_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        audited(**changes)
    assert said in str(refused.value)


def test_the_command_repeats_a_run() -> None:
    given = {key.replace("_", "-"): value for key, value in SMALL.items() if key != "seed"}
    settings = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    shown = CliRunner().invoke(app, ["audit", "--runs", "4", "--seed", "0", *settings])
    assert shown.exit_code == 0, shown.output
    assert "4 runs, with a coin for one of the clients in each, dp-sgd, 1 release" in shown.stdout
    assert "proved by these runs alone" in shown.stdout


def test_an_interrupted_audit_is_judged_by_the_runs_so_far() -> None:
    """The claim is that of the runs that ended, not of the one that was cut."""
    seen: list[int] = []

    def stop(rounds: int) -> None:
        seen.append(rounds)
        if len(seen) == 3:  # in the second run
            raise KeyboardInterrupt

    config = small(**{**SMALL, "rounds": 2})
    found = auditor.audit(config, observe=stop, runs=5)
    assert (found.runs, found.releases, found.stopped) == (2, 2, StopReason.INTERRUPTED)
    assert found.claimed == auditor.audit(config, runs=2).claimed
