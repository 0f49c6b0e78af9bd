"""The folders of a deployment: one a party, each complete in itself, so that it can be copied to its machine.

    FOLDER/authority/   the test authority's key, which no machine needs
    FOLDER/server/      certificate and key, the nodes' public keys, Flower's configuration, the app
    FOLDER/node-K/      the node's key, the authority's certificate, the owner's policy
    FOLDER/operator-X/  the key and certificate of operator X, who may start runs, and the server's address

Each party's ``party.toml`` states its facts. Paths in it are relative to the party's folder, or absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.settings import toml_value
from fedpriv._internal.version import __version__
from fedpriv.config.reading import read_file
from fedpriv.node.policy_file import Policy, read_policy

_OPERATOR = "operator-"
SERVER, AUTHORITY, PARTY_FILE = "server", "authority", "party.toml"
OPERATOR_PORT = "operator-port"  # the fact with the port of the control proxy
USUAL_OPERATOR_PORT = 9444
POLICY_FILE = "policy.toml"  # of a node: where everything is, and what its owner allows


def node_folder(partition: int) -> str:
    """The name of a node's folder."""
    return f"node-{partition}"


def operator_folder(name: str) -> str:
    """The name of an operator's folder."""
    return f"{_OPERATOR}{name}"


def joined(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address.

    >>> joined("::1", 9443), joined("server.example", 9443)
    ('[::1]:9443', 'server.example:9443')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def versions() -> dict[str, str]:
    """The installed versions that both sides of a deployment must agree on."""
    return {"fedpriv": __version__, "flwr": metadata.version("flwr"), "torch": metadata.version("torch")}


@dataclass(frozen=True)
class Party:
    """A party's folder and the facts of its ``party.toml``."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``server``, ``node-K`` or ``operator-NAME``."""
        return str(self.facts["party"])

    @property
    def is_server(self) -> bool:
        """Whether the party is the server."""
        return self.name == SERVER

    @property
    def is_operator(self) -> bool:
        """Whether the party is an operator."""
        return self.name.startswith(_OPERATOR)

    @property
    def is_node(self) -> bool:
        """Whether the party is a node."""
        return not self.is_server and not self.is_operator

    @property
    def nodes(self) -> int:
        """The number of nodes of the deployment."""
        return int(self.facts["nodes"])

    @property
    def roots(self) -> Path:
        """The certificates of the authorities that the server's certificate is checked against."""
        return Path(self.policy["root-certificates"]) if self.is_node else self.path("root-certificates")

    @property
    def public_keys(self) -> tuple[Path, ...]:
        """The server's copies of the nodes' public keys, by partition."""
        return tuple(self.folder / "node-keys" / f"{node_folder(k)}.pub" for k in range(self.nodes))

    @property
    def loopback_roots(self) -> Path:
        """The authority of the certificate with which the SuperLink answers on the server's loopback."""
        return self.folder / "loopback-ca.crt"

    @property
    def enrolment(self) -> Path:
        """The server's record of which key is which partition."""
        return self.folder / "enrolment.json"

    @property
    def operators(self) -> Path:
        """The server's record of who may start runs from another machine."""
        return self.folder / "operators.json"

    @property
    def server_address(self) -> tuple[str, int]:
        """(host, port) at which nodes, or this operator, reach the server."""
        if self.is_operator:
            return str(self.facts["host"]), int(self.facts[OPERATOR_PORT])
        if self.is_server:
            return str(self.facts["hosts"][0]), int(self.facts["port"])
        host, _, port = str(self.policy["superlink"]).rpartition(":")
        return host.strip("[]"), int(port)

    def path(self, fact: str) -> Path:
        """The path that a fact names."""
        return self.folder / str(self.facts[fact])  # an absolute path stays as it is

    @property
    def policy(self) -> Policy:
        """What a node's owner decided. Raises ArgumentError for a file that is missing or wrong."""
        return read_policy(self.folder / POLICY_FILE)


_SERVER_FACTS = {
    "hosts": list, "listen": str, "port": int, "control-port": int, "certificate": str,
    "certificate-key": str, "root-certificates": str,
}  # fmt: skip
_NODE_FACTS = {"partition": int}
_OPERATOR_FACTS = {
    "host": str, OPERATOR_PORT: int, "certificate": str, "certificate-key": str, "root-certificates": str,
}  # fmt: skip
_FACTS = {"party": str, "nodes": int, "versions": dict}


def read_party(folder: Path) -> Party:
    """The party of a folder. Raises ArgumentError if its ``party.toml`` is missing or incomplete."""
    path = folder / PARTY_FILE
    if not path.is_file():
        hint = "`fedpriv deploy init` makes it"
        raise validation.fail("FOLDER", str(folder), f"be a deployment, or hold {PARTY_FILE}", hint)
    facts = read_file(path)
    name = str(facts.get("party"))
    others = _OPERATOR_FACTS if name.startswith(_OPERATOR) else _NODE_FACTS
    own = _SERVER_FACTS if name == SERVER else others
    for fact, kind in (_FACTS | own).items():
        if not isinstance(facts.get(fact), kind) or isinstance(facts.get(fact), bool):
            hint = f"as `fedpriv deploy init` writes it: {kind.__name__}"
            raise validation.fail(f"{fact} in {path}", facts.get(fact), "be set", hint)
    if not facts.get("hosts", True):
        raise validation.fail(f"hosts in {path}", [], "name at least one host")
    return Party(folder.absolute(), facts)


def read_parties(folder: Path, name: str = "") -> list[Party]:
    """The parties of a deployment's folder, the server first, or the one party of a party's own folder.

    Args:
        folder: what `fedpriv deploy init` made, or one party's part of it.
        name: only this party; empty for all.

    Raises ArgumentError if there is no such party.
    """
    if (folder / PARTY_FILE).is_file() or not folder.is_dir():
        parties = [read_party(folder)]
    else:
        found = [path.parent for path in folder.glob(f"*/{PARTY_FILE}")]
        parties = sorted((read_party(each) for each in found), key=_order) or [read_party(folder)]
    if not name:
        return parties
    validation.choice("--party", name, [party.name for party in parties])
    return [party for party in parties if party.name == name]


def read_server(folder: Path) -> Party:
    """The server of a deployment's folder, or of the server's own folder. Raises ArgumentError."""
    parties = [party for party in read_parties(folder) if party.is_server]
    if not parties:
        raise validation.fail("FOLDER", str(folder), "hold the server's folder", "it is a node's")
    return parties[0]


def read_controller(folder: Path) -> Party:
    """Who starts and watches runs from this folder: the server, or an operator in the operator's own folder.

    Raises ArgumentError for a node's folder.
    """
    parties = read_parties(folder)
    if not parties[0].is_node:
        return parties[0]
    hint = "it is a node's"
    raise validation.fail("FOLDER", str(folder), "hold the server's folder, or be an operator's", hint)


def facts_text(facts: Mapping[str, Any]) -> str:
    """The content of a ``party.toml``."""
    lines = [f"{key} = {_text(value)}\n" for key, value in facts.items()]
    agreed = [f"{name} = {toml_value(version)}\n" for name, version in versions().items()]
    head = "# Written by `fedpriv deploy init`. Paths are relative to this folder, or absolute.\n"
    both = "\n# What all parties must have installed.\n[versions]\n"
    return head + "".join(lines) + both + "".join(agreed)


def _text(value: Any) -> str:
    return f"[{', '.join(map(toml_value, value))}]" if isinstance(value, list) else toml_value(value)


def _order(party: Party) -> tuple[bool, bool, int, str]:
    return not party.is_server, party.is_operator, int(party.facts.get("partition", -1)), party.name
