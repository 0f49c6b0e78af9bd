"""Who may start runs from another machine: an operator's certificate alone, over real TLS on loopback."""

from __future__ import annotations

import datetime
import http.client
import inspect
import json
import socket
import ssl
import stat
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import StartRunResponse, StopRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.client import ProtobufClient
from helpers.deployments import Deployment
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.deployment import (
    certified,
    checks,
    control,
    control_api,
    enrol,
    keys,
    operator_checks,
    operators,
    runs,
    server_checks,
)
from fedpriv.deployment.control import LOG, ControlProxy
from fedpriv.deployment.flower_cli import FlowerError
from fedpriv.deployment.folders import Party, read_controller, read_parties, read_party, read_server
from fedpriv.deployment.provision import Request, provision
from fedpriv.deployment.proxy import Handler

from .test_proxy import Upstream

RUN_ID = 12345


class Serving:
    """The control proxy of a deployment with the operators alice and bob, before a SuperLink's place."""

    def __init__(self, folder: Path) -> None:
        provision(folder, Request(1, operators=("alice", "bob")))
        self.folder, self.server = folder, read_server(folder)
        self.upstream = Upstream(self.server)
        ports = {"operator-port": 0, "control-port": self.upstream.server_address[1]}
        self.proxy = ControlProxy(Party(self.server.folder, {**self.server.facts, **ports}))
        self.port = int(self.proxy.server_address[1])
        for server in (self.upstream, self.proxy):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def operator(self, name: str, folder: Path | None = None) -> Party:
        """The party of an operator's folder, with the port that is listened at."""
        party = read_party(folder or self.folder / f"operator-{name}")
        return Party(party.folder, {**party.facts, "operator-port": self.port})

    def connection(self, certificate: Path | None, key: Path | None = None) -> http.client.HTTPSConnection:
        """A connection with this client certificate."""
        context = ssl.create_default_context(cafile=str(self.server.roots))
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)

    def of(self, name: str) -> http.client.HTTPSConnection:
        folder = self.folder / f"operator-{name}"
        return self.connection(folder / "operator.crt", folder / "operator.key")

    def log(self, least: int = 1) -> list[dict[str, object]]:
        """The lines of the proxy's log, once there are so many: it writes after it has answered."""
        path, deadline = self.server.folder / LOG, time.monotonic() + 10
        while time.monotonic() < deadline:
            lines = path.read_text().splitlines() if path.exists() else []
            if len(lines) >= least:
                return [json.loads(line) for line in lines]
            time.sleep(0.02)
        raise AssertionError(f"the log has fewer than {least} lines")

    def close(self) -> None:
        for server in (self.proxy, self.upstream):
            server.shutdown()
            server.server_close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path / "d")
    yield made
    made.close()


def posted(
    connection: http.client.HTTPSConnection, call: str = "start-run", body: bytes = b""
) -> tuple[int, str]:
    connection.request("POST", f"/v1/control/{call}", body)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


