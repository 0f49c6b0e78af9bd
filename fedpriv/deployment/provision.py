"""Makes the folders of a deployment: certificates, keys, settings and start scripts, one folder a party."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv._internal import validation
from fedpriv.deployment import flower_app, keys, operators, scripts
from fedpriv.deployment.folders import (
    AUTHORITY,
    OPERATOR_PORT,
    PARTY_FILE,
    POLICY_FILE,
    SERVER,
    USUAL_OPERATOR_PORT,
    facts_text,
    joined,
    node_folder,
    read_party,
)
from fedpriv.node.secure_parties import make_identity
from fedpriv.secure_aggregation.threshold import MAX_PARTIES, MIN_PARTIES

_LOOPBACK = ("127.0.0.1", "localhost")
_MOST_NODES = 10_000
_LAST_PORT = 65535


@dataclass(frozen=True)
class Request:
    """What `fedpriv deploy init` is asked for.

    Attributes:
        nodes: the number of nodes.
        hosts: the names and addresses of the server; nodes connect to the first.
        listen: the address at which the server listens for nodes.
        port: the port at which nodes connect.
        control_port: the port of Flower's SuperLink, on the server's loopback.
        operator_port: the port at which operators connect.
        operators: the names of operators, who may start runs from another machine.
        certificate, certificate_key, root_certificates: files of a real certificate, all or none.
        public_keys: the nodes' own public keys by partition, or none.
    """

    nodes: int
    hosts: tuple[str, ...] = _LOOPBACK
    listen: str = "127.0.0.1"
    port: int = 9443
    control_port: int = 8000
    certificate: Path | None = None
    certificate_key: Path | None = None
    root_certificates: Path | None = None
    public_keys: tuple[Path, ...] = ()
    operator_port: int = USUAL_OPERATOR_PORT
    operators: tuple[str, ...] = ("main",)

    @property
    def real_certificate(self) -> bool:
        """Whether the server has a certificate already."""
        return self.certificate is not None

    @property
    def identifies(self) -> bool:
        """Whether identity keys for secure aggregation are made; owners with own keys make these, too."""
        return not self.public_keys and MIN_PARTIES <= self.nodes <= MAX_PARTIES

    def check(self) -> None:
        """Raises ArgumentError or KeyFileError for what cannot be provisioned, before anything is made."""
        validation.integer("--nodes", self.nodes, minimum=1)
        if self.nodes > _MOST_NODES:
            raise validation.fail("--nodes", self.nodes, f"be at most {_MOST_NODES:,}")
        ports = {
            "--port": self.port,
            "--control-port": self.control_port,
            "--operator-port": self.operator_port,
        }
        for number, (name, port) in enumerate(ports.items()):
            if not 1 <= port <= _LAST_PORT:
                raise validation.fail(name, port, f"be a port from 1 to {_LAST_PORT}")
            if port in list(ports.values())[:number]:
                raise validation.fail(name, port, "differ from the other ports")
        for name in self.operators:
            operators.require_name(name)
        if len(set(self.operators)) < len(self.operators):
            raise validation.fail("--operator", list(self.operators), "be different names")
        if not self.hosts or not all(self.hosts) or any(set(host) & set(" \"/$\\`'") for host in self.hosts):
            raise validation.fail("--host", list(self.hosts), "be host names or addresses")
        self._check_certificate()
        self._check_public_keys()

    def _check_certificate(self) -> None:
        files = self.certificate, self.certificate_key, self.root_certificates
        if any(files) and not all(files):
            names = "--certificate, --certificate-key and --root-certificates"
            raise validation.ArgumentError(f"Give {names} together, or none of them for a test authority.")
        if self.certificate and self.certificate_key and self.root_certificates:
            chain = keys.read_certificates(self.certificate)
            keys.require_key_of(chain[0], self.certificate_key, "the server's")
            roots = keys.read_certificates(self.root_certificates)
            keys.require_issued(chain, roots, self.root_certificates)
            missing = [host for host in self.hosts if not keys.covers(chain[0], host)]
            if missing:
                raise validation.fail("--host", missing, "be a name that the certificate covers")

    def _check_public_keys(self) -> None:
        if self.public_keys and len(self.public_keys) != self.nodes:
            hint = "by partition; give none to have keys made"
            allowed = f"be given {self.nodes} times, once a node"
            raise validation.fail(
                "--node-public-key", [str(path) for path in self.public_keys], allowed, hint
            )
        lines = [keys.read_node_public(path) for path in self.public_keys]
        if len(set(lines)) < len(lines):
            raise validation.ArgumentError("Two of the files in --node-public-key hold the same key.")


def provision(folder: Path, request: Request) -> list[Path]:
    """Makes the deployment in a new folder, and returns the folders of its parties.

    Raises ArgumentError if the folder exists, KeyFileError for unusable keys; nothing is made then.
    """
    request.check()
    if folder.exists():
        hint = "keys are never written over: give another folder, or remove this one yourself"
        raise validation.fail("FOLDER", str(folder), "be a new folder", hint)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    try:
        return _made(folder, request)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _made(folder: Path, request: Request) -> list[Path]:
    server = folder / SERVER
    for path in (server, server / "node-keys"):
        path.mkdir(mode=0o700)
    roots = _server_files(folder, server, request)
    (folder / "compose.yaml").write_text(
        scripts.compose(request.nodes, (request.port, request.operator_port))
    )
    flower_app.write(server / flower_app.FOLDER)
    for name, content in scripts.example_runs(request.nodes).items():
        (server / name).write_text(content)
    for name, content in scripts.server_units().items():
        (server / name).write_text(content)
    nodes = [_node(folder, partition, request, roots) for partition in range(request.nodes)]
    if request.identifies:
        peers = "".join(f"{make_identity(node / 'identity.key')}\n" for node in nodes)
        for node in nodes:
            keys.write_new(node / "peers.txt", peers.encode())
    party = read_party(server)
    return [server, *nodes, *(operators.add(party, name) for name in request.operators)]


def _server_files(folder: Path, server: Path, request: Request) -> bytes:
    """Writes the server's certificate, key and facts; the roots' certificates in PEM."""
    if request.certificate and request.certificate_key and request.root_certificates:
        roots = request.root_certificates.read_bytes()
        certificate, key = (str(path.absolute()) for path in (request.certificate, request.certificate_key))
    else:
        roots = _test_certificates(folder, server, request.hosts)
        certificate, key = "server.crt", "server.key"
    keys.write_new(server / "ca.crt", roots)
    _loopback_certificate(server)
    facts = {
        "party": SERVER,
        "nodes": request.nodes,
        "hosts": list(request.hosts),
        "listen": request.listen,
        "port": request.port,
        "control-port": request.control_port,
        OPERATOR_PORT: request.operator_port,
        "certificate": certificate,
        "certificate-key": key,
        "root-certificates": "ca.crt",
    }
    (server / PARTY_FILE).write_text(facts_text(facts))
    _script(server, scripts.server_script(request.control_port))
    return roots


def _loopback_certificate(server: Path) -> None:
    """Writes the SuperLink's certificate, which only this machine sees; nobody keeps its authority."""
    authority = keys.make_authority("fedpriv loopback", keys.LOOPBACK_DAYS)
    certificate, key = keys.make_server_certificate(authority, _LOOPBACK, keys.LOOPBACK_DAYS)
    keys.write_new(server / "loopback-ca.crt", keys.pem(authority.certificate))
    keys.write_new(server / "loopback.crt", keys.pem(certificate))
    keys.write_new(server / "loopback.key", keys.private_pem(key), private=True)


