"""Audits of canaries that are planted among a run's own units, in its own model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import own_runs
from helpers.patching import patched
from torch import nn
from typer.testing import CliRunner

import fedpriv
from fedpriv._internal.validation import ArgumentError
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.own_units import OwnUnits
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated import worker
from fedpriv.mechanism.placement import Central, Local
from fedpriv.node.factory import make_worker

COINS = {"planted_canaries": 30}
RUN: dict[str, Any] = {**own_runs.RUN, **COINS}
EVERYONE: dict[str, Any] = {**own_runs.EVERYONE, **COINS}
SILOS: dict[str, Any] = {**own_runs.SILOS, **COINS}
SOUND: dict[str, dict[str, Any]] = {
    **{name: {**settings, **COINS} for name, settings in own_runs.SOUND.items()},
    "dp-sgd, replaced units": {**RUN, "optimizer": "dp-sgd", "sampler": "fixed-size"},
    "a convolutional network": {**RUN, "model": "cnn", "planted_canaries": 10, "clients": 100},
    "the last model": {**EVERYONE, "view": "last-model"},
    "distributed, silos' messages": {**SILOS, "placement": "distributed", "view": "server"},
    "secure aggregation": {
        **SILOS, "sampler": "everyone", "sampling_rate": 1.0, "placement": "distributed", "rounds": 2,
        "secure_aggregation": True, "view": "server",
    },
}  # fmt: skip
DEFAULT = ("dp-sgd, replaced units", "the client level")
# A run in which 200 units with coins are enough for guesses alone.
ATTACKED: dict[str, Any] = {
    **EVERYONE, "clients": 1000, "optimizer": "dp-sgd", "epsilon": 2.0, "delta": 1e-6,
    "planted_canaries": 200,
}  # fmt: skip


def audited(settings: dict[str, Any], **more: Any) -> Finding:
    return fedpriv.audit(**settings, **more, own_data=True)


def left_out(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with as many of the run's own units in place of canaries."""
    number = settings["planted_canaries"]
    return {**settings, "planted_canaries": 0, "canaries": number}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in DEFAULT else [pytest.mark.slow, pytest.mark.exhaustive])
        for kind in SOUND
    ],
)
def test_a_sound_run_passes(kind: str) -> None:
    found = audited(SOUND[kind])
    assert not found.violated, found
    assert (found.own_data, found.planted, found.stopped) == (True, True, "rounds")
    # Colluding parties know their own coins.
    assert found.canaries in (SOUND[kind]["planted_canaries"], SOUND[kind]["planted_canaries"] - 1)
    assert found.proved <= found.claimed
    assert found.proved_by_curves <= found.claimed


def _scaled(factor: float) -> Any:
    return lambda right, *given: tuple(factor * std for std in right(*given))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_guesses_about_planted_canaries_find_noise_that_those_about_own_units_do_not(seed: int) -> None:
    """A fifth of the noise: the auditor's test of residuals plays no part in ``leaks``."""
    with patched(Central, "server_stds", _scaled(0.2)):
        planted, own = audited({**ATTACKED, "seed": seed}), audited(left_out({**ATTACKED, "seed": seed}))
    assert planted.leaks
    assert planted.p_value < 1e-3
    assert planted.proved_by_curves > planted.claimed
    assert not own.leaks
    assert own.p_value > 0.1


@pytest.mark.slow
def test_bounds_are_nearer_to_the_claim_than_those_of_own_units() -> None:
    settings = {**ATTACKED, "epsilon": 4.0, "delta": 1e-5, "rounds": 5}
    planted, own = audited(settings, confidence=0.95), audited(left_out(settings), confidence=0.95)
    assert not planted.violated
    assert planted.right > own.right + 10  # of 200
    assert planted.proved > own.proved + 0.2
    assert planted.proved_by_curves > own.proved_by_curves + 0.8


def test_less_local_noise_is_found() -> None:
    settings = {**RUN, "placement": "local", "sampler": "fixed-size"}
    with patched(Local, "party_stds", _scaled(0.9)):
        found = audited(settings)
    assert found.irregular
    assert "too small" in found.oddest


