"""Audits of a deployment whose nodes are all of one owner: their files, and the app that audits.

Each node's policy must have an ``audit-file``: with it the owner decides that the node leaves examples out of
its data, and answers audits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv.deployment import flower_app, runs
from fedpriv.deployment.folders import POLICY_FILE, Party, read_parties

FOLDER = "audit"  # of the server's folder: the audit's plan and finding
_APP = "fedpriv-audit"


def owners(folder: Path) -> list[dict[str, Any]]:
    """The configurations of all nodes of a deployment's folder, by partition.

    Raises ArgumentError unless all nodes are there and their policies allow audits.
    """
    nodes = [party for party in read_parties(folder) if party.is_node]
    if not nodes or [party.facts["partition"] for party in nodes] != list(range(nodes[0].nodes)):
        hint = "an audit reads all nodes' data, so it is for the owner of all nodes"
        raise validation.fail("--deployment", str(folder), "hold the folders of all nodes", hint)
    for party in nodes:
        if not party.policy["audit-file"]:
            raise validation.ArgumentError(
                f"{party.folder / POLICY_FILE} has no audit-file; a node's owner allows audits by a line "
                'such as audit-file = "audit.txt" in [node], and starts the node again'
            )
    return [party.policy.node_config for party in nodes]


def start(server: Party, settings: Mapping[str, Any], source: str) -> int:
    """Has Flower start the audit's app, whose ServerApp has the text ``source``; the run's number."""
    app = server.folder / _APP
    flower_app.write(app, server=source)
    return runs.start_app(server, app, settings)


def wait(server: Party, run: int, show: Callable[[str], None]) -> None:
    """Waits for the audit's end and shows its log meanwhile. Raises FlowerError if the SuperLink is gone."""
    runs.to_its_end(server, run, show)