def _test_certificates(folder: Path, server: Path, hosts: Sequence[str]) -> bytes:
    authority_folder = folder / AUTHORITY
    authority_folder.mkdir(mode=0o700)
    authority = keys.make_authority("fedpriv test authority")
    certificate, key = keys.make_server_certificate(authority, hosts)
    keys.write_new(authority_folder / "ca.key", keys.private_pem(authority.key), private=True)
    keys.write_new(authority_folder / "ca.crt", keys.pem(authority.certificate))
    keys.write_new(server / "server.key", keys.private_pem(key), private=True)
    keys.write_new(server / "server.crt", keys.pem(certificate))
    return keys.pem(authority.certificate)


def _node(folder: Path, partition: int, request: Request, roots: bytes) -> Path:
    name = node_folder(partition)
    node = folder / name
    for path in (node, node / "ledger", node / "anchor"):
        path.mkdir(mode=0o700)
    if request.public_keys:
        public = keys.read_node_public(request.public_keys[partition])
    else:
        private, public = keys.make_node_key()
        keys.write_new(node / "node.key", private, private=True)
    keys.write_new(node / "node.key.pub", public)
    keys.write_new(folder / SERVER / "node-keys" / f"{name}.pub", public)
    keys.write_new(node / "ca.crt", roots)
    address = joined(request.hosts[0], request.port)
    (node / PARTY_FILE).write_text(
        facts_text({"party": name, "partition": partition, "nodes": request.nodes})
    )
    (node / POLICY_FILE).write_text(
        scripts.node_policy(address, partition, request.nodes, request.identifies)
    )
    (node / f"fedpriv-{name}.service").write_text(scripts.node_unit(name))
    _script(node, scripts.node_script())
    return node


def _script(folder: Path, content: str) -> None:
    path = folder / "start.sh"
    path.write_text(content)
    path.chmod(0o755)
