"""Whether a party runs: ports that answer with this deployment's certificates, and a node's last contact."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from helpers.hosted_grid import free_port
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.deployment import running
from fedpriv.deployment.control import ControlProxy
from fedpriv.deployment.folders import read_party
from fedpriv.deployment.provision import Request, provision
from fedpriv.deployment.proxy import Proxy
from fedpriv.flower.intervals import CONTACT_LOST, HELD_MOST, NODE
from fedpriv.node.contact import Contact
from fedpriv.node.policy_file import read_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ports = {name: free_port() for name in ("port", "control_port", "operator_port")}
    provision(tmp_path / "d", Request(1, **ports, listen="0.0.0.0"))  # type: ignore[arg-type]
    return tmp_path / "d"


class Healthy(BaseHTTPRequestHandler):
    """Answers as a SuperLink's /health does."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is printed."""


@contextmanager
def served(folder: Path, *names: str) -> Iterator[None]:
    """Within the block these parts of the server run, the SuperLink as a stand-in with its certificate."""
    server = read_party(folder / "server")
    own: dict[str, Callable[[], ThreadingHTTPServer]] = {
        "control-port": lambda: _superlink(folder / "server", int(server.facts["control-port"])),
        "port": lambda: Proxy(server),
        "operator-port": lambda: ControlProxy(server),
    }
    with ExitStack() as stack:
        for name in names:
            one = stack.enter_context(own[name]())
            threading.Thread(target=one.serve_forever, daemon=True).start()
            stack.callback(one.shutdown)
        yield


def _superlink(folder: Path, port: int) -> ThreadingHTTPServer:
    import ssl

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "loopback.crt", folder / "loopback.key")
    made = ThreadingHTTPServer(("127.0.0.1", port), Healthy)
    made.socket = tls.wrap_socket(made.socket, server_side=True)
    return made


PORTS = ("control-port", "port", "operator-port")


def seen(folder: Path) -> dict[str, bool]:
    return {one.subject: one.runs for one in running.look(folder)}


def test_a_server_runs_if_each_of_its_ports_answers(folder: Path) -> None:
    assert seen(folder / "server") == dict.fromkeys(PORTS, False)
    with served(folder, *PORTS):
        assert seen(folder / "server") == dict.fromkeys(PORTS, True)
        assert not (folder / "server/control-log.jsonl").exists()  # being looked at is no operator's call
    with served(folder, "control-port", "port"):
        assert seen(folder / "server") == dict.fromkeys(PORTS, True) | {"operator-port": False}


def test_what_answers_with_another_certificate_is_not_this_server(folder: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", Request(1))
    with served(folder, *PORTS):
        for name in ("ca.crt", "loopback-ca.crt"):
            (folder / "server" / name).write_bytes((tmp_path / "other/server" / name).read_bytes())
        assert seen(folder / "server") == dict.fromkeys(PORTS, False)


def stated(folder: Path, heard: float, asked: float | None) -> list[running.Seen]:
    """What is seen of a node whose file says so many seconds ago."""
    now = time.time()
    content = {"heard": now - heard, "asked": None if asked is None else now - asked}
    (folder / "node-0/ledger/ledger.jsonl.contact").write_text(json.dumps(content))
    return list(running.look(folder / "node-0"))


@pytest.mark.parametrize(
    ("heard", "asked", "runs"),
    [
        (1, 1, True),
        (CONTACT_LOST - 5, CONTACT_LOST - 5, True),
        (CONTACT_LOST + 5, CONTACT_LOST + 5, False),
        (20, None, True),  # it answers a message, which may take long; its heartbeats go on
        (CONTACT_LOST + 5, None, False),
        (1, CONTACT_LOST + 5, False),  # heartbeats go on, and nothing else
        (-3600, -3600, False),
    ],
)
def test_a_node_runs_if_its_last_contact_is_recent(
    folder: Path, heard: float, asked: float | None, runs: bool
) -> None:
    [one] = stated(folder, heard, asked)
    assert one.runs is runs, one.text


def test_a_node_without_contact_does_not_run(folder: Path) -> None:
    assert seen(folder / "node-0") == {"contact": False}


@pytest.mark.parametrize("before", ["", 'ledger-file = "ledger/ledger.jsonl"'])
def test_the_file_is_found_where_the_nodes_process_writes_it(folder: Path, before: str) -> None:
    path = folder / "node-0/policy.toml"
    path.write_text(path.read_text().replace(before, "") if before else path.read_text())
    policy = read_policy(path)
    contact = Contact(policy.contact)
    contact.asked()
    assert seen(folder / "node-0") == {"contact": True}
    contact.close()
    assert seen(folder / "node-0") == {"contact": False}


def test_the_bound_is_beyond_the_longest_rest_of_a_node() -> None:
    assert 2 * (NODE[1] + HELD_MOST) < CONTACT_LOST
    assert CONTACT_LOST >= 2 * HEARTBEAT_DEFAULT_INTERVAL


def test_the_images_health_check_is_cheap_and_its_exit_code_tells(folder: Path) -> None:
    code = (
        "import atexit, runpy, sys; sys.argv = ['', sys.argv[1]]\n"
        "heavy = {'torch', 'flwr', 'numpy', 'pydantic', 'typer', 'cryptography'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & set(sys.modules))))\n"
        "runpy.run_module('fedpriv.deployment.running', run_name='__main__')"
    )

    def checked(party: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", code, str(folder / party)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60)

    Contact(read_policy(folder / "node-0/policy.toml").contact).asked()
    assert checked("node-0").returncode == 0
    server = checked("server")
    assert server.returncode == 1
    assert "does not answer (Connection refused)" in server.stdout
    assert "heavy: []" in server.stdout
    assert checked("nowhere").returncode == 1
    assert "is no party's folder" in checked("nowhere").stderr


@pytest.mark.parametrize("command", ["status", "enrol"])
def test_of_a_server_that_does_not_run_one_sentence_is_said(folder: Path, command: str) -> None:
    result = CliRunner().invoke(app, ["deploy", command, str(folder)])
    assert result.exit_code == 1
    [line] = result.output.splitlines()
    assert line.startswith("fedpriv: the server does not run here: ")
    assert f"{folder}/server/start.sh starts it" in line
    assert "SuperLink:" not in line  # Flower's own words


def test_of_a_server_that_an_operator_cannot_reach_one_sentence_is_said(folder: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "status", str(folder / "operator-main")])
    assert result.exit_code == 1
    [line] = result.output.splitlines()
    assert "cannot be reached (Connection refused): is the server started" in line


def test_the_command_shows_all_parties_and_says_what_to_start(folder: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "check", "--running", str(folder)])
    assert result.exit_code == 1
    assert "4 of 4 checks failed" in result.output
    assert f"start {folder}/node-0/start.sh" in result.output
    Contact(read_policy(folder / "node-0/policy.toml").contact).asked()
    result = CliRunner().invoke(app, ["deploy", "check", "--running", str(folder / "node-0")])
    assert result.exit_code == 0, result.output
    both = CliRunner().invoke(app, ["deploy", "check", "--running", "--before-start", str(folder)])
    assert both.exit_code == 2
