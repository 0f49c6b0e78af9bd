"""The enrolment of a deployment's nodes: which node's key is which partition.

Flower knows a node by its key and gives it a node id, but lets it name any partition. The server's record of
the nodes that its operator enrolled binds the id to the partition, so that one node's key does not take
another's place. The record is read again whenever nodes come or go, so keys can be replaced during a run.

Beside it the server keeps where each node's ledger ended when it was last asked: the number of its events and
the hash over them. A node is shown it when it is asked to describe itself, and refuses with a ledger that
does not go so far. A ledger that was lost, cut or set back together with its anchor is noticed by that.
Ledgers of clients are left out: their lengths would tell who took part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import atomic, read_json
from fedpriv.accounting.head import Head

VARIABLE = "FEDPRIV_ENROLMENT"  # of the SuperLink's environment; its start script sets it
_KEYS = ("key", "node-id")
HEADS = "ledgers.json"  # {partition: where the node's ledger ended}, beside the enrolment


class EnrolmentError(validation.FedprivError):
    """The record of enrolled nodes cannot be read, or contradicts itself."""


def read_enrolment(path: Path) -> dict[int, dict[str, Any]]:
    """{partition: {"key": the fingerprint of its public key, "node-id": Flower's id}} of enrolled nodes."""
    try:
        table = read_json(path.read_bytes())
        entries = {int(partition): {key: entry[key] for key in _KEYS} for partition, entry in table.items()}
        ids = [entry["node-id"] for entry in entries.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnrolmentError(
            f"the enrolment {path} cannot be read ({type(error).__name__}); `fedpriv deploy enrol` writes it"
        ) from None
    if not all(isinstance(number, int) for number in ids) or len(set(ids)) < len(ids):
        raise EnrolmentError(f"the enrolment {path} names a node twice; `fedpriv deploy enrol` writes it")
    return entries


class Enrolment:
    """The partitions of the enrolled nodes, as the file has them now."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def partitions(self) -> Mapping[int, int]:
        """{Flower's node id: partition}. Raises EnrolmentError."""
        entries = read_enrolment(self._path)
        return {entry["node-id"]: partition for partition, entry in entries.items()}

    def heads(self) -> dict[int, Head]:
        """{partition: where its node's ledger ended when it last said so}. Raises EnrolmentError."""
        path = self._path.with_name(HEADS)
        try:
            table = read_json(path.read_bytes())
            return {int(partition): Head.from_json(head) for partition, head in table.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise EnrolmentError(
                f"{path} cannot be read ({type(error).__name__}): restore it from a copy, or delete it; then "
                "the nodes' ledgers are believed as they are now"
            ) from None

    def note(self, heads: Mapping[int, Head]) -> None:
        """Keeps where the ledgers of these partitions' nodes end now, in place of what was kept of them."""
        kept = self.heads()
        if all(kept.get(partition) == head for partition, head in heads.items()):
            return
        table = {str(partition): head.to_json() for partition, head in sorted({**kept, **heads}.items())}
        with atomic(self._path.with_name(HEADS)) as file:
            file.write(json.dumps(table, indent=1).encode() + b"\n")


def of_environment() -> Enrolment | None:
    """The enrolment that the SuperLink's environment names; None without one: any node may take any place."""
    path = os.environ.get(VARIABLE)
    return Enrolment(Path(path)) if path else None
