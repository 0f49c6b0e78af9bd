"""Nodes that own their data, in this process: their grid, and the files of their identity keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedpriv.config.schema import Config
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.secure_aggregation.keys import Identity


class Owned(InProcessGrid):
    """Nodes with configurations of their own; one that fails replies with its error's type, as in a
    deployment."""

    def __init__(self, config: Config, nodes: Sequence[dict[str, Any]]) -> None:
        super().__init__(len(nodes), config.table())
        for place, own in enumerate(nodes, 1):
            self._contexts[place].node_config = own

    def _answer(self, message: Message) -> Message:
        return self._app(message, self._contexts[message.metadata.dst_node_id])


def keys_of(identities: Sequence[Identity], place: int, folder: Path) -> dict[str, str]:
    """The files of a node's own identity key and of all nodes' public ones."""
    own, peers = folder / f"identity-{place}", folder / "peers"
    own.write_text(identities[place].secret.private_bytes_raw().hex() + "\n")
    peers.write_text("".join(identity.public.hex() + "\n" for identity in identities))
    return {"identity-key": str(own), "peer-keys": str(peers)}