def test_an_operator_starts_and_stops_runs_and_the_log_says_who(serving: Serving) -> None:
    connection = serving.of("alice")
    body = StartRunResponse(run_id=RUN_ID).SerializeToString()[::-1]  # the upstream answers with it reversed
    assert posted(connection, "start-run", body)[0] == 200
    assert posted(connection, "stop-run", StopRunRequest(run_id=RUN_ID).SerializeToString())[0] == 200
    assert [path for path, *_ in serving.upstream.arrived] == [
        "/v1/control/start-run",
        "/v1/control/stop-run",
    ]
    own = keys.read_certificates(serving.folder / "operator-alice/operator.crt")[0]
    mark = operators.fingerprint(own)
    file = str(serving.folder / "operator-alice/operator.crt")
    command = ["openssl", "x509", "-in", file, "-noout", "-fingerprint", "-sha256"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip().rpartition("=")[2].replace(":", "").lower() == mark
    for line, call in zip(serving.log(2), ("start-run", "stop-run"), strict=True):
        about = {key: value for key, value in line.items() if key != "time"}
        assert about == {
            "event": "passed", "operator": "alice", "certificate": mark, "from": "127.0.0.1", "call": call,
            "status": 200, "run": str(RUN_ID),
        }  # fmt: skip
    assert stat.S_IMODE((serving.server.folder / LOG).stat().st_mode) == 0o600
    connection.close()


def test_looks_are_noted_once_and_starts_each_time(serving: Serving) -> None:
    for _ in range(3):
        connection = serving.of("alice")
        posted(connection, "list-runs")
        posted(connection, "start-run")
        connection.close()
    assert [line["call"] for line in serving.log(4)] == ["list-runs", "start-run", "start-run", "start-run"]


def self_signed(
    folder: Path, key: ec.EllipticCurvePrivateKey, days: int = 365, issuer: keys.Authority | None = None
) -> tuple[Path, Path]:
    """A client certificate, signed by its own key or an issuer's, and its key, in files."""
    now = datetime.datetime.now(datetime.UTC)
    said = "mallory" if issuer else "alice"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, said)])
    begin = now - datetime.timedelta(days=max(1, 2 - days))
    builder = x509.CertificateBuilder().subject_name(name).public_key(key.public_key())
    builder = builder.issuer_name(issuer.certificate.subject if issuer else name)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin)
    builder = builder.not_valid_after(now + datetime.timedelta(days))
    certificate = builder.sign(issuer.key if issuer else key, keys.hashes.SHA256())
    (folder / "client.crt").write_bytes(keys.pem(certificate))
    (folder / "client.key").write_bytes(keys.private_pem(key))
    return folder / "client.crt", folder / "client.key"


