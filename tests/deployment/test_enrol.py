"""Keys are enrolled, replaced and revoked, each bound to its partition, over a twin of Flower's registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.deployment import control_api, enrol, flower_cli, keys, runs
from fedpriv.deployment.flower_cli import FlowerError
from fedpriv.deployment.folders import Party, read_server
from fedpriv.deployment.provision import Request, provision
from fedpriv.flower.enrolment import Enrolment, EnrolmentError


class Registry:
    """Flower's registered keys: a key is registered once, and an id is never given twice."""

    def __init__(self) -> None:
        self.nodes: dict[int, bytes] = {}
        self.next = 100
        self.seen: list[str] = []

    def register(self, server: Party, path: Path) -> int:
        line = keys.read_node_public(path)
        if line in self.nodes.values():
            raise FlowerError("the key is in use")
        self.next += 1
        self.nodes[self.next] = line
        self.seen.append(server.enrolment.read_text() if server.enrolment.is_file() else "")
        return self.next

    def unregister(self, server: Party, node: int) -> None:
        self.seen.append(server.enrolment.read_text())
        del self.nodes[node]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(control_api, "register", made.register)
    monkeypatch.setattr(control_api, "unregister", made.unregister)
    monkeypatch.setattr(control_api, "nodes", lambda server: dict.fromkeys(made.nodes, "online"))
    return made


@pytest.fixture
def server(tmp_path: Path) -> Party:
    provision(tmp_path / "d", Request(3))
    return read_server(tmp_path / "d")


def new_key(folder: Path) -> Path:
    path = folder / "new.pub"
    path.write_bytes(keys.make_node_key()[1])
    return path


def test_each_key_is_registered_once_and_bound_to_its_partition(server: Party, registry: Registry) -> None:
    assert enrol.enrol(server) == {0: 101, 1: 102, 2: 103}
    assert enrol.enrol(server) == {}
    assert Enrolment(server.enrolment).partitions() == {101: 0, 102: 1, 103: 2}
    for partition, path in enumerate(server.public_keys):
        assert registry.nodes[101 + partition] == keys.read_node_public(path)


