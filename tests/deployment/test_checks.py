"""`fedpriv deploy check` finds each fault that is planted, and names what to do."""

from __future__ import annotations

import datetime
import email.utils
import json
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpriv._internal import descriptors
from fedpriv.cli import app
from fedpriv.deployment import checks, keys, node_checks, server_checks
from fedpriv.deployment.checks import Finding, State
from fedpriv.deployment.folders import Party, read_parties
from fedpriv.deployment.provision import Request, provision
from fedpriv.node.policy_file import read_policy
from fedpriv.node.setup import set_up


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    provision(tmp_path / "d", Request(2, port=ports[0], control_port=ports[1]))
    for node in ("node-0", "node-1"):
        np.savez(tmp_path / "d" / node / "data.npz", x=np.zeros((3, 28, 28), np.uint8), y=np.zeros(3, int))
        set_up(read_policy(tmp_path / "d" / node / "policy.toml"))
    return tmp_path / "d"


def found(folder: Path, party: str, before_start: bool = False) -> dict[str, Finding]:
    (one,) = read_parties(folder, party)
    looks = (server_checks if one.is_server else node_checks).looks(one, before_start)
    return {finding.subject: finding for finding in checks.looked(one, looks)}


def edit(folder: Path, party: str, before: str, after: str) -> None:
    """Changes a party's facts, or a node's policy."""
    (path,) = (path for path in (folder / party).glob("p*.toml") if before in path.read_text())
    path.write_text(path.read_text().replace(before, after))


def test_a_new_deployment_has_nothing_wrong(folder: Path) -> None:
    for party in ("server", "node-0", "node-1"):
        wrong = [one for one in found(folder, party).values() if one.state is State.WRONG]
        assert not wrong
    result = CliRunner().invoke(app, ["deploy", "check", str(folder)])
    assert result.exit_code == 0, result.output


def _other_certificate(folder: Path) -> None:
    authority = keys.make_authority("other")
    certificate, key = keys.make_server_certificate(authority, ["127.0.0.1"])
    (folder / "server/server.crt").write_bytes(keys.pem(certificate))
    (folder / "server/server.key").write_bytes(keys.private_pem(key))


def _other_server_key(folder: Path) -> None:
    (folder / "server/server.key").write_bytes(
        keys.private_pem(keys.make_server_certificate(keys.make_authority("x"), ["a"])[1])
    )


def _swapped_node_key(folder: Path) -> None:
    (folder / "node-0/node.key").write_bytes((folder / "node-1/node.key").read_bytes())


def _one_key_for_two(folder: Path) -> None:
    (folder / "server/node-keys/node-0.pub").write_bytes(
        (folder / "server/node-keys/node-1.pub").read_bytes()
    )


def _enrolled_otherwise(folder: Path) -> None:
    record = {str(k): {"key": "SHA256:other", "node-id": 5 + k} for k in range(2)}
    (folder / "server/enrolment.json").write_text(json.dumps(record))


FAULTS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "another authority": ("server", "certificate", _other_certificate),
    "another server key": ("server", "certificate", _other_server_key),
    "a public server key": ("server", "certificate", lambda f: (f / "server/server.key").chmod(0o644)),
    "no loopback key": ("server", "loopback", lambda f: (f / "server/loopback.key").unlink()),
    "no certificate": ("server", "certificate", lambda f: (f / "server/server.crt").unlink()),
    "another host": ("server", "host names", lambda f: edit(f, "server", '["127.0.0.1"', '["fl.example"')),
    "one key for two": ("server", "node keys", _one_key_for_two),
    "another enrolment": ("server", "enrolment", _enrolled_otherwise),
    "a damaged enrolment": ("server", "enrolment", lambda f: (f / "server/enrolment.json").write_text("[")),
    "another flwr": ("server", "versions", lambda f: edit(f, "server", 'flwr = "', 'flwr = "0')),
    "another fedpriv": ("node-0", "versions", lambda f: edit(f, "node-0", 'fedpriv = "', 'fedpriv = "9')),
    "a swapped key": ("node-0", "key", _swapped_node_key),
    "a public node key": ("node-0", "key", lambda f: (f / "node-0/node.key").chmod(0o640)),
    "no key": ("node-0", "key", lambda f: (f / "node-0/node.key").unlink()),
    "a misspelt limit": ("node-0", "policy", lambda f: edit(f, "node-0", "epsilon-limit", "epsilon_limit")),
    "no limit": ("node-0", "policy", lambda f: edit(f, "node-0", "epsilon-limit = 20.0", "")),
    "another place": ("node-0", "policy", lambda f: edit(f, "node-0", "on-id = 0", "on-id = 1")),
    "no identity": ("node-0", "peers", lambda f: (f / "node-0/identity.key").unlink()),
    "a public identity": ("node-0", "peers", lambda f: (f / "node-0/identity.key").chmod(0o640)),
    "other peers": ("node-0", "peers", lambda f: (f / "node-0/peers.txt").write_text(f"{'ab' * 32}\n" * 2)),
    "no data": ("node-0", "data", lambda f: (f / "node-0/data.npz").unlink()),
    "data that is none": ("node-0", "data", lambda f: (f / "node-0/data.npz").write_bytes(b"x" * 50)),
    "data of another shape": (
        "node-0",
        "data",
        lambda f: np.savez(f / "node-0/data.npz", x=np.zeros((3, 784), np.uint8), y=np.zeros(3, int)),
    ),
    "a limit that no run fits": (
        "node-0",
        "policy",
        lambda f: edit(f, "node-0", "epsilon-limit = 20.0", "epsilon-limit = 2.0"),
    ),
    "no port": ("node-0", "policy", lambda f: edit(f, "node-0", 'superlink = "', 'superlink = "here"  # "')),
    "data without labels": ("node-0", "data", lambda f: np.savez(f / "node-0/data.npz", x=np.zeros(3))),
    "pickled data": (
        "node-0", "data", lambda f: np.savez(f / "node-0/data.npz", x=np.array([{}]), z=np.zeros(1))
    ),
    "a damaged ledger": ("node-0", "ledger", lambda f: (f / "node-0/ledger/ledger.jsonl").write_text("{}\n")),
    "a deleted ledger": ("node-0", "ledger", lambda f: (f / "node-0/ledger/ledger.jsonl").unlink()),
    "a lost anchor": ("node-0", "ledger", lambda f: (f / "node-0/anchor/ledger-head").write_text("")),
    "no server": ("node-0", "server", lambda f: (f / "server").rename(f / "elsewhere")),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_a_remedy(folder: Path, name: str) -> None:
    party, subject, plant = FAULTS[name]
    assert found(folder, party)[subject].state is not State.WRONG
    plant(folder)
    finding = found(folder, party)[subject]
    assert finding.state is State.WRONG
    assert finding.remedy or name in ("a damaged enrolment",)
    others = [one for one in found(folder, "node-1").values() if one.state is State.WRONG]
    assert not others or name == "no server"
    result = CliRunner().invoke(app, ["deploy", "check", str(folder / party)])
    assert result.exit_code == 1
    assert subject in result.output


