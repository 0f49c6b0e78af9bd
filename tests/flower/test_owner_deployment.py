"""``fedpriv node`` on loopback: a SuperLink, two owners' nodes, ``flwr run``; and a thief's run."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.hosted_grid import ROOT, SCRIPTS, Federation, python
from helpers.owner_policy import write_policy

from fedpriv.accounting.ledger import read
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.node.journal import read_journal
from fedpriv.node.own_events import answered
from fedpriv.node.policy_file import Policy, read_policy
from fedpriv.secure_aggregation.keys import Identity

SHORT = {"rounds": 3, "examples-per-client": 500, "delta": 1e-5}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, list[Policy]]]:
    folder = tmp_path_factory.mktemp("owners")
    python("deploy/make_client_files.py", str(folder / "data"), "--examples", "500")
    identities = [Identity.fresh() for _ in range(2)]
    (folder / "peers").write_text("".join(f"{identity.public.hex()}\n" for identity in identities))
    policies = []
    with Federation(folder / "flower") as started:
        for partition in range(2):
            own = folder / f"owner-{partition}"
            own.mkdir()
            (own / "identity").write_text(identities[partition].secret.private_bytes_raw().hex())
            path = write_policy(
                own,
                ('["local", "central"]', '["local", "central", "distributed"]'),
                (
                    "insecure = true",
                    f'insecure = true\nidentity-key = "identity"\npeer-keys = "{folder}/peers"',
                ),
                ("127.0.0.1:8000", f"127.0.0.1:{started.port}"),
                ("partition-id = 1\nnum-partitions = 5", f"partition-id = {partition}\nnum-partitions = 2"),
                ("data/silo.npz", f"{folder}/data/client-{partition}.npz"),
                ('"dp-sgd"', '"dynamic-dp-sgd"'),
            )
            policies.append(read_policy(path))
            started.owner_node(f"node-{partition}", path)
        yield started, policies


def settings(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "deploy" / f"{name}.toml").read_text()) | SHORT


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", [pytest.param("central", marks=pytest.mark.exhaustive), "local"])
def test_owners_nodes_train_a_model(
    federation: tuple[Federation, list[Policy]], tmp_path: Path, name: str
) -> None:
    started, policies = federation
    before = [len(read(policy.ledger, policy.anchor).events) for policy in policies]
    log = started.run(settings(name) | {"out": str(tmp_path / "run")})
    assert "stopped: rounds" in log, log + started.log("superlink") + started.log("node-0")
    plan = make_plan(Config.parse(settings(name)))
    assert read(tmp_path / "run" / "ledger.jsonl").events == plan.events
    for policy, count in zip(policies, before, strict=True):
        assert len(read(policy.ledger, policy.anchor).events) == count + 3


@pytest.mark.slow
@pytest.mark.processes
def test_owners_nodes_aggregate_securely(federation: tuple[Federation, list[Policy]], tmp_path: Path) -> None:
    """The server learns the sum alone, and each node charges the noise of the sum that it can rely on."""
    started, policies = federation
    before = [len(read(policy.ledger, policy.anchor).events) for policy in policies]
    config = settings("local") | {"placement": "distributed", "secure-aggregation": True}
    log = started.run(config | {"out": str(tmp_path / "run")})
    assert "stopped: rounds" in log, log + started.log("superlink") + started.log("node-0")
    plan = make_plan(Config.parse(config))
    assert read(tmp_path / "run" / "ledger.jsonl").events == plan.events
    for policy, count in zip(policies, before, strict=True):
        charged = read(policy.ledger, policy.anchor).events[count:]
        assert charged == tuple(answered(plan, planned, 1) for planned in plan.mechanism.planned)
    report = (tmp_path / "run" / "report.md").read_text()
    assert "no message (secure aggregation)" in report


THIEF = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "fedpriv"
version = "0.1.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "thief"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "fedpriv.thief:server"
clientapp = "fedpriv.thief:client"
[tool.flwr.app.config]
""",
    "LICENSE": "none\n",
    "fedpriv/__init__.py": "import pathlib\npathlib.Path(MARK).write_text('imported')\n",
    "fedpriv/thief.py": """
import os, pathlib, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def steal(message, context):
    data = pathlib.Path(context.node_config["data-file"]).read_bytes()
    pathlib.Path(MARK + "-" + str(os.getpid())).write_bytes(data)
    return Message(RecordDict({"all": ConfigRecord({"data": data})}), reply_to=message)

@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    for kind in ("train", "query", "train.silos"):
        asked = [Message(RecordDict(), node, kind, ttl=60.0) for node in nodes]
        for reply in grid.send_and_receive(asked, timeout=60.0):
            found = reply.error.reason if reply.has_error() else sorted(reply.content.items())
            print("the thief got", kind, found, flush=True)
""",
}


def thief(folder: Path, config: dict[str, Any]) -> Path:
    """An app in the name of fedpriv whose nodes read their owner's file, with a configuration."""
    for name, text in THIEF.items():
        path = folder / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("MARK", repr(str(folder / "stolen"))))
    with (folder / "app" / "pyproject.toml").open("a") as file:
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in config.items())
    return folder / "app"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("allowed", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_thiefs_run_gets_nothing(
    federation: tuple[Federation, list[Policy]], tmp_path: Path, allowed: bool
) -> None:
    """Whether or not its configuration is one that the owners allow."""
    started, policies = federation
    ledgers = [policy.ledger.read_bytes() for policy in policies]
    config = Config.parse(settings("local") | ({} if allowed else {"epsilon": 1000.0})).table()
    log = started.run({}, app=thief(tmp_path, config))
    got = [line for line in log.splitlines() if line.startswith("the thief got")]
    if allowed:  # the query is answered as every run's is: with the node's place
        places = [line for line in got if "the thief got query" in line]
        assert len(places) == 2
        assert all("partition-id" in line and "data" not in line.split("query", 1)[1] for line in places)
        got = [line for line in got if line not in places]
        assert sorted(line.split()[-1] for line in got) == ["ArgumentError"] * 2 + ["MessageError"] * 2, log
    else:
        assert [line.split()[-1] for line in got] == ["RefusedError"] * 6, log
    # The SuperLink ran the thief's ServerApp, which is the thief's own; no node imported the package.
    assert not list(tmp_path.glob("stolen-*"))
    assert [policy.ledger.read_bytes() for policy in policies] == ledgers
    for policy in policies:
        last = read_journal(policy.journal)[-1]
        assert last["event"] == "refused"
        if not allowed:
            assert "the run's epsilon is 1000" in last["why"]
        shown = subprocess.run(
            [str(SCRIPTS / "fedpriv"), "node", "status", str(policy.path)], capture_output=True, text=True
        )
        assert shown.returncode == 0
        assert last["why"] in shown.stdout
