"""End to end on loopback under TLS with authentication: three nodes, and who is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.deployments import Deployment, await_true
from helpers.hosted_grid import SCRIPTS
from helpers.toy_app import in_process, saved_params

from fedpriv.config.schema import Config
from fedpriv.deployment import enrol, flower_cli, keys
from fedpriv.deployment.folders import Party
from fedpriv.report.summary import enforced_guarantee

SHORT = {"rounds": 2, "examples-per-client": 300, "seed": 5}

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployed") / "d", nodes=3, examples=300) as made:
        made.start_server()
        made.start_nodes(range(3))
        yield made


def run(deployed: Deployment, name: str, **changes: object) -> tuple[int, str, Path, Config]:
    """(exit code, output, folder, configuration) of a run with an example's settings."""
    settings = tomllib.loads((deployed.server.folder / f"{name}.toml").read_text())
    settings |= SHORT | {key.replace("_", "-"): value for key, value in changes.items()}
    folder = deployed.folder / f"out-{len(list(deployed.folder.glob('out-*')))}"
    options = [f"--set={key}={json.dumps(value)}" for key, value in (settings | {"out": str(folder)}).items()]
    file = str(deployed.server.folder / f"{name}.toml")
    result = deployed.command("deploy", "run", str(deployed.folder), file, *options)
    return result.returncode, result.stdout, folder, Config.parse(settings)


@pytest.mark.parametrize("name", ["central", "local", "client"])
def test_a_deployment_equals_its_simulation(deployed: Deployment, name: str) -> None:
    code, output, folder, config = run(deployed, name)
    assert code == 0, output + deployed.log("node-0") + deployed.log("server")[-3000:]
    simulated = in_process(config.changed(nodes_own_data=False))
    torch.testing.assert_close(saved_params(folder, config), simulated, rtol=0, atol=1e-6)
    assert len((folder / "ledger.jsonl").read_text().splitlines()) >= 2
    status = json.loads(deployed.command("deploy", "status", str(deployed.folder), "--json").stdout)
    assert [node["state"] for node in status["nodes"]] == ["online"] * 3
    reported = json.loads((folder / "report.json").read_text())
    epsilon = enforced_guarantee(reported)["epsilon"]
    assert status["runs"][0]["epsilon"] == pytest.approx(epsilon)
    assert 2.5 < epsilon <= 3


def test_a_run_that_fails_is_told(deployed: Deployment) -> None:
    """The owners' policies do not allow this model, so no node is ready."""
    code, output, folder, _ = run(deployed, "central", model="mlp")
    assert code == 1, output
    assert "it wrote no report" in output
    assert not (folder / "ledger.jsonl").exists() or not (folder / "report.json").exists()


def _stranger(deployed: Deployment, name: str, key: Path | None) -> Path:
    """A copy of node 1's folder with another key, or with its own."""
    folder = deployed.folder.parent / name
    shutil.copytree(deployed.folder / "node-2", folder)
    if key is not None:
        (folder / "node.key").write_bytes(key.read_bytes())
        (folder / "node.key.pub").unlink()
    return folder


def test_a_fourth_node_and_a_wrong_server_are_refused(deployed: Deployment, tmp_path: Path) -> None:
    private, _ = keys.make_node_key()
    keys.write_new(tmp_path / "unknown.key", private, private=True)
    stranger = _stranger(deployed, "fourth", tmp_path / "unknown.key")
    deployed.start("fourth", stranger)
    await_true(lambda: not deployed.running("fourth"), lambda: deployed.log("fourth"))
    other = _stranger(deployed, "misled", None)
    (other / "ca.crt").write_bytes(keys.pem(keys.make_authority("somebody else").certificate))
    deployed.start("misled", other)
    await_true(lambda: not deployed.running("misled"), lambda: deployed.log("misled"))
    assert "wrong certificate" in deployed.log("misled")
    assert len(flower_cli.nodes(deployed.server)) == 3


def test_who_reaches_only_the_nodes_address_starts_no_run(deployed: Deployment, tmp_path: Path) -> None:
    server = deployed.server
    facts = {**server.facts, "control-port": server.facts["port"]}
    shutil.copytree(server.folder, tmp_path / "server", ignore=shutil.ignore_patterns("flower", "*.db*"))
    outside = Party(tmp_path / "server", facts)
    with pytest.raises(flower_cli.FlowerError, match="failed"):
        flower_cli.start_run(outside, outside.folder / "fedpriv-app", [])
    with pytest.raises(flower_cli.FlowerError, match="failed"):
        flower_cli.register(outside, server.public_keys[0])


def test_one_nodes_key_does_not_take_anothers_place_and_a_revoked_key_stops_working(
    deployed: Deployment, tmp_path: Path
) -> None:
    before = len(deployed.log("server"))
    deployed.end("node-1")
    policy = deployed.folder / "node-2/policy.toml"
    own = policy.read_text()
    deployed.end("node-2")
    policy.write_text(own.replace("partition-id = 2", "partition-id = 1"))  # with the key of partition 2
    posing = subprocess.Popen(
        [str(SCRIPTS / "fedpriv"), "node", "run", "policy.toml"],
        cwd=policy.parent, env=deployed.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        code, output, _, _ = run(deployed, "central")
        assert code == 1, output
        assert "is enrolled for partition 2, but says that it is partition 1" in output, output
    finally:
        posing.terminate()
        posing.wait(timeout=30)
        policy.write_text(own)
    enrol.revoke(deployed.server, 2)
    deployed.start("node-2")
    await_true(lambda: not deployed.running("node-2"), lambda: deployed.log("node-2"))
    private, public = keys.make_node_key()
    (tmp_path / "new.pub").write_bytes(public)
    enrol.rotate(deployed.server, 2, tmp_path / "new.pub")
    (deployed.folder / "node-2/node.key").write_bytes(private)
    (deployed.folder / "node-2/node.key.pub").write_bytes(public)
    deployed.start_nodes([1, 2])
    code, output, _, _ = run(deployed, "central")
    assert code == 0, output + deployed.log("server")[before:][-3000:]
