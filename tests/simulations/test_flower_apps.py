"""simulations/flower_apps: ordinary Flower apps train privately once their patch is applied."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from helpers.hosted_grid import Federation
from helpers.scripts import SIMULATIONS

from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.runs.result import load_result

APPS = SIMULATIONS / "flower_apps"
NAMES = ("torch_app", "batchnorm_app", "sklearn_app")


def patched(name: str, folder: Path) -> Path:
    """A copy of the app with its patch applied."""
    app = Path(shutil.copytree(APPS / name, folder / name))
    subprocess.run(["git", "apply", "private.patch"], cwd=app, check=True, timeout=60)
    return app


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_changes_at_most_three_lines_of_the_server_alone(name: str) -> None:
    lines = (APPS / name / "private.patch").read_text().splitlines()
    assert sum(line.startswith("+") and not line.startswith("+++") for line in lines) <= 3
    assert {line for line in lines if line.startswith("+++")} == {f"+++ b/{name}/server_app.py"}
    assert "fedpriv" not in (APPS / name / name / "client_app.py").read_text()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_a_patched_app_learns_privately(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound well below the accuracies of its README: chance is 10 %."""
    app = patched(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(app)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, SUPERLINK_NODE_ID
    server = importlib.import_module(f"{name}.server_app")
    try:
        grid = InProcessGrid(100, client_app=f"{name}.client_app:app")
        server.app(grid, Context(0, 0, {}, RecordDict(), {"num-server-rounds": 20}))
    finally:
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[module]
    [folder] = (tmp_path / "runs").iterdir()
    result = load_result(folder)
    assert result.score > 0.6
    assert (result.stopped, result.report["privacy"]["releases"]) == ("rounds", 20)
    assert 7.5 < result.epsilon <= 8


@pytest.mark.slow
def test_a_patched_app_runs_on_flowers_own_engine(tmp_path: Path) -> None:
    app = patched("torch_app", tmp_path)
    server = app / "torch_app" / "server_app.py"
    few = server.read_text().replace("population=100", "population=4").replace("rounds=20", "rounds=2")
    server.write_text(few.replace('optimizer="dp-sgd"', f'optimizer="dp-sgd", folder="{tmp_path / "run"}"'))
    with Federation(tmp_path / "home", simulation=True) as federation:
        federation.run(
            {"num-server-rounds": 2},
            federation_config="num-supernodes=4 client-resources-num-cpus=1",
            app=app,
        )
        log = federation.log("superlink")
    report = json.loads((tmp_path / "run/report.json").read_text()) if (tmp_path / "run").exists() else log
    assert report["privacy"]["releases"] == 2, log
    assert report["result"]["stopped"] == "rounds"
