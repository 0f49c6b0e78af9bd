"""The engine over any Flower Grid: one message a node and release, one bounded sum back; or, at the client
level, one message a node and round, and the changes of its silos back.

Who does what is dealt in the order of the nodes' partitions (:mod:`fedpriv.flower.topology`). Replies are
added in the same order, so that a run does not depend on who was faster.

A node that fails or stays silent contributes nothing: its chunks are missing from the sum and its
parties from the count, and the release tops the noise up. How many replied is private and goes nowhere
but into the :class:`~fedpriv.federated.engine.PartialSum`, unless all nodes are asked in every release, as
silos are: who does not answer then tells of no one's draw, and is told, in the run's report too
(:mod:`fedpriv.federated.availability`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedpriv._internal import validation
from fedpriv.clipping import added
from fedpriv.federated.availability import Dropouts
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.worker import zeros
from fedpriv.flower.grids.base import HostedGrid
from fedpriv.flower.serialization import MessageError, ask_content, read_reply, shared_records
from fedpriv.flower.silo_serialization import model_record, read_changes, training_content
from fedpriv.flower.topology import (
    EngineError,
    Node,
    assign,
    host,
    in_order,
    not_ready,
    read_node,
    still_missing,
    successor,
)
from fedpriv.mechanism.query import Query
from fedpriv.node.silo import ModelDelta, TrainRequest

SILOS_TRAIN = f"{MessageType.TRAIN}.silos"  # the message type of the client level

_TREE = 4  # nodes, from which the grid adds their replies
_LOOK_AGAIN = 0.2  # seconds between looks at the list of nodes while a federation assembles
# Seconds that a run waits for a node that has come since to say where it stands, and how often.
_PATIENCE, _TRIES = 60.0, 5
# Flower's errors of messages that expired, or whose node has left.
_UNANSWERED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


class SilentError(MessageError):
    """Nothing came from a node."""


class GridEngine:
    """An :class:`~fedpriv.federated.engine.Engine` over a Flower Grid.

    Args:
        grid: any Grid whose nodes run :mod:`fedpriv.flower.client_app`.
        reply_timeout: seconds to wait for a release's replies.
        start_timeout: seconds to wait for all nodes to be there, once.
        strict: raise where any node fails, instead of doing without it. Default: on grids that host
            their own nodes, where a failure is a defect of this machine and not a dropout.
        nodes: how many nodes there must be, where that is settled; default: as many as they say.
        tell: called with a line that says who is waited for, while the federation assembles, and where silos
            do not answer.
        silos: whether the chunks are of silos, all of which are asked in every release.

    Attributes:
        absences: which silos' nodes gave nothing to which releases; nothing of clients that are sampled.

    Raises:
        EngineError: from ``gather``, where nodes do not assemble in time, one is not ready, or none of
            the federation is there any more; from ``train``, where no silo answers, too.
    """

    def __init__(
        self,
        grid: Grid,
        reply_timeout: float = 600.0,
        start_timeout: float = 300.0,
        strict: bool | None = None,
        nodes: int | None = None,
        tell: Callable[[str], None] = lambda line: None,
        silos: bool = False,
    ) -> None:
        self._grid = grid
        self._reply_timeout = validation.finite_positive("reply-timeout", reply_timeout)
        self._start_timeout = validation.finite_positive("start-timeout", start_timeout)
        self._strict = isinstance(grid, HostedGrid) if strict is None else strict
        self._expected, self._tell, self._silos = nodes, tell, silos
        self._nodes: tuple[Node, ...] = ()
        self._newcomers, self._silent = dict[int, Node | None](), Counter[int]()
        self._missing = set[str]()
        self.absences = Dropouts()

    def gather(self, request: SumRequest) -> PartialSum:
        """The sums over all chunks that could be computed, and their parties."""
        nodes = self.assemble()
        shared = shared_records(request)
        work = {node: part for node, part in assign(request.shards, nodes).items() if part}
        contents = {node: ask_content(shared, part) for node, part in work.items()}
        grid, to = self._grid, (MessageType.TRAIN, str(request.release), self._reply_timeout)
        if isinstance(grid, HostedGrid) and grid.adds and self._strict and len(work) >= _TREE:
            added = grid.send_and_add(self._messages(contents, *to), timeout=self._reply_timeout)
            return self._read_added(added, request.query, work)
        return self._add(request, work, self._exchange(contents, *to))

    def _read_added(self, reply: Message | None, query: Query, work: dict[Node, list[Shard]]) -> PartialSum:
        """The reply that stands for all nodes."""
        parties = sum(shard.parties for shards in work.values() for shard in shards)
        try:
            return _usable(reply, query, parties).to(query)
        except MessageError as error:
            raise EngineError(f"a node: {error} (details are in the nodes' own logs)") from None

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """The changes of all silos that could answer, in the order of their numbers."""
        nodes, model = self.assemble(), model_record(request)
        hands: dict[Node, list[int]] = {}
        for silo in request.silos:
            hands.setdefault(host(silo, nodes), []).append(silo)
        replies = self._exchange(
            {node: training_content(model, request, silos) for node, silos in hands.items()},
            SILOS_TRAIN,
            str(request.round),
            self._reply_timeout,
        )
        changes, failed = list[ModelDelta](), dict[Node, MessageError]()
        for node, silos in hands.items():
            try:
                changes.extend(read_changes(_content(replies.get(node.id)), silos, request.params))
            except MessageError as error:  # all are asked in every round: who failed tells of no one's draw
                failed[node] = error
        reasons = self._reasons(failed)
        self._tolerate(_said(reasons))
        first, steps = request.round * len(request.events) + 1, len(request.events)
        self.absences.note(reasons, first, first + steps - 1)
        if not changes:
            raise EngineError(f"no node answered: {_joined(_said(reasons))}")
        self._tell_missing(f"round {request.round + 1}", _said(reasons))
        return tuple(sorted(changes, key=lambda change: change.silo))

    def _tell_missing(self, now: str, failures: Sequence[str]) -> None:
        """Says which nodes' silos stay out from ``now`` on, where that has changed."""
        if set(failures) == self._missing:
            return
        self._missing = set(failures)
        text = f"without some silos: {_joined(failures)}" if failures else "with all silos again"
        self._tell(f"{now} on: {text}")

    def _add(
        self, request: SumRequest, work: dict[Node, list[Shard]], replies: dict[int, Message]
    ) -> PartialSum:
        """The usable replies' sum, in the order of the partitions."""
        query, usable, failed = request.query, list[PartialSum](), dict[Node, MessageError]()
        for node, shards in work.items():
            try:
                usable.append(_usable(replies.get(node.id), query, sum(c.parties for c in shards)))
            except MessageError as error:
                failed[node] = error
        # Which nodes were asked tells who was sampled, where each node is a client.
        told = self._strict or self._silos
        reasons = self._reasons(failed) if told else {}
        self._tolerate(_said(reasons))
        if self._silos:
            self.absences.note(reasons, request.release + 1, request.release + 1)
            self._tell_missing(f"release {request.release + 1}", _said(reasons))
        if work and not usable:
            self._look_for_life()
        totals = added(reply.sums for reply in usable) or zeros(query)
        return PartialSum(totals, sum(reply.parties for reply in usable)).to(query)

    def _reasons(self, failed: Mapping[Node, MessageError]) -> dict[int, str]:
        """Why nothing usable came from these nodes, by partition."""
        silent = any(isinstance(error, SilentError) for error in failed.values())
        there = set(self._grid.get_node_ids()) if silent else set[int]()
        return {
            node.partition: "gone offline"
            if isinstance(error, SilentError) and node.id not in there
            else str(error)
            for node, error in failed.items()
        }

    def _tolerate(self, failures: Sequence[str]) -> None:
        """Raises EngineError where a failure is not to be done without."""
        if failures and self._strict:
            raise EngineError(_joined(failures))

    def _look_for_life(self) -> None:
        """Raises EngineError where no node of the whole federation is there any more.

        That nobody of a cohort answered is no reason to stop: that the run stops would tell who was drawn.
        """
        # An error is life, too: which node it came from must not end the run either.
        replies = self._exchange_places([node.id for node in self._nodes], self._start_timeout)
        if not any(reply.has_content() or _by_app(reply) for reply in replies.values()):
            raise EngineError("no node answers any more, sampled or not (see the nodes' own logs)")

    def assemble(self) -> tuple[Node, ...]:
        """All nodes in the order of their partition ids; waits for them the first time.

        After that a node that was started anew takes the place of one that is gone, whoever is asked next.
        """
        if self._nodes:
            self._take_in()
            return self._nodes
        deadline = time.monotonic() + self._start_timeout
        known: dict[int, Node] = {}
        told = -1
        while not self._nodes:
            new = [node for node in self._grid.get_node_ids() if node not in known]
            there, failed = self._ask_places(new, self._start_timeout)
            known.update({node.id: node for node in there})
            if failed:
                raise EngineError(not_ready(failed, known.values(), self._expected))
            wanted = next((node.partitions for node in known.values()), self._expected)
            if len(known) not in (told, wanted):
                told = len(known)
                them = "the nodes" if wanted is None else f"{wanted} nodes"
                self._tell(f"waiting for {them}, {told} there (up to {self._start_timeout:g} s)")
            if wanted is not None and len(known) >= wanted:
                self._nodes = self._settled(in_order(known.values()))
            elif time.monotonic() > deadline:
                raise EngineError(still_missing(known.values(), self._start_timeout))
            else:
                time.sleep(_LOOK_AGAIN)
        return self._nodes

    def _take_in(self) -> None:
        """Put nodes that have come since into the places of those that are gone.

        What a node answered before is its own books' to know; a silo that lost its optimizer's slots goes on
        with new ones (:mod:`fedpriv.node.silo`).
        """
        there = set(self._grid.get_node_ids())
        if there.issuperset(node.id for node in self._nodes):
            return
        new = sorted(there - self._newcomers.keys() - {node.id for node in self._nodes})
        found, failed = self._ask_places(new, _PATIENCE)
        # Who says where it stands, or that it is not ready, is not asked again; the silent may be starting,
        # but one that hangs must not hold up every release.
        self._silent.update(set(new) - failed.keys() - {node.id for node in found})
        hung = (node for node, times in self._silent.items() if times >= _TRIES)
        self._newcomers |= dict.fromkeys([*failed, *hung]) | {node.id: node for node in found}
        if failed and self._silos:
            self._tell(f"of those that have come since, {not_ready(failed, (), None)}")
        nodes = tuple(successor(node, self._newcomers, there) for node in self._nodes)
        if self._silos:
            for node in set(nodes) - set(self._nodes):
                self._tell(f"partition {node.partition} has a new node")
        self._nodes = nodes

    def _settled(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if self._expected not in (None, len(nodes)):
            raise EngineError(
                f"the federation has {len(nodes)} nodes and the run is of {self._expected} clients that "
                "hold their own data; set clients and num-partitions to the same number"
            )
        return nodes

    def _ask_places(self, ids: Sequence[int], timeout: float) -> tuple[list[Node], dict[int, str]]:
        """The nodes that say where they stand, and why others are not ready, by id."""
        there, failed = list[Node](), dict[int, str]()
        for node, reply in self._exchange_places(ids, timeout).items():
            if _by_app(reply):
                failed[node] = f"failed with {_error_name(reply)}"
            elif reply.has_content():
                try:
                    there.append(read_node(node, reply))
                except MessageError as error:
                    failed[node] = str(error)
        return there, failed

    def _exchange_places(self, ids: Sequence[int], timeout: float) -> dict[int, Message]:
        asked = {Node(node, -1, 0): RecordDict() for node in ids}
        return self._exchange(asked, MessageType.QUERY, "nodes", timeout)

    def _exchange(
        self, contents: dict[Node, RecordDict], kind: str, group: str, timeout: float
    ) -> dict[int, Message]:
        """Send one message a node; the replies that came, by node id."""
        if not contents:
            return {}
        messages = self._messages(contents, kind, group, timeout)
        replies = self._grid.send_and_receive(messages, timeout=timeout)
        # Flower's server says that a node is gone, and such a reply's source is the server and not the node.
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        return {asked.get(r.metadata.reply_to_message_id, r.metadata.src_node_id): r for r in replies}

    def _messages(
        self, contents: dict[Node, RecordDict], kind: str, group: str, timeout: float
    ) -> list[Message]:
        return [self._message(content, kind, node.id, group, timeout) for node, content in contents.items()]

    def _message(self, content: RecordDict, kind: str, node: int, group: str, ttl: float) -> Message:
        # Flower's constructor needs the identity of a Flower task; our own grids have none.
        if isinstance(self._grid, HostedGrid):
            return self._grid.create_message(content, kind, node, group, ttl)
        return Message(content, node, kind, ttl=ttl, group_id=group)

    def close(self) -> None:
        """End the nodes of a grid that hosts its own; Flower ends its own grids itself."""
        if isinstance(self._grid, HostedGrid):
            self._grid.close()


def _said(reasons: Mapping[int, str]) -> list[str]:
    return [f"partition {partition}: {why}" for partition, why in reasons.items()]


def _joined(failures: Iterable[str]) -> str:
    return f"{'; '.join(sorted(set(failures)))} (details are in the nodes' own logs)"


def _usable(reply: Message | None, query: Query, parties: int) -> PartialSum:
    """A node's Reply. Raises MessageError where there is none, or it claims more than was asked."""
    answer = read_reply(_content(reply), query)
    if answer.parties > parties:
        raise MessageError("a reply claims more parties than were asked")
    return answer


def _content(reply: Message | None) -> RecordDict:
    """What a node replied. Raises SilentError where it did not, and MessageError where it failed."""
    if reply is None or (reply.has_error() and reply.error.code in _UNANSWERED):
        raise SilentError("no reply in time")
    if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
        raise MessageError("gone offline")
    if reply.has_error():
        raise MessageError(f"failed with {_error_name(reply)}")
    return reply.content


def _by_app(reply: Message) -> bool:
    """Whether the reply is an error of our app, which gives the exception's type for a reason."""
    return reply.has_error() and (reply.error.reason or "").isidentifier()


def _error_name(reply: Message) -> str:
    """The exception's type where the reply names one; other texts could quote data and are dropped."""
    return reply.error.reason if _by_app(reply) else f"Flower's error code {reply.error.code}"
