"""The app that audits a run where Flower starts the nodes: sound runs pass, faults on the way are found."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from helpers.hosted_grid import Federation
from helpers.patching import patched
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.config.schema import Config
from fedpriv.deployment import flower_app
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids.in_process import InProcessGrid
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


def audited(settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What the app's ServerApp prints over two nodes in this process."""
    config = Config.parse(settings)
    grid = InProcessGrid(2, config.table())
    context = Context(0, SUPERLINK_NODE_ID, {}, RecordDict(), dict(config.table()))
    audit_app.audit_app(COINS)(grid, context)
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", RUNS)
def test_a_sound_run_passes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings, sees = RUNS[kind]
    shown = audited(settings, capsys)
    assert "consistent with its ledger" in shown, shown
    assert f"the adversary: {sees}" in shown
    assert f"{COINS} of the run's own" in shown


def _sums_twice(right: Any, engine: Any, request: Any) -> Any:
    reply = right(engine, request)
    return replace(reply, sums=tuple(2 * part for part in reply.sums))


def _changes_twice(right: Any, engine: Any, request: Any) -> Any:
    return tuple(replace(change, delta=2 * change.delta) for change in right(engine, request))


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [("central", "gather", _sums_twice), ("client-level", "train", _changes_twice)],
)
def test_what_comes_back_twice_is_found(
    kind: str, name: str, wrong: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with patched(GridEngine, name, wrong):
        shown = audited(RUNS[kind][0], capsys)
    assert "VIOLATED" in shown, shown


def written(settings: dict[str, Any], folder: Path) -> Path:
    """The app that the command writes."""
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = ["audit", "--own-data", "--flower-app", str(folder), "--canaries", str(COINS), *given]
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
        ({**SILOS, "placement": "local", "sampler": "fixed-size"}, "engine is 'ray'; it must be in-process"),
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


@pytest.mark.slow
@pytest.mark.processes
def test_flowers_engine_is_audited(tmp_path: Path) -> None:
    """At both levels, under `flwr run`."""
    with Federation(tmp_path / "flower", simulation=True) as federation:
        for kind in ("local", "client-level"):
            folder = written({**RUNS[kind][0], "rounds": 1}, tmp_path / kind)
            log = federation.run({}, "num-supernodes=2 client-resources-num-cpus=1", folder)
            assert "consistent with its ledger" in log, log + federation.log("superlink")
            assert f"{COINS} of the run's own" in log
