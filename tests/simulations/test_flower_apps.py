"""simulations/flower_apps: ordinary Flower apps train privately once their patch is applied."""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from helpers.hosted_grid import ROOT, Federation
from helpers.scripts import SIMULATIONS

from fedpriv.accounting.ledger import read
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.runs.result import load_result

APPS = SIMULATIONS / "flower_apps"
NAMES = ("torch_app", "batchnorm_app", "sklearn_app")
PATCHES = [*((name, "private.patch", "server_app") for name in (*NAMES, "mnist_app"))]
PATCHES += [("mnist_app", "silo.patch", "client_app")]


def patched(name: str, folder: Path, patch: str = "private.patch") -> Path:
    """A copy of the app with its patch applied."""
    app = Path(shutil.copytree(APPS / name, folder / name))
    subprocess.run(["git", "apply", patch], cwd=app, check=True, timeout=60)
    return app


@pytest.mark.parametrize(("name", "patch", "module"), PATCHES)
def test_a_patch_adds_at_most_three_lines_to_one_module(
    name: str, patch: str, module: str, tmp_path: Path
) -> None:
    lines = (APPS / name / patch).read_text().splitlines()
    assert sum(line.startswith("+") and not line.startswith("+++") for line in lines) <= 3
    assert {line for line in lines if line.startswith("+++")} == {f"+++ b/{name}/{module}.py"}
    assert "fedpriv" not in (APPS / name / name / f"{module}.py").read_text()
    assert "fedpriv" in (patched(name, tmp_path, patch) / name / f"{module}.py").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_guide_shows_the_diff_of_each_app(name: str) -> None:
    """The changed lines, without the paths and the lines around them."""
    guide = (ROOT / "docs/guides/flower-app.md").read_text()
    lines = (APPS / name / "private.patch").read_text().splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) >= 2
    for line in changed:
        assert line in guide, line


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
@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "torch_app" else pytest.mark.exhaustive) for name in NAMES],
)
def test_a_patched_app_runs_on_flowers_own_engine(name: str, tmp_path: Path) -> None:
    app = patched(name, tmp_path)
    server = app / name / "server_app.py"
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


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_silos_and_virtual_clients_run_on_flowers_own_engine(tmp_path: Path) -> None:
    """mnist_app with silo.patch under FedAvg, on made-up images, and torch_app's virtual clients."""
    digits = tmp_path / "data/mnist"
    digits.mkdir(parents=True)
    for part, count in (("train", 80), ("t10k", 20)):
        images, labels = np.arange(count * 784) % 251, np.arange(count) % 10
        for name, header, values in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            content = bytes(header) + values.astype(np.uint8).tobytes()
            (digits / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    silos = patched("mnist_app", tmp_path, "silo.patch")
    client = silos / "mnist_app/client_app.py"
    client.write_text(client.read_text().replace('f"{number}.jsonl"', f'f"{tmp_path}/{{number}}.jsonl"'))
    virtual = patched("torch_app", tmp_path)
    server = virtual / "torch_app/server_app.py"
    few = f'rounds=2, virtual_clients=True, folder="{tmp_path / "run"}"'
    server.write_text(server.read_text().replace("rounds=20", few))
    project = virtual / "pyproject.toml"
    project.write_text(project.read_text().replace("client_app:app", "virtual_app:app"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPRIV_DATA", str(tmp_path / "data"))
        with Federation(tmp_path / "home", simulation=True) as federation:
            nodes = {"federation_config": "num-supernodes=2 client-resources-num-cpus=1"}
            federation.run({"num-server-rounds": 2, "fraction-train": 1.0}, **nodes, app=silos)
            log = federation.run({"num-server-rounds": 2}, **nodes, app=virtual)
    for silo in range(2):
        events = read(tmp_path / f"{silo}.jsonl").events
        assert sum(event.count for event in events) == 8, log  # two rounds of four steps
    assert (tmp_path / "run/report.json").exists(), log
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert (report["result"]["stopped"], report["privacy"]["releases"]) == ("rounds", 2), log