@pytest.mark.slow
def test_a_clip_that_does_not_hold_is_found_where_own_units_are_shorter_than_the_clip() -> None:
    """A unit of the run's own never reaches this clip norm, so that only a canary finds the fault."""
    settings = {**RUN, "clip_norm": 1e3}

    def too_long(right: Any, *given: Any, **named: Any) -> Any:
        return tuple(total * (1.2 if float(total.norm()) > 900 else 1) for total in right(*given, **named))

    assert not audited(settings).violated
    with patched(worker, "clipped_sum", too_long):
        planted, own = audited({**settings, "rounds": 1}), audited(left_out({**settings, "rounds": 1}))
    assert "more than its bound" in planted.oddest
    assert not own.irregular, own.oddest


def test_the_users_own_model_and_data_have_canaries() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 8, generator=generator), torch.arange(300) % 3
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    settings = {key: value for key, value in RUN.items() if key not in ("clients", "model")}
    found = audited(settings, dataset=(x, y, x[:50], y[:50]), model=model)
    assert not found.violated
    assert found.planted


@pytest.mark.slow
def test_many_small_runs_have_one_coin_each() -> None:
    small = {**EVERYONE, "clients": 20, "rounds": 2, "epsilon": 2.0, "planted_canaries": 4}
    found = audited(small, runs=30)
    assert (found.runs, found.canaries) == (30, 30)
    assert not found.violated


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(RUN, marks=pytest.mark.exhaustive),
        {**SILOS, "level": "client", "silo_steps": 2, "rounds": 2},
    ],
)
def test_other_processes_have_the_same_canaries(settings: dict[str, Any]) -> None:
    plain, ray = (audited({**settings, "engine": engine}) for engine in ("in-process", "ray"))
    assert ray == replace(plain, curve=ray.curve, claim=ray.claim)
    assert not ray.violated


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (RUN, {"own_data": True, "canaries": 20}, "canaries is 20; it must be 0 with planted_canaries=30"),
    ({**RUN, "planted_canaries": 201}, {"own_data": True}, "planted_canaries is 201; it must be at most 200"),
    (
        {**SILOS, "examples_per_client": 1, "planted_canaries": 1},
        {"own_data": True},
        "planted_canaries is 1; it must be at most 0",
    ),
    (RUN, {}, "planted_canaries is 30; it must be 0 without --own-data"),
]


@pytest.mark.parametrize(("settings", "options", "said"), REFUSED)
def test_what_cannot_be_planted_is_refused(
    settings: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError) as refused:
        fedpriv.audit(settings, **options)
    assert said in str(refused.value)


def test_a_run_that_is_no_audit_has_no_canaries() -> None:
    with pytest.raises(ArgumentError, match="planted_canaries is 30; it must be 0 in a run"):
        fedpriv.simulate(RUN)


def test_nodes_that_own_their_data_have_no_canaries() -> None:
    settings = {"nodes-own-data": True, "clients": 4, "planted-canaries": 1, "sampler": "everyone"}
    with pytest.raises(ArgumentError, match="planted-canaries is 1; it must be 0 where nodes own their data"):
        make_plan(Config.parse({**settings, "sampling-rate": 1.0}))


def test_the_command_says_what_it_planted() -> None:
    given = {key.replace("_", "-"): value for key, value in RUN.items() if key != "seed"}
    settings = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    shown = CliRunner().invoke(app, ["audit", "--own-data", "--seed", "0", *settings])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("audit run, not for use: its model was trained on canaries")
    assert "30 canaries planted among the run's own clients, dynamic-dp-sgd" in shown.stdout


def test_canaries_are_probed_on_neighbouring_data_beside_own_units() -> None:
    side = make_worker(Config.parse({"clients": 20, "model": "logistic", "planted-canaries": 2}).table())
    units = OwnUnits(side.view, side, np.array([0, 10]), np.array([10]), False, 20)
    assert units.probed(np.array([3, 9, 10, 0, 5]), 3).tolist() == [0, 3, 9]


def test_canaries_whose_coins_are_all_known_are_refused() -> None:
    run = {**SILOS, "sampler": "everyone", "sampling_rate": 1.0, "placement": "distributed", "rounds": 1}
    with pytest.raises(ArgumentError, match="no planted canary has a coin"):
        fedpriv.audit(
            **{**run, "colluding_parties": 2, "view": "parties", "planted_canaries": 1, "own_data": True}
        )