def strangers(serving: Serving, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Certificates that are nobody's: {kind: (certificate, key)}."""
    made: dict[str, tuple[Path, Path]] = {}
    for kind in ("node", "self-signed", "authority", "by alice"):
        (folder / kind).mkdir()
    node = serialization.load_ssh_private_key((serving.folder / "node-0/node.key").read_bytes(), None)
    assert isinstance(node, ec.EllipticCurvePrivateKey)
    made["a node's key"] = self_signed(folder / "node", node)
    made["self-signed"] = self_signed(folder / "self-signed", ec.generate_private_key(ec.SECP256R1()))
    made["the server's own"] = serving.server.path("certificate"), serving.server.path("certificate-key")
    alice = serving.folder / "operator-alice"
    key = serialization.load_pem_private_key((alice / "operator.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issuers = {
        "authority": keys.make_authority("other"),
        "by alice": keys.Authority(keys.read_certificates(alice / "operator.crt")[0], key),
    }
    for kind, authority in issuers.items():
        issued, own = keys.make_server_certificate(authority, ["alice"])
        files = folder / kind / "client.crt", folder / kind / "client.key"
        for path, content in zip(files, (keys.pem(issued), keys.private_pem(own)), strict=True):
            path.write_bytes(content)
        made[f"issued {kind}"] = files
    return made


def test_no_other_certificate_gets_a_call_through(serving: Serving, tmp_path: Path) -> None:
    for kind, files in strangers(serving, tmp_path).items():
        connection = serving.connection(*files)
        with pytest.raises((OSError, http.client.HTTPException)):
            assert posted(connection), kind
        connection.close()
    assert not serving.upstream.arrived
    assert {line["event"] for line in serving.log()} == {"refused"}
    assert all(str(line["why"]).startswith("client certificate: ") for line in serving.log())


def test_without_a_certificate_a_connection_is_told_why_and_gets_nothing(serving: Serving) -> None:
    for call in ("start-run", "list-runs", "register-node"):
        connection = serving.connection(None)
        status, text = posted(connection, call)
        assert (status, text.count("\n")) == (403, 0)
        assert "has no client certificate; only operators may start, stop and watch runs" in text
        connection.close()
    assert not serving.upstream.arrived
    assert serving.log()[0]["operator"] == ""


def test_a_revoked_operator_is_refused_at_once_also_on_an_open_connection(serving: Serving) -> None:
    opened = serving.of("alice")
    assert posted(opened)[0] == 200
    operators.revoke(serving.server, "alice")
    status, text = posted(opened)
    assert status == 403
    assert "it is no operator's: it was revoked" in text
    again = serving.of("alice")
    with pytest.raises((OSError, http.client.HTTPException)):
        posted(again)
    assert len(serving.upstream.arrived) == 1
    refused = operators.refusal(serving.operator("alice"))
    assert "does not know the certificate" in refused
    assert "\n" not in refused
    assert operators.refusal(serving.operator("bob")) == ""
    for connection in (opened, again):
        connection.close()


def test_an_operator_who_is_added_is_let_in_at_once(serving: Serving, tmp_path: Path) -> None:
    made = operators.add(serving.server, "carol", into=tmp_path)
    assert operators.refusal(serving.operator("carol", made)) == ""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, private = self_signed(tmp_path, key)
    own = operators.add(serving.server, "dave", certificate, into=tmp_path)
    assert not (own / "operator.key").exists(), "the key stays with its owner"
    (own / "operator.key").write_bytes(private.read_bytes())
    assert operators.refusal(serving.operator("dave", own)) == ""
    connection = serving.connection(certificate, private)
    assert posted(connection)[0] == 200
    connection.close()
    assert [line["operator"] for line in serving.log() if line["event"] == "passed"] == ["dave"]


def test_a_certificate_that_has_ended_is_refused(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, private = self_signed(tmp_path, ec.generate_private_key(ec.SECP256R1()), days=-1)
    own = operators.add(serving.server, "late", certificate, into=tmp_path)
    (own / "operator.key").write_bytes(private.read_bytes())
    connection = serving.connection(certificate, private)
    with pytest.raises((OSError, http.client.HTTPException)):
        posted(connection)
    connection.close()
    assert not serving.upstream.arrived
    assert "certificate has expired" in str(serving.log()[-1]["why"])
    assert "ended on" in operators.refusal(serving.operator("late", own))
    opened = serving.of("alice")  # one that ends while its connection is open
    assert posted(opened)[0] == 200
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)
    named = operators.named
    monkeypatch.setattr(operators, "named", lambda known, der: named(known, der, later))
    assert posted(opened)[0] == 403
    opened.close()


def test_a_damaged_record_lets_nobody_in(serving: Serving) -> None:
    serving.server.operators.write_text("{")
    connection = serving.of("alice")
    with pytest.raises((OSError, http.client.HTTPException)):
        posted(connection)
    connection.close()
    assert not serving.upstream.arrived
    assert "cannot be read" in str(serving.log()[0]["why"])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node",
        "/v1/control/unregister-node",
        "/v1/control/add-app",
        "/v1/control/../fleet/get-run",
        "/v1/control/start-run/../register-node",
        "/v1/control/start-run?x=1",
        "/v1/fleet/pull-messages",
        "/v1/runtime/pull-task",
        "/",
    ],
)
def test_an_operator_gets_nothing_else(serving: Serving, path: str) -> None:
    connection = serving.of("alice")
    connection.request("POST", path, b"")
    assert connection.getresponse().status == 403
    connection.close()
    assert not serving.upstream.arrived


def test_a_log_is_passed_on_as_it_comes_and_ends_with_a_revocation(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = threading.Semaphore(0)

    def stream(handler: object) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))  # type: ignore[attr-defined]
        handler.send_response(200)  # type: ignore[attr-defined]
        handler.send_header("Transfer-Encoding", "chunked")  # type: ignore[attr-defined]
        handler.end_headers()  # type: ignore[attr-defined]
        for line in (b"one\n", b"two\n", b"three\n"):
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))  # type: ignore[attr-defined]
            more.acquire(timeout=10)

    monkeypatch.setattr(serving.upstream.RequestHandlerClass, "do_POST", stream)
    connection = serving.of("alice")
    connection.request("POST", "/v1/control/stream-logs", b"")
    answer = connection.getresponse()
    assert answer.read(4) == b"one\n", "before the second line is written"
    more.release()
    assert answer.read(4) == b"two\n"
    operators.revoke(serving.server, "alice")
    more.release()
    with pytest.raises(http.client.IncompleteRead):
        answer.read(6)
    more.release()
    connection.close()


