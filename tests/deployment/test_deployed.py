"""End to end on loopback under TLS with authentication: three nodes, and who is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.absent_silos import missed, simulated
from helpers.deployed_runs import await_charges, finished, ledgers, started
from helpers.deployments import Deployment, await_true
from helpers.hosted_grid import SCRIPTS
from helpers.left_folders import require_ended
from helpers.toy_app import saved_params
from typer.testing import CliRunner

from fedpriv.accounting import ledger
from fedpriv.accounting.record import parse
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.deployment import control_api, enrol, flower_cli, keys
from fedpriv.deployment.folders import Party
from fedpriv.federated.stop_reason import StopReason
from fedpriv.flower.enrolment import Enrolment
from fedpriv.node.own_events import own_events
from fedpriv.node.policy_file import read_policy
from fedpriv.report.summary import enforced_guarantee
from fedpriv.runs.result import Result

SHORT = {"rounds": 2, "examples-per-client": 300, "seed": 5}

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployed") / "d", nodes=3, examples=300) as made:
        made.start_server()
        made.start_nodes(range(3))
        yield made


def asked(deployed: Deployment, name: str, **changes: object) -> tuple[list[str], Path, Config]:
    """(arguments of `fedpriv deploy`, folder, configuration) of a run with an example's settings."""
    settings = tomllib.loads((deployed.server.folder / f"{name}.toml").read_text())
    settings |= SHORT | {key.replace("_", "-"): value for key, value in changes.items()}
    folder = deployed.folder / f"out-{len(list(deployed.folder.glob('out-*')))}"
    options = [f"--set={key}={json.dumps(value)}" for key, value in (settings | {"out": str(folder)}).items()]
    file = str(deployed.server.folder / f"{name}.toml")
    return ["run", str(deployed.folder), file, *options], folder, Config.parse(settings)


def run(deployed: Deployment, name: str, **changes: object) -> tuple[int, str, Path, Config]:
    """(exit code, output, folder, configuration) of a run with an example's settings."""
    arguments, folder, config = asked(deployed, name, **changes)
    result = CliRunner().invoke(app, ["deploy", *arguments])  # another process takes seconds to begin
    return result.exit_code, result.output, folder, config


def require_equal(folder: Path, config: Config, expected: Result) -> dict[str, Any]:
    """The report of a run, whose model, charges and guarantee are those of a run on this machine."""
    torch.testing.assert_close(saved_params(folder, config), expected.params, rtol=0, atol=1e-6)
    own, simulated_ledger = ledger.read(folder / "ledger.jsonl"), parse(expected.ledger, "simulated")
    assert (own.events, own.labels) == (simulated_ledger.events, simulated_ledger.labels)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert enforced_guarantee(report) == enforced_guarantee(expected.report)
    for fact in ("noise multiplier", "releases", "relation", "sampler", "unit", "units", "views"):
        assert report["privacy"][fact] == expected.report["privacy"][fact]
    return report


@pytest.mark.parametrize(
    "name",
    ["central", *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("local", "secure", "client"))],
)
def test_a_deployment_equals_its_simulation(deployed: Deployment, name: str) -> None:
    """The model, every charge, and epsilon wherever it is stated. The nodes of "secure" add shares of the
    noise."""
    code, output, folder, config = run(deployed, name)
    assert code == 0, output + deployed.log("node-0") + deployed.log("server")[-3000:]
    expected = simulated(config)
    require_equal(folder, config, expected)
    assert require_ended(folder, StopReason.ROUNDS).epsilon == expected.epsilon
    assert 2.5 < expected.epsilon <= 3
    status = json.loads(CliRunner().invoke(app, ["deploy", "status", str(deployed.folder), "--json"]).stdout)
    assert [node["state"] for node in status["nodes"]] == ["online"] * 3
    assert status["runs"][0]["epsilon"] == pytest.approx(expected.epsilon)
    assert f"epsilon {expected.epsilon:.4g} is spent" in output
    kept = Enrolment(deployed.server.folder / "enrolment.json").heads()
    policies = [read_policy(deployed.folder / f"node-{k}/policy.toml") for k in range(3)]
    assert kept == {k: ledger.read(own.ledger, own.anchor).head for k, own in enumerate(policies)}


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
    assert len(control_api.nodes(deployed.server)) == 3


def test_who_reaches_only_the_nodes_address_starts_no_run(deployed: Deployment, tmp_path: Path) -> None:
    server = deployed.server
    facts = {**server.facts, "control-port": server.facts["port"]}
    shutil.copytree(server.folder, tmp_path / "server", ignore=shutil.ignore_patterns("flower", "*.db*"))
    outside = Party(tmp_path / "server", facts)
    with pytest.raises(flower_cli.FlowerError, match="failed"):
        flower_cli.start_run(outside, outside.folder / "fedpriv-app", [])
    with pytest.raises(flower_cli.FlowerError, match="failed"):
        control_api.register(outside, server.public_keys[0])


def test_one_nodes_key_does_not_take_anothers_place_and_a_revoked_key_stops_working(
    deployed: Deployment,
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
    deployed.give_new_key(2)
    deployed.start_nodes([1, 2])
    code, output, _, _ = run(deployed, "central")
    assert code == 0, output + deployed.log("server")[before:][-3000:]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("central", {}, marks=pytest.mark.exhaustive),
        ("secure", {"secure_aggregation": False, "min_replies": 2}),
    ],
)
def test_a_node_killed_in_round_2_changes_neither_noise_nor_epsilon(
    deployed: Deployment, name: str, changes: dict[str, object]
) -> None:
    """It is not started again before the run has ended. In the second case two shares of the noise suffice,
    and the server adds the missing one."""
    rounds = 4
    arguments, folder, config = asked(deployed, name, rounds=rounds, round_deadline=10, **changes)
    before = [len(ledger.read(path).events) for path in ledgers(deployed)]
    process = started(deployed, *arguments)
    await_charges(deployed, folder, 2)
    deployed.end("node-1", signal.SIGKILL)
    output = finished(process)
    deployed.give_new_key(1)
    deployed.start_nodes([1])
    assert "exit code 0" in output, output + deployed.log("server")[-3000:]

    absences = json.loads((folder / "report.json").read_text())["privacy"]["absences"]
    [absence] = [absence for absence in absences if absence["partition"] == 1]
    first = absence["from release"]
    assert 2 <= first <= absence["to release"] == rounds
    assert not absence["back"]
    assert f"release {first} on: without some silos: " in output
    report = require_equal(folder, config, simulated(config, missed({"privacy": {"absences": absences}})))
    undisturbed, plan = simulated(config), make_plan(config)
    assert enforced_guarantee(report) == enforced_guarantee(undisturbed.report)
    assert ledger.read(folder / "ledger.jsonl").events == plan.events
    require_ended(folder, StopReason.ROUNDS)
    planned = own_events(plan, 1)
    for partition, (path, count) in enumerate(zip(ledgers(deployed), before, strict=True)):
        new = ledger.read(path).events[count:]
        if partition == 1 and plan.mechanism.placement.at_parties:
            assert new in (planned[: first - 1], planned[:first]), "killed before or after a charge"
        else:
            assert new == planned
