"""Who the nodes of a federation are: waiting for them at the start, and replacing those that have gone.

Each node describes itself by its partition. Where the server's operator has enrolled the nodes
(:mod:`fedpriv.flower.enrolment`), a node counts only if its key is enrolled, and only for the partition that
the key is enrolled for.

A run may begin with some partitions missing (``quorum``). A missing partition is a node that has gone; a late
joiner takes its public place as a restarted node does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpriv._internal import validation
from fedpriv.accounting.head import Head
from fedpriv.flower.enrolment import Enrolment
from fedpriv.flower.exchange import by_app, error_name, read
from fedpriv.flower.intervals import NODE_LIST
from fedpriv.flower.serialization import MessageError
from fedpriv.flower.topology import (
    LEDGER,
    EngineError,
    Node,
    head_record,
    in_order,
    not_ready,
    read_head,
    read_node,
    still_missing,
    successor,
)

# The seconds to wait for a new node's description, and the number of attempts.
_NEWCOMER_TIMEOUT, _MAX_ATTEMPTS = 60.0, 5
_LAST_TIMEOUT = 10.0  # seconds that the end of a run waits for the nodes' ledgers


class Exchange(Protocol):
    """Sends one message per node and returns the received replies by node id."""

    def __call__(
        self, contents: Mapping[int, RecordDict], kind: str, group: str, timeout: float
    ) -> dict[int, Message]: ...


class Membership:
    """The nodes of a federation over a Flower Grid.

    Args:
        grid: the grid of the nodes.
        exchange: sends messages to nodes.
        start_timeout: the seconds to wait for all nodes at the start.
        expected: the required number of nodes; None: the number that the nodes report.
        quorum: the nodes with which a run begins when the wait is over; None: all.
        report: called with lines for the user.
        silos: whether all nodes are silos that take part in every release, so that absences are public.
        enrolment: the server's record of which node is which partition, or None.

    Attributes:
        nodes: the nodes in the order of their partitions, empty before the first :meth:`assemble`.
    """

    def __init__(
        self,
        grid: Grid,
        exchange: Exchange,
        start_timeout: float,
        expected: int | None,
        report: Callable[[str], None],
        silos: bool,
        quorum: int | None = None,
        enrolment: Enrolment | None = None,
    ) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.start_timeout = validation.finite_positive("start-timeout", start_timeout)
        self._grid, self._exchange, self._expected = grid, exchange, expected
        self._report, self._silos = report, silos
        self._quorum, self._enrolment = quorum, enrolment
        self._newcomers, self._silent = dict[int, Node | None](), Counter[int]()

    def assemble(self) -> tuple[Node, ...]:
        """All nodes in the order of their partition ids. The first call waits for them.

        Later calls replace nodes that have gone by nodes that were restarted.

        Raises EngineError if nodes do not connect in time, or one is not ready.
        """
        if self.nodes:
            self._replace_nodes()
            return self.nodes
        deadline = time.monotonic() + self.start_timeout
        known: dict[int, Node] = {}
        reported = -1
        while not self.nodes:
            new = [node for node in self._connected() if node not in known]
            described, failed = self._describe_nodes(new, self.start_timeout)
            known.update({node.id: node for node in described})
            if failed:
                raise EngineError(not_ready(failed, known.values(), self._expected))
            wanted = next((node.partitions for node in known.values()), self._expected)
            if len(known) not in (reported, wanted):
                reported = len(known)
                nodes = "the nodes" if wanted is None else f"{wanted} nodes"
                self._report(f"waiting for {nodes}: {reported} connected (up to {self.start_timeout:g} s)")
            if wanted is not None and len(known) >= wanted:
                self.nodes = self._checked_count(in_order(known.values()))
            elif time.monotonic() > deadline:
                self.nodes = self._with_quorum(list(known.values()))
            else:
                time.sleep(NODE_LIST)
        return self.nodes

    def _with_quorum(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes that are there, and places for those that are not. Raises EngineError if too few are."""
        if self._quorum is None or len(known) < self._quorum or not known:
            raise EngineError(still_missing(known, self.start_timeout))
        places = range(known[0].partitions)
        missing = sorted(set(places) - {node.partition for node in known})
        absent = [Node.absent(partition, len(places)) for partition in missing]
        nodes = self._checked_count(in_order([*known, *absent]))
        self._report(
            f"beginning with {len(known)} of {len(places)} nodes (min-nodes is {self._quorum}); partitions "
            f"{missing} can join later"
        )
        return nodes

    def _connected(self) -> list[int]:
        """The ids of the nodes that are connected, and enrolled where nodes are."""
        connected = sorted(self._grid.get_node_ids())
        if self._enrolment is None:
            return connected
        enrolled = self._enrolment.partitions()
        return [node for node in connected if node in enrolled]

    def _still_enrolled(self) -> tuple[Node, ...]:
        """The nodes, without those whose keys were revoked: they are asked nothing more."""
        if self._enrolment is None:
            return self.nodes
        enrolled = self._enrolment.partitions()
        return tuple(
            node if enrolled.get(node.id) == node.partition else Node.absent(node.partition, node.partitions)
            for node in self.nodes
        )

    def _replace_nodes(self) -> None:
        """Replaces nodes that have gone by new nodes with the same partition.

        A node's own ledger knows which requests it answered before. A silo that lost its optimizer's slots
        continues with new ones (:mod:`fedpriv.node.silo`).
        """
        connected = set(self._connected())
        self.nodes = self._still_enrolled()
        if connected.issuperset(node.id for node in self.nodes):
            return
        new = sorted(connected - self._newcomers.keys() - {node.id for node in self.nodes})
        found, failed = self._describe_nodes(new, _NEWCOMER_TIMEOUT)
        # A node that describes itself, or reports that it is not ready, is not asked again. A silent node may
        # be starting, but a node that hangs must not delay every release.
        self._silent.update(set(new) - failed.keys() - {node.id for node in found})
        hung = (node for node, times in self._silent.items() if times >= _MAX_ATTEMPTS)
        self._newcomers |= dict.fromkeys([*failed, *hung]) | {node.id: node for node in found}
        if failed and self._silos:
            self._report(f"of the new nodes, {not_ready(failed, (), None)}")
        nodes = tuple(successor(node, self._newcomers, connected) for node in self.nodes)
        if self._silos:
            for node in set(nodes) - set(self.nodes):
                self._report(f"partition {node.partition} has a new node")
        self.nodes = nodes

    def _checked_count(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if self._expected not in (None, len(nodes)):
            raise EngineError(
                f"the federation has {len(nodes)} nodes, but the run has {self._expected} clients that own "
                "their data; set clients and num-partitions to the same number"
            )
        return nodes

    def _describe_nodes(self, ids: Collection[int], timeout: float) -> tuple[list[Node], dict[int, str]]:
        """(the nodes that described themselves, {node id: why it is not ready})."""
        described, failed, heads = list[Node](), dict[int, str](), dict[int, Head | None]()
        for node, reply in self.query(ids, timeout).items():
            if by_app(reply):
                failed[node] = f"failed with {error_name(reply)}"
            elif reply.has_content():
                try:
                    found = self._in_place(read(reply, partial(read_node, node)))
                    heads[found.partition] = read(reply, read_head)
                    described.append(found)
                except MessageError as error:
                    failed[node] = str(error)
        if self._enrolment is not None:
            self._enrolment.note({place: head for place, head in heads.items() if head is not None})
        return described, failed

    def _in_place(self, node: Node) -> Node:
        """The node, if its key is enrolled for its partition. Raises MessageError otherwise."""
        if self._enrolment is None:
            return node
        place = self._enrolment.partitions().get(node.id)
        if place != node.partition:
            enrolled = "is not enrolled" if place is None else f"is enrolled for partition {place}"
            raise MessageError(f"has a key that {enrolled}, but says that it is partition {node.partition}")
        return node

    def query(self, ids: Collection[int], timeout: float) -> dict[int, Message]:
        """The replies of these nodes that describe themselves, by node id."""
        contents = {node: RecordDict() for node in ids}
        if self._enrolment is not None:
            places, heads = self._enrolment.partitions(), self._enrolment.heads()
            for node in contents:
                if (head := heads.get(places.get(node, -1))) is not None:
                    contents[node][LEDGER] = head_record(head)
        return self._exchange(contents, MessageType.QUERY, "nodes", timeout)

    def note_ledgers(self) -> None:
        """Asks the nodes that are there where their ledgers end now, after the run's last charge."""
        if self._enrolment is not None:
            here = set(self._connected())
            self._describe_nodes([node.id for node in self.nodes if node.id in here], _LAST_TIMEOUT)