def test_flwr_is_the_version_whose_client_presents_the_certificate() -> None:
    """`certified` puts the certificate into the TLS context with which every client of the API is made."""
    assert version("flwr").startswith(f"{certified.FLWR}.")
    assert issubclass(ControlHttpClient, ProtobufClient)
    assert "verify" in inspect.signature(ProtobufClient.__init__).parameters
    assert "__init__" not in vars(ControlHttpClient)
    assert "ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)" in inspect.getsource(ProtobufClient.from_server_address)


def test_flowers_errors_are_one_line_that_names_the_certificate(serving: Serving) -> None:
    operators.revoke(serving.server, "alice")
    with pytest.raises(
        FlowerError, match=r"failed: 127\.0\.0\.1:\d+ does not know the certificate .*: it was revoked"
    ):
        control_api.nodes(serving.operator("alice"))
    with pytest.raises(FlowerError) as caught:
        control_api.stop_run(serving.operator("alice"), 7)
    assert "\n" not in str(caught.value)
    assert not serving.upstream.arrived


def test_the_command_shows_adds_and_revokes_operators(tmp_path: Path) -> None:
    invoke = CliRunner().invoke
    folder = str(tmp_path / "d")
    assert invoke(app, ["deploy", "init", folder, "--nodes", "1", "--operator", "alice"]).exit_code == 0
    added = invoke(app, ["deploy", "operator", "add", folder, "bob"])
    assert added.exit_code == 0, added.output
    rows = json.loads(invoke(app, ["deploy", "operator", "list", folder, "--json"]).output)
    assert [row["operator"] for row in rows] == ["alice", "bob"]
    assert len({row["certificate"] for row in rows}) == 2
    again = invoke(app, ["deploy", "operator", "add", folder, "bob"])
    assert again.exit_code == 2
    assert "revoke the operator first" in " ".join(again.output.split())
    assert invoke(app, ["deploy", "operator", "revoke", folder, "alice"]).exit_code == 0
    assert list(operators.read(read_server(tmp_path / "d"))) == ["bob"]
    missing = invoke(app, ["deploy", "operator", "revoke", folder, "alice"])
    assert "operators: bob" in " ".join(missing.output.split())
    for name in ("", "A", "a b", "../x", "x" * 33):
        with pytest.raises(ArgumentError, match="lower-case letters"):
            operators.add(read_server(tmp_path / "d"), name)


