"""Runs and sweeps on a Ray cluster: two nodes, one of which is lost in mid-run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hosted_grid import ROOT
from typer.testing import CliRunner

from fedpriv._internal import ray_cluster
from fedpriv._internal.ray_cluster import ClusterError
from fedpriv.cli import app
from fedpriv.simulation.sweeps import plans


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_two_nodes_share_runs_and_a_sweep_and_one_may_be_lost(tmp_path: Path) -> None:
    """Results are those of this machine alone, bit for bit, also with a node that is gone in mid-run."""
    result = subprocess.run(
        [sys.executable, "tests/helpers/on_a_cluster.py", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["whole"], found
    assert found["lost"], found
    assert found["sweep"] == {"side by side": 2, "removed": True, "done": 4, "rows": found["sweep"]["rows"]}
    assert found["same table"], found


def test_a_cluster_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
    with pytest.raises(ClusterError, match="client protocol"):
        ray_cluster.start_ray()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9"),
        ("nowhere.invalid:6379", "no Ray cluster answers at nowhere.invalid:6379"),
        ("127.0.0.1:port", "RAY_ADDRESS is '127.0.0.1:port'; it must be HOST:PORT, or auto"),
    ],
)
def test_an_address_without_a_cluster_is_refused_before_any_work(
    address: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")  # which the option sets
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have a Ray
    result = CliRunner().invoke(app, ["simulate", "--ray-address", address])
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def test_a_cluster_for_a_run_in_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")  # which the option sets
    arguments = ["simulate", "--ray-address", "127.0.0.1:1", "--set", "engine=in-process"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--ray-address is '127.0.0.1:1'; it must be left out: engine is 'in-process'" in result.output


def test_actors_and_cells_are_counted_by_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray_cluster, "resources", lambda: {"CPU": 48.0, "GPU": 0.0})
    from fedpriv.config.plan import number_of_actors
    from fedpriv.config.schema import Config

    assert number_of_actors(Config.parse({"engine": "ray", "cpus-per-actor": 2})) == 24
    grid = {"settings": {"model": "logistic", "rounds": 2}, "grid": {"seed": list(range(1, 61))}}
    cells = [{**grid, "settings": {**grid["settings"], "engine": "in-process"}}]
    assert plans.prepare(cells[0]).jobs() == 48
