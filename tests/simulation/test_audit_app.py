"""The app that audits a run where Flower starts the nodes: sound runs pass, faults on the way are found."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from helpers.hosted_grid import ROOT, Federation
from helpers.patching import patched
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.config.schema import Config
from fedpriv.deployment import flower_app
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.mechanism.placement import Central
from fedpriv.simulation import audit_app

CLIENTS: dict[str, Any] = {
    "clients": 60, "model": "logistic", "epsilon": 4.0, "rounds": 2, "sampling-rate": 0.2, "seed": 0,
}  # fmt: skip
SILOS: dict[str, Any] = {**CLIENTS, "unit": "example", "clients": 3, "examples-per-client": 40}
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "central": (CLIENTS, "who sees the released models"),
    "local": (
        {**CLIENTS, "placement": "local", "sampler": "fixed-size"}, "the server, which sees each message",
    ),
    "replaced": (
        {**CLIENTS, "clients": 20, "sampler": "fixed-size", "sampling-rate": 0.8},
        "who sees the released models",
    ),
    "distributed": ({**SILOS, "placement": "distributed"}, "who sees the released models"),
    "client-level": (
        {**SILOS, "level": "client", "silo-steps": 2}, "who sees the released models",
    ),
}  # fmt: skip
COINS = 10
OWN = "helpers.own_data:source"  # a data set that is the user's own module, with a model of its own
PLANTED: dict[str, dict[str, Any]] = {
    "central": {"clients": 60, "dataset": OWN, "model": "mlp"},
    "replaced": {"clients": 60, "sampler": "fixed-size", "sampling-rate": 0.5},
    "local": {"clients": 60, "placement": "local", "sampler": "fixed-size", "dataset": OWN},
    "the client level": {**SILOS, "level": "client", "silo-steps": 2, "dataset": OWN},
    "distributed": {**SILOS, "placement": "distributed"},
}


def audited(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str], coins: int = COINS, view: str = "auto"
) -> str:
    """What the app's ServerApp prints over two nodes in this process."""
    config = Config.parse(settings)
    grid = InProcessGrid(2, config.table())
    context = Context(0, SUPERLINK_NODE_ID, {}, RecordDict(), dict(config.table()))
    audit_app.audit_app(coins, view)(grid, context)
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.slow
def test_a_sound_run_passes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings, sees = RUNS[kind]
    shown = audited(settings, capsys)
    assert "consistent with its ledger" in shown, shown
    assert f"the adversary: {sees}" in shown
    assert f"{COINS} of the run's own" in shown