def test_what_an_operators_certificate_has_signed_is_not_the_operator(
    serving: Serving, tmp_path: Path
) -> None:
    """`openssl req -x509` makes certificates that may sign others: TLS would believe those, too."""
    authority = keys.make_authority("signer")
    (tmp_path / "ca.crt").write_bytes(keys.pem(authority.certificate))
    operators.add(serving.server, "ca", tmp_path / "ca.crt", into=tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, private = self_signed(tmp_path, key, issuer=authority)
    connection = serving.connection(certificate, private)
    status, text = posted(connection)
    assert status == 403, "the handshake succeeded, and the certificate is not the operator's own"
    assert "it is no operator's" in text
    connection.close()
    assert not serving.upstream.arrived


def test_an_operators_folder_is_complete_and_its_own(tmp_path: Path) -> None:
    provision(tmp_path / "d", Request(2, operators=("alice", "bob")))
    server, *others = read_parties(tmp_path / "d")
    assert [party.name for party in others] == ["node-0", "node-1", "operator-alice", "operator-bob"]
    assert [party.is_operator for party in others] == [False, False, True, True]
    for party in others[2:]:
        assert stat.S_IMODE((party.folder / "operator.key").stat().st_mode) == 0o600
        assert party.server_address == ("127.0.0.1", 9444)
        assert read_controller(party.folder).name == party.name
    assert read_controller(tmp_path / "d").is_server
    with pytest.raises(ArgumentError, match="hold the server's folder, or be an operator's"):
        read_controller(others[0].folder)
    assert not (server.folder / "operator.key").exists(), "no operator's key is on the server's machine"


def test_check_says_what_is_missing(serving: Serving) -> None:
    def seen(party: Party) -> dict[str, checks.Finding]:
        looks = (server_checks if party.is_server else operator_checks).looks(party)
        return {finding.subject: finding for finding in checks.looked(party, looks)}

    alice = serving.operator("alice")
    assert {finding.state for finding in seen(alice).values()} == {checks.State.OK}
    (alice.folder / "operator.key").chmod(0o644)
    assert seen(alice)["operator's certificate"].remedy.startswith("chmod 600")
    operators.revoke(serving.server, "alice")
    assert seen(alice)["server"].state is checks.State.WRONG
    assert "was revoked" in seen(alice)["server"].text
    assert seen(serving.server)["operators"].text == "bob"
    operators.revoke(serving.server, "bob")
    assert "nobody may start runs" in seen(serving.server)["operators"].text
    older = {name: value for name, value in serving.server.facts.items() if name != "operator-port"}
    found = seen(Party(serving.server.folder, older))["operators"]
    assert (found.state, "operator-port" in found.remedy) == (checks.State.NOTE, True)
    with pytest.raises(ArgumentError, match="operator-port"):
        operators.add(Party(serving.server.folder, older), "carol")


def test_a_handler_of_the_fleet_is_not_the_controls() -> None:
    assert not control.ControlProxy.calls.fullmatch("/v1/fleet/get-run")
    assert issubclass(control.ControlHandler, Handler)


# End to end: Flower's SuperLink, its nodes, and an operator in another folder.


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_an_operator_starts_a_run_from_another_folder_and_a_revoked_one_does_not(tmp_path: Path) -> None:
    with Deployment(tmp_path / "d", 2, examples=300) as deployed:
        deployed.start_server()
        deployed.start_nodes([0, 1])
        elsewhere = tmp_path / "laptop"
        (deployed.folder / "operator-main").rename(elsewhere)
        settings = tomllib.loads((deployed.server.folder / "central.toml").read_text())
        file = elsewhere / "run.toml"
        file.write_text((deployed.server.folder / "central.toml").read_text())
        options = ["--set=rounds=2", "--set=examples-per-client=300", "--set=out=runs/by-main"]
        done = deployed.command("deploy", "run", str(elsewhere), str(file), *options)
        assert done.returncode == 0, done.stdout + deployed.log("server")[-3000:]
        assert "round 2 of 2" in done.stdout
        assert "its report says rounds" in done.stdout
        assert (deployed.server.folder / "runs/by-main/report.json").exists(), "on the server's machine"
        assert settings["clients"] == 2
        shown = deployed.command("deploy", "status", str(elsewhere), "--json")
        table = json.loads(shown.stdout)
        assert table["runs"][0]["state"] == "finished:completed"
        assert [node["state"] for node in table["nodes"]] == ["online", "online"]
        with pytest.raises(FlowerError):
            control_api.register(read_party(elsewhere), deployed.server.public_keys[0])
        passed = [json.loads(line) for line in (deployed.server.folder / LOG).read_text().splitlines()]
        starts = [line for line in passed if line.get("call") == "start-run"]
        assert [(line["operator"], line["run"]) for line in starts] == [
            ("main", str(table["runs"][0]["run"]))
        ]

        revoked = deployed.command("deploy", "operator", "revoke", str(deployed.folder), "main")
        assert revoked.returncode == 0, revoked.stdout
        for command in (["run", str(elsewhere), str(file), *options], ["status", str(elsewhere)]):
            refused = deployed.command("deploy", *command)
            assert refused.returncode == 1
            assert "it was revoked, or never added" in " ".join(refused.stdout.split())
        assert len(control_api.runs(deployed.server)) == 1
        assert operators.refusal(read_party(deployed.folder / "operator-other")) == ""
        assert enrol.enrolled(deployed.server).keys() == {0, 1}
        assert runs.folders(deployed.server) == {}


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    from fedpriv.deployment.proxy import serve

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        provision(tmp_path / "d", Request(1, operator_port=taken.getsockname()[1]))
        with pytest.raises(ArgumentError, match=r"The proxy cannot listen at 127\.0\.0\.1"):
            serve(read_server(tmp_path / "d"), ControlProxy)
