"""The engine over any Flower Grid.

It sends one message per node and release and receives one bounded sum; at the client level it sends one
message per node and round and receives the changes of the node's silos. Work is assigned in the order of the
nodes' partitions (:mod:`fedpriv.flower.topology`). Replies are added in the same order, so a run does not
depend on their arrival.

A node that fails or does not reply contributes nothing: its shards are missing from the sum, its parties are
missing from the count, and the release adds the missing noise. The number of replies is private and is used
only in the :class:`~fedpriv.federated.engine.PartialSum`. Runs whose nodes all take part in every release, as
silos do, are an exception: an absence then reveals nothing about sampling, so it is printed and reported
(:mod:`fedpriv.federated.availability`).

A run whose nodes all fail would go on with noise alone. It stops if, in two releases in a row with anybody to
ask, every node of the whole federation has failed: its latest answer is an error, unusable or missing, none
has answered well since, and at least one has answered. If clients are sampled, only some nodes are asked, and
who they are is private. Then the other nodes are asked to describe themselves, and one that does is taken to
be well. So a node that works and was not sampled keeps the run going, and whether the run goes on does not
tell whether that node was sampled. If the run stops, no data entered the releases since the nodes failed, and
their cohorts need no protection. An empty cohort asks nobody and counts for nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpriv.clipping import added
from fedpriv.federated.availability import Dropouts
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.worker import zeros
from fedpriv.flower.enrolment import Enrolment
from fedpriv.flower.exchange import SilentError, by_app, exchange, messages, read
from fedpriv.flower.grids.base import HostedGrid
from fedpriv.flower.intervals import REPLIES, Rhythm
from fedpriv.flower.membership import Membership
from fedpriv.flower.pace import Pace
from fedpriv.flower.serialization import MessageError, read_reply, request_content, shared_records
from fedpriv.flower.silo_serialization import model_record, read_changes, training_content
from fedpriv.flower.topology import EngineError, Node, assign, host, read_node
from fedpriv.flower.whole_messages import with_whole_messages
from fedpriv.node.silo import ModelDelta, TrainRequest

SILOS_TRAIN = f"{MessageType.TRAIN}.silos"  # the message type of the client level

_Read = TypeVar("_Read")

_MIN_TREE_NODES = 4  # with fewer nodes, the engine adds the replies itself
_DETAILS = " (details are in the nodes' own logs)"
_MAX_STRIKES, _MAX_NAMED = 2, 20  # releases in a row in which all nodes fail, and nodes that an error names
_ALL_FAILED = "every node failed, twice in a row"
_LONGEST = 1000.0  # times the median change; few examples mean much noise


class GridEngine:
    """An :class:`~fedpriv.federated.engine.Engine` over a Flower Grid.

    Args:
        grid: any Grid whose nodes run :mod:`fedpriv.flower.client_app`.
        reply_timeout: the seconds to wait for the replies of a release.
        start_timeout: the seconds to wait for all nodes at the start.
        strict: whether the failure of any node is an error instead of a dropout. Default: true for grids that
            host their own nodes, where a failure is a defect of this machine.
        nodes: the required number of nodes; default: the number that the nodes report.
        report: called with lines for the user: which nodes are missing at the start, and which silos do not
            answer.
        silos: whether all nodes are silos that take part in every release.
        min_nodes: the nodes with which the run begins after ``start_timeout``; None: all.
        enrolment: the server's record of which node is which partition, or None.
        looks: the least and most seconds between looks for replies.
        round_deadline: the seconds after which a release goes on without the nodes that have not answered;
            0: ten times as long as the slowest of the last complete releases took, at least 30. It is at most
            ``reply_timeout``.

    Attributes:
        absences: which silos' nodes contributed nothing to which releases. It is empty if clients are
            sampled.

    Raises:
        EngineError: from ``gather``, if nodes do not connect in time, one is not ready, or all have gone;
            also from ``train``, if no silo answers.
    """

    def __init__(
        self,
        grid: Grid,
        reply_timeout: float = 600.0,
        start_timeout: float = 300.0,
        strict: bool | None = None,
        nodes: int | None = None,
        report: Callable[[str], None] = lambda line: None,
        silos: bool = False,
        min_nodes: int | None = None,
        enrolment: Enrolment | None = None,
        looks: tuple[float, float] = REPLIES,
        round_deadline: float = 0.0,
    ) -> None:
        grid = self._grid = with_whole_messages(grid)
        self._pace = Pace(reply_timeout, round_deadline)
        self._reply_timeout = reply_timeout
        self._rhythms = defaultdict[str, Rhythm](lambda: Rhythm(*looks))  # by the messages' type
        self._strict = isinstance(grid, HostedGrid) if strict is None else strict
        self._report, self._silos = report, silos
        self._members = Membership(
            grid, self._exchange, start_timeout, nodes, report, silos, quorum=min_nodes, enrolment=enrolment
        )
        self._missing = set[str]()
        self._unwell, self._strikes = dict[Node, MessageError](), 0
        self.absences = Dropouts()

    @property
    def run_id(self) -> int:
        """The id of the run, by which the nodes know it."""
        return int(self._grid.run.run_id)

    def gather(self, request: SumRequest) -> PartialSum:
        """The sums over all shards that were answered, with the number of their parties."""
        nodes = self.assemble()
        shared = shared_records(request)
        work = {node: part for node, part in assign(request.shards, nodes).items() if part}
        contents = {node: request_content(shared, part) for node, part in work.items()}
        grid, to = self._grid, (MessageType.TRAIN, str(request.release), self._reply_timeout)
        if isinstance(grid, HostedGrid) and grid.adds and self._strict and len(work) >= _MIN_TREE_NODES:
            added = grid.send_and_add(messages(grid, _by_id(contents), *to), timeout=self._reply_timeout)
            return self._read_added(added, request)
        return self._add(request, work, self._replies(contents, *to[:2]))

    def _read_added(self, reply: Message | None, request: SumRequest) -> PartialSum:
        """The one reply that is the sum of all nodes' replies."""
        try:
            return read(reply, partial(read_reply, request=request)).to(request.query)
        except MessageError as error:
            raise self._error(f"a node: {error}{_DETAILS}") from None

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """The changes of all silos that answered, in the order of their numbers."""
        nodes, model = self.assemble(), model_record(request)
        assigned: dict[Node, list[int]] = {}
        for silo in request.silos:
            assigned.setdefault(host(silo, nodes), []).append(silo)
        contents = {node: training_content(model, request, silos) for node, silos in assigned.items()}
        readers = {node: partial(read_changes, silos=own, request=request) for node, own in assigned.items()}
        found, failed = self.ask(contents, SILOS_TRAIN, str(request.round), readers)
        if not self._strict:
            failed |= overlong(found)
            found = {node: changes for node, changes in found.items() if node not in failed}
        changes = [change for part in found.values() for change in part]
        reasons = self.reasons(failed)  # public: all silos take part in every round
        first, steps = request.round * len(request.events) + 1, len(request.events)
        self.absences.note(reasons, first, first + steps - 1)
        if not changes:
            raise self._error(f"no node answered: {_joined(_texts(reasons))}")
        self._report_missing(f"round {request.round + 1}", _texts(reasons))
        return tuple(sorted(changes, key=lambda change: change.silo))

    def ask(
        self,
        contents: Mapping[Node, RecordDict],
        kind: str,
        group: str,
        readers: Mapping[Node, Callable[[RecordDict], _Read]],
    ) -> tuple[dict[Node, _Read], dict[Node, MessageError]]:
        """({node: what its reader reads from its reply}, {node: why there is nothing to read}).

        Args:
            contents: {node: the content of its message}.
            kind: Flower's message type.
            group: a label of the messages.
            readers: {node: reads the content of its reply}.

        Raises EngineError for any failure if the engine is strict.
        """
        replies = self._replies(contents, kind, group)
        found, failed = dict[Node, _Read](), dict[Node, MessageError]()
        for node in contents:
            try:
                found[node] = read(replies.get(node.id), readers[node])
            except MessageError as error:
                failed[node] = error
        if failed and self._strict:
            self._tolerate(_texts(self.reasons(failed)))
        return found, failed

    def _report_missing(self, now: str, failures: Sequence[str]) -> None:
        """Prints which nodes' silos are missing from ``now`` on, if that has changed."""
        if set(failures) == self._missing:
            return
        self._missing = set(failures)
        text = f"without some silos: {_joined(failures)}" if failures else "with all silos again"
        self._report(f"{now} on: {text}")

    def _add(
        self, request: SumRequest, work: dict[Node, list[Shard]], replies: dict[int, Message]
    ) -> PartialSum:
        """The sum of the usable replies, in the order of the partitions."""
        query, usable, failed = request.query, list[PartialSum](), dict[Node, MessageError]()
        for node, shards in work.items():
            try:
                reader = partial(read_reply, request=replace(request, shards=tuple(shards)))
                usable.append(read(replies.get(node.id), reader))
            except MessageError as error:
                failed[node] = error
        # If each node is a client, the names of failed nodes would reveal who was sampled.
        public = self._strict or self._silos
        reasons = self.reasons(failed) if public else {}
        self._tolerate(_texts(reasons))
        if self._silos:
            self.absences.note(reasons, request.release + 1, request.release + 1)
            self._report_missing(f"release {request.release + 1}", _texts(reasons))
        if usable:
            self._unwell, self._strikes = {}, 0
        elif work:
            self._require_well_nodes(request.release, failed)
        totals = added(reply.sums for reply in usable) or zeros(query)
        return PartialSum(totals, sum(reply.parties for reply in usable)).to(query)

    def reasons(self, failed: Mapping[Node, MessageError]) -> dict[int, str]:
        """{partition: why its node's reply is missing or unusable}."""
        silent = any(isinstance(error, SilentError) for error in failed.values())
        connected = set(self._grid.get_node_ids()) if silent else set[int]()
        return {
            node.partition: "gone offline"
            if isinstance(error, SilentError) and node.id not in connected
            else str(error)
            for node, error in failed.items()
        }

    def _tolerate(self, failures: Sequence[str]) -> None:
        """Raises EngineError for any failure if the engine is strict."""
        if failures and self._strict:
            raise self._error(_joined(failures))

    def _error(self, text: str) -> EngineError:
        """The error with what is known of its cause: only a grid on the user's own machine knows it."""
        trace = self._grid.failure() if isinstance(self._grid, HostedGrid) else ""
        error = EngineError(text.removesuffix(_DETAILS) if trace else text)
        if trace:
            error.add_note(trace)
        return error

    def _require_well_nodes(self, release: int, failed: Mapping[Node, MessageError]) -> None:
        """Raises EngineError if no node of the whole federation replies any more, or if all of them fail.

        An unanswered cohort alone does not stop the run, since the stop would reveal who was sampled.

        Args:
            release: the release that no node answered well.
            failed: why the nodes that were asked did not.
        """
        nodes = self._members.nodes
        replies = self._members.query([node.id for node in nodes], self._members.start_timeout)
        if not any(reply.has_content() or by_app(reply) for reply in replies.values()):
            raise EngineError("no node answers any more, sampled or not (see the nodes' own logs)")
        unwell = {node: why for node, why in self._unwell.items() if node in nodes} | dict(failed)
        for node in nodes:
            try:
                read(replies.get(node.id), partial(read_node, node.id))
            except MessageError as error:
                unwell.setdefault(node, error)
        errors = [why for why in unwell.values() if not isinstance(why, SilentError)]
        self._unwell = unwell
        self._strikes = self._strikes + 1 if errors and len(unwell) == len(nodes) else 0
        if self._strikes == _MAX_STRIKES:
            reasons = _texts({node.partition: str(why) for node, why in unwell.items()})
            raise self._error(f"{_ALL_FAILED}, up to release {release + 1}: {_joined(reasons, _MAX_NAMED)}")

    def assemble(self) -> tuple[Node, ...]:
        """All nodes in the order of their partition ids; see :class:`Membership`."""
        try:
            return self._members.assemble()
        except EngineError as error:
            if isinstance(self._grid, HostedGrid) and (trace := self._grid.failure()):
                error.add_note(trace)
            raise

    def note_ledgers(self) -> None:
        """Keeps where the nodes' ledgers end after the run; see :meth:`Membership.note_ledgers`."""
        self._members.note_ledgers()

    def _replies(self, contents: Mapping[Node, RecordDict], kind: str, group: str) -> dict[int, Message]:
        """The replies to a release, by node id, as far as they are waited for (:class:`Pace`)."""
        by_id, pace = _by_id(contents), self._pace
        began = time.monotonic()
        replies = self._exchange(by_id, kind, group, pace.deadline, pace.awaited(by_id))
        pace.note(by_id, replies, time.monotonic() - began)
        return replies

    def _exchange(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        group: str,
        timeout: float,
        awaited: Collection[int] | None = None,
    ) -> dict[int, Message]:
        """:func:`exchange` over this grid, with looks for replies as such messages had them before."""
        return exchange(self._grid, contents, kind, group, timeout, self._rhythms[kind], awaited)

    def close(self) -> None:
        """Ends the nodes of a hosted grid. Flower ends its own grids itself."""
        if isinstance(self._grid, HostedGrid):
            self._grid.close()