def test_a_port_that_another_program_has_is_found(folder: Path) -> None:
    (server,) = read_parties(folder, "server")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(server.facts["port"])))
        taken.listen()
        assert found(folder, "server", before_start=True)["port"].state is State.WRONG


@pytest.mark.parametrize(("files", "state"), [(72, State.OK), (71, State.WRONG)])
def test_a_limit_of_open_files_that_keeps_nodes_out_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: int, state: State
) -> None:
    monkeypatch.setattr(descriptors, "allowed", lambda: files)
    finding = found(folder, "server")["connections"]
    assert finding.state is state
    assert "2 nodes need 4" in finding.text
    assert ("LimitNOFILE" in finding.remedy) == (state is State.WRONG)


@pytest.mark.parametrize(
    ("begins", "lasts", "state"),
    [(-1, 400, State.OK), (-1, 20, State.NOTE), (-9, 5, State.WRONG), (2, 400, State.WRONG)],
)
def test_the_dates_of_a_certificate_count(begins: int, lasts: int, state: State) -> None:
    class Dated:
        not_valid_before_utc = datetime.datetime.now(datetime.UTC) + datetime.timedelta(begins)
        not_valid_after_utc = not_valid_before_utc + datetime.timedelta(lasts)

    looks = iter([("dates", lambda: checks.dates(Dated(), "certificate"))])  # type: ignore[arg-type]
    (finding,) = checks.looked(Party(Path(), {"party": "server"}), looks)
    assert finding.state is state


@pytest.mark.parametrize(
    ("ahead", "state"),
    [(0, State.OK), (4.2, State.NOTE), (60, State.WRONG), (-60, State.NOTE), (-900, State.WRONG)],
)
def test_a_clock_that_flower_would_refuse_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, state: State
) -> None:
    class Answer:
        status = 200

        def getheader(self, name: str) -> str:
            return email.utils.formatdate(1e9, usegmt=True)

    monkeypatch.setattr(node_checks, "_answered", lambda node: Answer())
    monkeypatch.setattr(node_checks.time, "time", lambda: 1e9 + 0.5 + ahead)
    assert found(folder, "node-0")["clock"].state is state


def test_a_ledger_that_is_not_made_yet_keeps_a_node_from_starting_alone(folder: Path) -> None:
    for file in ("ledger/ledger.jsonl", "ledger/ledger.jsonl.head", "anchor/ledger-head"):
        (folder / "node-0" / file).unlink()
    assert found(folder, "node-0")["ledger"].state is State.NOTE
    assert found(folder, "node-0", before_start=True)["ledger"].state is State.WRONG


def test_a_folder_that_is_no_deployment_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "check", str(tmp_path)])
    assert result.exit_code == 2
    assert "be a deployment" in result.output


def test_json_has_all_findings(folder: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "check", str(folder), "--party", "node-1", "--json"])
    assert {one["subject"] for one in json.loads(result.output)} >= {"key", "data", "ledger", "policy"}