def test_an_enrolment_that_was_cut_off_is_continued(
    server: Party, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(party: Party, path: Path) -> int:
        if path.name == "node-2.pub":
            raise FlowerError("gone")
        return registry.register(party, path)

    monkeypatch.setattr(control_api, "register", failing)
    with pytest.raises(FlowerError):
        enrol.enrol(server)
    assert set(enrol.enrolled(server)) == {0, 1}
    monkeypatch.setattr(control_api, "register", registry.register)
    assert set(enrol.enrol(server)) == {2}


def test_a_revoked_key_loses_its_place_before_flower_hears_of_it(server: Party, registry: Registry) -> None:
    enrol.enrol(server)
    enrol.revoke(server, 1)
    assert Enrolment(server.enrolment).partitions() == {101: 0, 103: 2}
    assert set(json.loads(registry.seen[-1])) == {"0", "2"}
    assert set(registry.nodes) == {101, 103}
    with pytest.raises(ArgumentError, match="enrolled: 0, 2"):
        enrol.revoke(server, 1)


def test_a_new_key_takes_the_place_of_the_old_one(server: Party, registry: Registry, tmp_path: Path) -> None:
    enrol.enrol(server)
    assert enrol.rotate(server, 1, new_key(tmp_path)) == 104
    assert Enrolment(server.enrolment).partitions() == {101: 0, 103: 2, 104: 1}
    assert set(registry.nodes) == {101, 103, 104}
    with pytest.raises(keys.KeyFileError, match="in use already"):
        enrol.rotate(server, 2, server.public_keys[0])


def test_an_exchanged_key_file_is_not_taken_silently(server: Party, registry: Registry) -> None:
    enrol.enrol(server)
    server.public_keys[0].write_bytes(keys.make_node_key()[1])
    with pytest.raises(keys.KeyFileError, match="not the key that partition 0 is enrolled with"):
        enrol.enrol(server)


def test_two_nodes_with_one_key_are_refused(server: Party, registry: Registry) -> None:
    server.public_keys[0].write_bytes(server.public_keys[1].read_bytes())
    with pytest.raises(keys.KeyFileError, match="same public key"):
        enrol.enrol(server)
    assert not registry.nodes


@pytest.mark.parametrize(
    "content",
    [
        *("", "[1]", "{", '{"0": {}}'),
        '{"x": {"key": "a", "node-id": 1}}',
        '{"0": {"key": "a", "node-id": "1"}}',
    ],
)
def test_a_damaged_enrolment_admits_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "enrolment.json"
    path.write_text(content)
    with pytest.raises(EnrolmentError, match=r"cannot be read|names a node twice"):
        Enrolment(path).partitions()


def test_a_node_in_two_places_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "enrolment.json"
    path.write_text(json.dumps({str(k): {"key": "a", "node-id": 7} for k in range(2)}))
    with pytest.raises(EnrolmentError, match="twice"):
        Enrolment(path).partitions()


SETTINGS = {"nodes-own-data": True, "unit": "example", "clients": 3, "examples-per-client": 10}


def test_a_run_that_the_deployment_cannot_have_is_refused(server: Party, registry: Registry) -> None:
    with pytest.raises(ArgumentError, match="Partitions \\[0, 1, 2\\] have no enrolled key"):
        runs.checked(server, SETTINGS)
    enrol.enrol(server)
    assert runs.checked(server, SETTINGS).clients == 3
    with pytest.raises(ArgumentError, match="the deployment has 3 nodes"):
        runs.checked(server, SETTINGS | {"clients": 4})
    with pytest.raises(ArgumentError, match="min-nodes is 4; it must be at most 3"):
        runs.checked(server, SETTINGS | {"min-nodes": 4})
    enrol.revoke(server, 1)
    assert runs.checked(server, SETTINGS | {"min-nodes": 2}).min_nodes == 2
    with pytest.raises(ArgumentError, match=r"Partitions \[1\]"):
        runs.checked(server, SETTINGS | {"min-nodes": 3})
    with pytest.raises(ArgumentError, match="nodes-own-data"):
        runs.checked(server, SETTINGS | {"nodes-own-data": False})
    with pytest.raises(ArgumentError, match=r"delta is 0\.1; it must be below 1 / units"):
        runs.checked(server, SETTINGS | {"min-nodes": 2, "delta": 0.1})


@pytest.mark.parametrize(
    ("status", "stopped", "success"),
    [
        ("finished:completed", "rounds", True),
        ("finished:completed", "budget", True),
        ("finished:completed", "unanswered", False),
        ("finished:completed", "failed", False),
        ("finished:completed", "", False),
        ("finished:failed", "rounds", False),
        ("finished:stopped", "", False),
    ],
)
def test_a_run_has_succeeded_only_if_flower_and_its_report_say_so(
    tmp_path: Path, status: str, stopped: str, success: bool
) -> None:
    if stopped:
        for name in ("report.md", "curves.png"):
            (tmp_path / name).write_text("")
        (tmp_path / "report.json").write_text(json.dumps({"result": {"stopped": stopped}}))
    ended = runs.ended({"status": status, "status-details": "why"}, tmp_path)
    assert (ended.success, ended.stopped) == (success, stopped)


@pytest.mark.parametrize(
    ("statuses", "code"), [(["finished:completed"], 0), (["running", "finished:failed"], 1)]
)
def test_the_command_returns_the_truth(
    server: Party,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    statuses: list[str],
    code: int,
) -> None:
    """Flower's ``flwr run`` and ``flwr log`` are stood in for by a run that leaves a report."""
    enrol.enrol(server)
    asked: list[tuple[str, ...]] = []

    def call(party: Party, *arguments: str) -> dict[str, object]:
        asked.append(arguments)
        given = Path(arguments[-1]).read_text()
        out = Path(given.split('out = "')[1].split('"')[0])
        out.mkdir(parents=True)
        for name in ("report.md", "curves.png"):
            (out / name).write_text("")
        (out / "report.json").write_text(json.dumps({"result": {"stopped": "rounds"}}))
        return {"run-id": "7"}

    def listed(party: Party, run: int) -> list[dict[str, object]]:
        return [{"run-id": run, "status": statuses.pop(0)}]

    monkeypatch.setattr(flower_cli, "call", call)
    monkeypatch.setattr(control_api, "runs", listed)
    monkeypatch.setattr(flower_cli, "command", lambda *arguments: ["echo", *arguments])
    monkeypatch.setattr(runs, "RUN_STATE", 0.0)
    monkeypatch.setattr(runs, "RUN_GOES_ON", 600.0)  # the log's end is seen before
    settings = tmp_path / "run.toml"
    settings.write_text("nodes-own-data = true\nunit = 'example'\nclients = 3\nexamples-per-client = 10\n")
    command = ["deploy", "run", str(server.folder), str(settings), "--set", "rounds=2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    assert "its report says rounds" in result.output
    assert "flwr log 7" in result.output
    assert runs.folders(server).keys() == {7}
    assert CliRunner().invoke(app, [*command, "--set", "roundz=2"]).exit_code == 2
