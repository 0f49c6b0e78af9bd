"""The deployment of docs/guides/deploy.md: a SuperLink, two SuperNodes with a file each, the same two apps.

A seeded deployment must end at the parameters of the same federation simulated in one process: the
nodes' files hold the examples that the simulation indexes.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hosted_grid import ROOT, Federation, python
from helpers.toy_app import in_process, saved_params

from fedpriv.config.schema import Config

# Few rounds: each message of a deployment starts a process and takes some seconds.
SHORT = {"rounds": 2, "examples-per-client": 500, "delta": 1e-5, "seed": 5}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("deployment")
    examples = str(SHORT["examples-per-client"])
    files = python("deploy/make_client_files.py", str(folder / "data"), "--examples", examples).split()
    assert [Path(name).name for name in files] == ["client-0.npz", "client-1.npz"]
    with Federation(folder / "flower") as started:
        for partition, name in enumerate(files):
            started.supernode(partition, 2, Path(name))
        yield started


def settings(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "deploy" / f"{name}.toml").read_text()) | SHORT


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", ["central", "local", "client"])
def test_a_deployment_equals_its_simulation(federation: Federation, tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    log = federation.run(settings(name) | {"out": str(out)})
    assert "stopped: rounds" in log, log + federation.log("superlink") + federation.log("supernode-0")
    assert json.loads((out / "report.json").read_text())
    assert len((out / "ledger.jsonl").read_text().splitlines()) >= SHORT["rounds"]
    config = Config.parse(settings(name))
    simulated = in_process(config.changed(nodes_own_data=False))
    torch.testing.assert_close(saved_params(out, config), simulated, rtol=0, atol=1e-6)
    for name in ("superlink", "supernode-0", "supernode-1"):
        assert "Traceback" not in federation.log(name)