def overlong(found: Mapping[Node, Sequence[ModelDelta]]) -> dict[Node, MessageError]:
    """Nodes with a change of a model that is far longer than most, and why it is not used.

    Changes have no public bound: how far a silo goes depends on its optimizer. Those of one round are held
    against each other instead. Honest ones differ, most of all by the sizes of their silos. Of two replies
    nobody knows which is wrong, so there must be three.
    """
    norms = {node: max(float(change.delta.norm()) for change in changes) for node, changes in found.items()}
    median = sorted(norms.values())[len(norms) // 2] if len(norms) > 2 else 0.0
    most = _LONGEST * median
    return {
        node: MessageError(
            f"its change is {norm / median:.3g} times as long as the median; {_LONGEST:g} are allowed"
        )
        for node, norm in norms.items()
        if norm > most > 0.0
    }


def _texts(reasons: Mapping[int, str]) -> list[str]:
    return [f"partition {partition}: {why}" for partition, why in reasons.items()]


def _joined(failures: Iterable[str], most: int | None = None) -> str:
    """The failures in one text, at most ``most`` of them by name."""
    texts = sorted(set(failures))
    more = "" if most is None or len(texts) <= most else f"; and {len(texts) - most} more"
    return f"{'; '.join(texts[:most])}{more}{_DETAILS}"


def _by_id(contents: Mapping[Node, RecordDict]) -> dict[int, RecordDict]:
    return {node.id: content for node, content in contents.items() if not node.is_absent}