def _planted(kind: str) -> dict[str, Any]:
    return {**CLIENTS, "rounds": 1, **PLANTED[kind], "planted-canaries": COINS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_canaries_in_ones_own_data_and_model_pass_in_a_sound_run(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = audited(_planted(kind), capsys, coins=0)
    assert "consistent with its ledger" in shown, shown
    assert f"{COINS} canaries planted among the run's own" in shown
    assert "its model was trained on canaries" in shown


def _scaled(right: Any, *given: Any) -> Any:
    return tuple(0.5 * std for std in right(*given))


def test_less_noise_on_canaries_in_ones_own_data_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    with patched(Central, "server_stds", _scaled):
        shown = audited(_planted("central"), capsys, coins=0)
    assert "VIOLATED: there is noise that is too small" in shown, shown


def _sums_twice(right: Any, engine: Any, request: Any) -> Any:
    reply = right(engine, request)
    return replace(reply, sums=tuple(2 * part for part in reply.sums))


def _changes_twice(right: Any, engine: Any, request: Any) -> Any:
    return tuple(replace(change, delta=2 * change.delta) for change in right(engine, request))


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [("central", "gather", _sums_twice), ("client-level", "train", _changes_twice)],
)
@pytest.mark.slow
def test_what_comes_back_twice_is_found(
    kind: str, name: str, wrong: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with patched(GridEngine, name, wrong):
        shown = audited(RUNS[kind][0], capsys)
    assert "VIOLATED" in shown, shown


def written(settings: dict[str, Any], folder: Path, coins: int = COINS) -> Path:
    """The app that the command writes."""
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = ["audit", "--own-data", "--flower-app", str(folder), "--canaries", str(coins), *given]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert f"flwr run {folder}" in " ".join(shown.stdout.split())
    return folder


def test_the_command_writes_an_app_with_the_settings_and_a_seed(tmp_path: Path) -> None:
    folder = written({key: value for key, value in SILOS.items() if key != "seed"}, tmp_path / "app")
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = Config.parse(settings)
    assert (config.clients, config.examples_per_client, config.model) == (3, 40, "logistic")
    assert config.seed >= 0
    assert "audit_app(10, 'auto', 0.99)" in (folder / flower_app.NAME / "server.py").read_text()
    assert json.dumps(flower_app.files(), sort_keys=True) == json.dumps(
        flower_app.files(None, ""), sort_keys=True
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"placement": "none"}, "placement is 'none'; it must add noise"),
        (
            {**SILOS, "placement": "local", "sampler": "fixed-size", "engine": "in-process"},
            "placement is 'local'; it must be central in an app where an example replaces another one (nodes "
            "refuse a message with an example twice; audit it with --own-data and engine=in-process)",
        ),
        (
            {**SILOS, "placement": "distributed", "secure-aggregation": True},
            "secure-aggregation is True; it must be false in an app, whose nodes keep no keys from message "
            "to message (`fedpriv audit --own-data` has it, and --deployment audits it on `fedpriv node "
            "run`)",
        ),
        (
            {"nodes-own-data": True, "sampler": "everyone", "sampling-rate": 1.0},
            "nodes-own-data is True; it must be false for an audit (`fedpriv audit --deployment` audits a "
            "deployment whose nodes are all yours)",
        ),
        ({"planted-canaries": 5}, "canaries is 10; it must be 0 with planted-canaries=5"),
        ({"seed": -1}, "seed is -1; it must be 0 or more in an audit of nodes"),
        ({"clients": 5}, "canaries is 10; it must be at most the run's 5 units"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArgumentError) as refused:
        audited({**CLIENTS, **changes}, capsys)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "coins", "view", "said"),
    [
        ({"planted-canaries": 31}, 0, "auto", "planted-canaries is 31; it must be at most 30 in this run"),
        ({}, COINS, "server", "view is 'server'; it must be models with placement central"),
        ({**SILOS, "level": "client"}, COINS, "last-model", "it must be models with level client"),
        ({}, COINS, "all", "view is 'all'; it must be one of auto, models, last-model, server, parties"),
    ],
)
def test_canaries_and_views_that_an_app_cannot_have_are_refused(
    changes: dict[str, Any], coins: int, view: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArgumentError) as refused:
        audited({**CLIENTS, **changes}, capsys, coins, view)
    assert said in str(refused.value)
    assert capsys.readouterr().out == f"fedpriv: {refused.value}\n"  # Flower shows a traceback after it


def test_the_command_refuses_what_its_app_would_refuse_and_writes_nothing(tmp_path: Path) -> None:
    """Whatever engine the settings name, since the nodes of an app are other processes."""
    silos = {**SILOS, "placement": "local", "sampler": "fixed-size", "engine": "in-process"}
    for settings, said in (
        (silos, "placement is 'local'; it must be central in an app"),
        ({**SILOS, "placement": "distributed", "secure-aggregation": "true"}, "secure-aggregation is True"),
    ):
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = ["audit", "--own-data", "--flower-app", str(tmp_path / "app"), *given]
        shown = CliRunner().invoke(app, command)
        assert shown.exit_code == 2, shown.output
        assert said in " ".join(shown.stderr.split())
        assert not (tmp_path / "app").exists()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_flowers_engine_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At both levels, and with canaries in one's own data, under `flwr run`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), str(ROOT)]))  # the user's module
    planted = f"{COINS} canaries planted among the run's own"
    with Federation(tmp_path / "flower", simulation=True) as federation:
        for name, settings, coins, said in (
            ("local", RUNS["local"][0], COINS, f"{COINS} of the run's own"),
            ("silos", RUNS["client-level"][0], COINS, f"{COINS} of the run's own"),
            ("planted", _planted("central"), 0, planted),
            ("planted-silos", _planted("the client level"), 0, planted),
        ):
            folder = written({**settings, "rounds": 1}, tmp_path / name, coins)
            log = federation.run({}, "num-supernodes=2 client-resources-num-cpus=1", folder)
            assert "consistent with its ledger" in log, log + federation.log("superlink")
            assert said in log
