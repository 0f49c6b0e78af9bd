"""The nodes of a federation, their order, and the assignment of shards to them.

A cohort's shards are assigned to the nodes in the order of their partition ids. (Flower's node ids are
random, so each node is asked for its partition id once.) A shard with a home silo goes to the node that hosts
this silo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedpriv._internal import validation
from fedpriv.accounting.head import Head
from fedpriv.federated.engine import Shard
from fedpriv.flower.serialization import MessageError

LEDGER = "ledger"  # the record of a question or answer about a node that says where its ledger ends

_MAX_NAMED = 20  # nodes in an error message
_LONGEST_LINK = 64  # characters of a hash


class EngineError(validation.FedprivError, RuntimeError):
    """The federation cannot answer. The message gives the reason, in public terms, and what to do."""


@dataclass(frozen=True)
class Node:
    """A node of the federation: Flower's node id, its partition id and the number of partitions."""

    id: int
    partition: int
    partitions: int

    @classmethod
    def absent(cls, partition: int, partitions: int) -> Node:
        """The place of a node that has not joined yet."""
        return cls(-1 - partition, partition, partitions)

    @property
    def is_absent(self) -> bool:
        """Whether the node has not joined yet. Flower's own ids are positive."""
        return self.id < 0


def assign(shards: Sequence[Shard], nodes: Sequence[Node]) -> dict[Node, list[Shard]]:
    """Each node's shards: {node: shards}. Shards without a home are assigned in contiguous ranges.

    >>> import numpy as np
    >>> nodes = [Node(90, 0, 2), Node(17, 1, 2)]
    >>> free = [Shard(index, np.arange(2), parties=2) for index in range(5)]
    >>> [[shard.index for shard in part] for part in assign(free, nodes).values()]
    [[0, 1], [2, 3, 4]]
    """
    assigned: dict[Node, list[Shard]] = {node: [] for node in nodes}
    free = [shard for shard in shards if shard.home is None]
    for position, node in enumerate(nodes):
        first, last = (len(free) * (position + j) // len(nodes) for j in (0, 1))
        assigned[node].extend(free[first:last])
    for shard in shards:
        if shard.home is not None:
            assigned[host(shard.home, nodes)].append(shard)
    return assigned


def host(silo: int, nodes: Sequence[Node]) -> Node:
    """The node that hosts a silo during the whole run; it keeps the silo's state."""
    return nodes[silo % len(nodes)]


def read_node(node: int, content: RecordDict) -> Node:
    """The node that its reply describes. Raises MessageError if the reply names no partition."""
    record = content.get("node")
    fields = record if isinstance(record, ConfigRecord) else {}
    partition, partitions = fields.get("partition-id"), fields.get("num-partitions")
    if not isinstance(partition, int) or not isinstance(partitions, int):
        raise MessageError("has no partition (--node-config 'partition-id=... num-partitions=...')")
    return Node(node, partition, partitions)


def head_record(head: Head) -> ConfigRecord:
    """Where a node's ledger ends, for the record :data:`LEDGER` of a message."""
    return ConfigRecord(head.to_json())


def read_head(content: RecordDict) -> Head | None:
    """Where a node's ledger ends, if a message says so. Raises MessageError if that cannot be read."""
    if LEDGER not in content:
        return None
    record = content[LEDGER]
    try:
        head = Head.from_json(dict(record) if isinstance(record, ConfigRecord) else record)
    except ValueError:
        raise MessageError("says of its ledger what cannot be read") from None
    if len(head.link) > _LONGEST_LINK:
        raise MessageError("says of its ledger what cannot be read")
    return head


def in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes sorted by partition. Raises EngineError unless each partition occurs exactly once."""
    ordered = tuple(sorted(nodes, key=lambda node: node.partition))
    partitions = [node.partition for node in ordered]
    counts = {node.partitions for node in ordered}
    if counts != {len(ordered)} or partitions != list(range(len(ordered))):
        raise EngineError(
            f"the nodes' partition ids are {partitions} of {sorted(counts)}; with n nodes they must be 0 to "
            "n - 1, each once, and every node must have num-partitions=n"
        )
    return ordered


def successor(node: Node, newcomers: Mapping[int, Node | None], connected: Collection[int]) -> Node:
    """The node that replaces a node: the node itself if it is connected, otherwise a newcomer.

    >>> old, new = Node(90, 1, 3), Node(17, 1, 3)
    >>> [successor(old, {17: new, 5: None}, connected).id for connected in ({90, 17}, {17, 5}, {5})]
    [90, 17, 90]
    """
    place = (node.partition, node.partitions)
    candidates = [new for new in newcomers.values() if new and (new.partition, new.partitions) == place]
    return node if node.id in connected else next((new for new in candidates if new.id in connected), node)


def still_missing(nodes: Iterable[Node], timeout: float) -> str:
    """The error text after waiting ``timeout`` seconds: which partitions are missing."""
    connected = {node.partition for node in nodes}
    expected = max((node.partitions for node in nodes), default=0)
    missing = sorted(set(range(expected)) - connected)
    what = f"partitions {missing} are missing" if missing else "no node has answered"
    return f"after {timeout:g} s {what}; start the SuperNodes, or the simulation's nodes"


def not_ready(failed: Mapping[int, str], described: Collection[Node], expected: int | None) -> str:
    """The error text about nodes that reported that they cannot take part.

    Such a node does not report its partition. If all other nodes did, the remaining partitions are those of
    the failed nodes.

    >>> print(not_ready({90: "failed with MissingDataError", 17: "failed"}, [Node(5, 1, 3)], None))
    2 of 3 nodes are not ready: node 17 failed; node 90 failed with MissingDataError; they are \
of partitions 0 and 2 (each node's own terminal says why; its SuperNode ID is there, too)
    """
    total = next((node.partitions for node in described), expected)
    left = sorted(set(range(total or 0)) - {node.partition for node in described})
    of = "" if total is None else f" of {total}"
    errors = "; ".join(f"node {node} {why}" for node, why in sorted(failed.items())[:_MAX_NAMED])
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    where = ""
    if described and len(left) == len(failed) <= _MAX_NAMED:
        others = f"s {', '.join(map(str, left[:-1]))} and" if left[:-1] else ""
        where = f"; {'they are' if others else 'it is'} of partition{others} {left[-1]}"
    nodes = "node" if len(failed) == 1 == (total or 1) else "nodes"
    return (
        f"{len(failed)}{of} {nodes} {'is' if len(failed) == 1 else 'are'} not ready: {errors}{more}{where} "
        "(each node's own terminal says why; its SuperNode ID is there, too)"
    )
