"""The looks of `fedpriv deploy check` at the server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from fedpriv._internal import descriptors
from fedpriv._internal.files import quoted
from fedpriv.deployment import checks, enrol, flower_app, keys, operators
from fedpriv.deployment.checks import FaultError, Look, State
from fedpriv.deployment.folders import OPERATOR_PORT, USUAL_OPERATOR_PORT, Party
from fedpriv.deployment.proxy_limits import OF_A_NODE, connections
from fedpriv.deployment.running import reachable

_PATIENCE = 5.0  # seconds for a connection


def looks(server: Party, before_start: bool = False) -> Iterator[Look]:
    """What is looked at; ``before_start`` wants the ports free."""
    yield "versions", lambda: checks.installed(server)
    yield "authority", lambda: checks.authority(server)
    yield "certificate", lambda: _certificate(server)
    yield "loopback", lambda: _loopback(server)
    yield "host names", lambda: _hosts(server)
    yield "node keys", lambda: _node_keys(server)
    yield "enrolment", lambda: _enrolment(server)
    yield "operators", lambda: _operators(server)
    yield "app", lambda: _app(server)
    yield "state", lambda: _state(server)
    yield "connections", lambda: _connections(server)
    listen = str(server.facts["listen"])
    ports = [("control-port", "127.0.0.1"), ("port", listen), (OPERATOR_PORT, listen)]
    for fact, host in ports[: 3 if OPERATOR_PORT in server.facts else 2]:
        yield fact, lambda fact=fact, host=host: _port(server, host, fact, before_start)  # type: ignore[misc]


def _certificate(server: Party) -> str:
    path, key = server.path("certificate"), server.path("certificate-key")
    return _issued(path, key, server.roots, "server's certificate")


def _loopback(server: Party) -> str:
    """The certificate of the SuperLink, which only this machine sees."""
    path, key = server.folder / "loopback.crt", server.folder / "loopback.key"
    return _issued(path, key, server.loopback_roots, "SuperLink's certificate")


def _issued(path: Path, key: Path, roots: Path, what: str) -> str:
    """Until when the certificate at ``path`` is valid, if it has this key and these roots issued it."""
    chain = keys.read_certificates(path)
    keys.require_key_of(chain[0], key, "the server's")
    checks.private(key)
    keys.require_issued(chain, keys.read_certificates(roots), roots)
    return checks.dates(chain[0], what)


def _hosts(server: Party) -> str:
    certificate = keys.read_certificates(server.path("certificate"))[0]
    hosts = [str(host) for host in server.facts["hosts"]]
    if missing := [host for host in hosts if not keys.covers(certificate, host)]:
        text = f"the certificate does not cover {', '.join(missing)}"
        raise FaultError(text, "have it issued for all hosts of party.toml, or correct hosts there")
    try:
        socket.getaddrinfo(hosts[0], int(server.facts["port"]))
    except OSError:
        text = f"{hosts[0]}, to which nodes connect, cannot be resolved here"
        raise FaultError(text, "enter it in the DNS, or in the nodes' /etc/hosts", State.NOTE) from None
    return ", ".join(hosts)


def _node_keys(server: Party) -> str:
    lines = [keys.read_node_public(path) for path in server.public_keys]
    if len(set(lines)) < len(lines):
        raise FaultError(
            "two nodes have the same public key", "each node needs its own: `fedpriv deploy rotate`"
        )
    return f"{len(lines)} different keys"


def _enrolment(server: Party) -> str:
    record = enrol.enrolled(server)
    command = f"start the server, then `fedpriv deploy enrol {quoted(server.folder)}`"
    if missing := sorted(set(range(server.nodes)) - set(record)):
        raise FaultError(f"partitions {missing} are not enrolled", command, State.NOTE)
    for partition, path in enumerate(server.public_keys):
        if record[partition]["key"] != keys.fingerprint(keys.read_node_public(path)):
            text = f"partition {partition} is enrolled with another key than {path.name}"
            raise FaultError(text, f"`fedpriv deploy rotate {quoted(server.folder)} {partition} NEW_KEY`")
    return f"{server.nodes} nodes"


def _operators(server: Party) -> str:
    """The certificates of those who may start runs from another machine."""
    if OPERATOR_PORT not in server.facts:
        text = f"party.toml has no {OPERATOR_PORT}, so runs are started on this machine alone"
        line = f"{OPERATOR_PORT} = {USUAL_OPERATOR_PORT}"
        remedy = f"add `{line}` and start.sh's function control, as `deploy init` writes them"
        raise FaultError(text, remedy, State.NOTE)
    add = f"`fedpriv deploy operator add {quoted(server.folder)} NAME`"
    if not (present := operators.read(server)):
        raise FaultError("nobody may start runs from another machine", add, State.NOTE)
    for name, own in sorted(present.items()):
        again = f"`fedpriv deploy operator revoke {quoted(server.folder)} {name}`, then {add}"
        checks.dates(own, f"certificate of operator {name}", again)
    return ", ".join(sorted(present))


def _app(server: Party) -> str:
    folder = server.folder / flower_app.FOLDER
    for name, content in flower_app.files().items():
        path = folder / name
        if path.is_file() and path.read_text() != content:
            text = f"{path} is not that of the installed fedpriv"
            raise FaultError(text, "`fedpriv deploy run` writes it anew", State.NOTE)
    return "the installed fedpriv's"


def _state(server: Party) -> str:
    path = server.folder / "state.db"
    try:
        with (path if path.exists() else server.folder / ".trial").open("ab"):
            pass
    except OSError as error:
        text = f"{path} cannot be written ({error.strerror})"
        raise FaultError(text, "let the server's user write into its folder") from None
    (server.folder / ".trial").unlink(missing_ok=True)
    return "writable"


def _connections(server: Party) -> str:
    """Whether all nodes may be connected at a time."""
    most, needed = connections(server, descriptors.allowed()), OF_A_NODE * server.nodes
    text = f"at most {most:,} at a time; {server.nodes:,} nodes need {needed:,}"
    if most < needed:
        limit = "the limit of open files (`ulimit -Hn`; LimitNOFILE of a unit)"
        raise FaultError(text, f"raise {limit} to {descriptors.MOST:,}")
    return text


def _port(server: Party, host: str, fact: str, before_start: bool) -> str:
    """The port is free, or this deployment's server answers there."""
    port = int(server.facts[fact])
    try:
        checks.require_free(host, port, f"stop what uses it, or change {fact} in party.toml and start.sh")
    except FaultError:
        if before_start or not _is_ours(server, host, port):
            raise
        return f"{host}:{port}: the server runs"
    return f"{host}:{port} is free"


def _is_ours(server: Party, host: str, port: int) -> bool:
    """Whether what listens there has a certificate of one of this deployment's authorities."""
    context = ssl.create_default_context(cafile=str(server.roots))
    context.load_verify_locations(str(server.loopback_roots))
    context.check_hostname = False
    try:
        with (
            socket.create_connection((reachable(host), port), timeout=_PATIENCE) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):
        return False
