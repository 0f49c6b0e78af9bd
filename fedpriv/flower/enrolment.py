"""The enrolment of a deployment's nodes: which node's key is which partition.

Flower knows a node by its key and gives it a node id, but lets it name any partition. The server's record of
the nodes that its operator enrolled binds the id to the partition, so that one node's key does not take
another's place. The record is read again whenever nodes come or go, so keys can be replaced during a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import read_json

VARIABLE = "FEDPRIV_ENROLMENT"  # of the SuperLink's environment; its start script sets it
_KEYS = ("key", "node-id")


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


def of_environment() -> Enrolment | None:
    """The enrolment that the SuperLink's environment names; None without one: any node may take any place."""
    path = os.environ.get(VARIABLE)
    return Enrolment(Path(path)) if path else None
