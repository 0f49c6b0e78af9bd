"""The folders of a deployment: one a party, each complete in itself, so that it can be copied to its machine.

    FOLDER/authority/   the test authority's key, which no machine needs
    FOLDER/server/      certificate and key, the nodes' public keys, Flower's configuration, the app
    FOLDER/node-K/      the node's key, the authority's certificate, the owner's policy

Each party's ``party.toml`` states its facts. Paths in it are relative to the party's folder, or absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.version import __version__
from fedpriv.config.reading import read_file
from fedpriv.node.policy_file import Policy, read_policy

SERVER, AUTHORITY, PARTY_FILE = "server", "authority", "party.toml"
POLICY_FILE = "policy.toml"  # of a node: where everything is, and what its owner allows


def node_folder(partition: int) -> str:
    """The name of a node's folder."""
    return f"node-{partition}"


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
        """``server``, or ``node-K``."""
        return str(self.facts["party"])

    @property
    def is_server(self) -> bool:
        """Whether the party is the server."""
        return self.name == SERVER

    @property
    def nodes(self) -> int:
        """The number of nodes of the deployment."""
        return int(self.facts["nodes"])

    @property
    def roots(self) -> Path:
        """The certificates of the authorities that the server's certificate is checked against."""
        return self.path("root-certificates") if self.is_server else Path(self.policy["root-certificates"])

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
    def server_address(self) -> tuple[str, int]:
        """(host, port) at which nodes reach the server."""
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
_FACTS = {"party": str, "nodes": int, "versions": dict}


def read_party(folder: Path) -> Party:
    """The party of a folder. Raises ArgumentError if its ``party.toml`` is missing or incomplete."""
    path = folder / PARTY_FILE
    if not path.is_file():
        hint = "`fedpriv deploy init` makes it"
        raise validation.fail("FOLDER", str(folder), f"be a deployment, or hold {PARTY_FILE}", hint)
    facts = read_file(path)
    own = _SERVER_FACTS if facts.get("party") == SERVER else _NODE_FACTS
    for name, kind in (_FACTS | own).items():
        if not isinstance(facts.get(name), kind) or isinstance(facts.get(name), bool):
            hint = f"as `fedpriv deploy init` writes it: {kind.__name__}"
            raise validation.fail(f"{name} in {path}", facts.get(name), "be set", hint)
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


def _order(party: Party) -> tuple[bool, int]:
    return not party.is_server, int(party.facts.get("partition", -1))
