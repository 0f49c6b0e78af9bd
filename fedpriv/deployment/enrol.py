"""Enrols, replaces and revokes the keys of a deployment's nodes, while runs go on.

Flower registers keys; the server's enrolment record binds each of them to a partition
(:mod:`fedpriv.flower.enrolment`). A key is registered before the record names it, and the record loses it
before it is unregistered: at no moment can a key take a place that is not its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv.deployment import control_api, keys
from fedpriv.deployment.folders import Party
from fedpriv.flower.enrolment import read_enrolment


def enrolled(server: Party) -> dict[int, dict[str, Any]]:
    """The enrolment record, empty before the first node is enrolled."""
    return read_enrolment(server.enrolment) if server.enrolment.is_file() else {}


def enrol(server: Party) -> dict[int, int]:
    """Registers all nodes' keys that are not enrolled yet; {partition: Flower's node id} of the new ones.

    Raises KeyFileError for an unusable or repeated key, FlowerError if Flower refuses one.
    """
    record, new = enrolled(server), dict[int, int]()
    lines = [keys.read_node_public(path) for path in server.public_keys]
    if len(set(lines)) < len(lines):
        raise keys.KeyFileError("two nodes have the same public key; each needs its own")
    for partition, (path, line) in enumerate(zip(server.public_keys, lines, strict=True)):
        mark = keys.fingerprint(line)
        if partition in record and record[partition]["key"] == mark:
            continue
        if partition in record:
            raise keys.KeyFileError(
                f"{path} is not the key that partition {partition} is enrolled with; "
                f"`fedpriv deploy rotate` replaces a key"
            )
        node = control_api.register(server, path)
        record[partition] = {"key": mark, "node-id": node}
        _write(server, record)
        new[partition] = node
    return new


def revoke(server: Party, partition: int) -> None:
    """Ends the enrolment of a partition's key at once. Raises ArgumentError if it is not enrolled."""
    record = enrolled(server)
    entry = _entry(record, partition)
    _write(server, {place: other for place, other in record.items() if place != partition})
    control_api.unregister(server, entry["node-id"])


def rotate(server: Party, partition: int, public_key: Path) -> int:
    """Replaces a partition's key by another; Flower's id of the node with the new key.

    Raises ArgumentError if the partition has no place, KeyFileError if the key is unusable or in use.
    """
    if not 0 <= partition < server.nodes:
        raise validation.fail("PARTITION", partition, f"be from 0 to {server.nodes - 1}")
    line = keys.read_node_public(public_key)
    if line in [keys.read_node_public(path) for path in server.public_keys]:
        raise keys.KeyFileError(f"{public_key} is in use already; give the node a new key")
    record = enrolled(server)
    if partition in record:
        revoke(server, partition)
    path = server.public_keys[partition]
    with atomic(path) as file:
        file.write(line)
    return enrol(server)[partition]


def _entry(record: Mapping[int, dict[str, Any]], partition: int) -> dict[str, Any]:
    if partition not in record:
        known = ", ".join(map(str, sorted(record))) or "none"
        raise validation.fail("PARTITION", partition, "be an enrolled partition", f"enrolled: {known}")
    return record[partition]


def _write(server: Party, record: Mapping[int, Mapping[str, Any]]) -> None:
    with atomic(server.enrolment) as file:
        table = {str(partition): record[partition] for partition in sorted(record)}
        file.write((json.dumps(table, indent=1) + "\n").encode())
