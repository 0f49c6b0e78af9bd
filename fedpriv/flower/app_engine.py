"""The engine over the clients of any Flower app: one message a client and point, one bounded sum.

Each node is a client, the privacy unit. A client that is sampled is sent the model and trains as its app has
it. Its contribution is the change of the trained arrays, theta - theta_K, which is clipped here, alone, and
added to the sum when its reply arrives; no reply is kept. A query of two points (DP-SRM) sends two messages
to the same clients, and a client contributes when both replies are there.

A client that is offline, fails, is late, or returns what does not fit contributes nothing. Whether that
happened is private under add-or-remove, so that nothing is said of it. There are two exceptions, for an app
that does not work at all. While no reply could be used, the run ends and says so if one had another form than
it must have, or if all clients that were asked failed in two releases. Then no data entered any release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import Tensor

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows, zeros
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.flower.exchange import FailedError, UnansweredError, read, replies_to
from fedpriv.flower.intervals import APP_REPLIES, Rhythm
from fedpriv.flower.serialization import MessageError
from fedpriv.mechanism.grid import on_grid
from fedpriv.mechanism.query import Query

VIRTUAL = "fedpriv-arrays"  # a record in the replies of virtual clients
_MAX_STRIKES = 2  # releases in which all clients fail

# (round from 1, arrays, nodes) -> one message for each node
Messages = Callable[[int, ArrayRecord, Sequence[int]], Iterable[Message]]


class AppEngine:
    """An :class:`~fedpriv.federated.engine.Engine` over a Flower Grid whose nodes run any ClientApp.

    Args:
        grid: the run's grid.
        arrays: the app's arrays.
        messages: makes the messages of a round.
        nodes: the node that is each unit, by the unit's number; asked for anew at each release. Units without
            a node contribute nothing.
        timeout: the seconds to wait for the replies of a release.
        noisy: whether noise is added; only then are contributions rounded to the grid of exact sums.
        metrics: called with the metrics of each reply, which are private; None drops them.
    """

    def __init__(
        self,
        grid: Grid,
        arrays: AppArrays,
        messages: Messages,
        nodes: Callable[[], Sequence[int]],
        timeout: float,
        noisy: bool = True,
        metrics: Callable[[MetricRecord], None] | None = None,
    ) -> None:
        self._grid, self._arrays, self._messages, self._nodes = grid, arrays, messages, nodes
        self._timeout, self._noisy, self._metrics = timeout, noisy, metrics
        self._fits = False  # whether any reply could be used
        self._strikes = 0  # releases in which all clients failed

    def gather(self, request: SumRequest) -> PartialSum:
        """The bounded sums over the cohort's clients that answered in time.

        Raises ArgumentError if no reply so far could be used because of its form, or all clients failed.
        """
        query, nodes = request.query, self._nodes()
        units = [int(unit) for shard in request.shards for unit in shard.ids]
        asked = [nodes[unit] for unit in units if unit < len(nodes)]
        totals = tuple(total.double() for total in zeros(query.blocks, query.points[0]))
        batches = [
            list(self._messages(request.release + 1, self._arrays.record(point), asked))
            for point in query.points
        ]
        # The number of the point, by the message.
        places = {id(message): number for number, batch in enumerate(batches) for message in batch}
        # A client's messages follow each other, so that few clients have one answer out.
        sent = [message for of_client in zip(*batches, strict=True) for message in of_client]
        rows: dict[int, dict[int, Tensor]] = {}
        trouble: MessageError | None = None
        failed = list[str]()
        for message, reply in replies_to(self._grid, sent, self._timeout, Rhythm(*APP_REPLIES)):
            node, number = message.metadata.dst_node_id, places[id(message)]
            try:
                _require_own_app(reply)
                row = read(reply, partial(self._row, query.points[number]))
            except FailedError as error:
                failed.append(str(error))
                continue
            except UnansweredError:
                continue
            except MessageError as error:
                trouble = error
                continue
            rows.setdefault(node, {})[number] = row
            if len(rows[node]) == len(query.points):
                self._fits = True
                own = rows.pop(node)
                self._add(totals, query, [own[number] for number in range(len(query.points))])
        if trouble is not None and not self._fits:
            raise ArgumentError(f"The app's clients do not fit this strategy: {trouble}.")
        self._require_some(sent, failed)
        return PartialSum(totals, sum(shard.parties for shard in request.shards))

    def _require_some(self, sent: Sequence[Message], failed: Sequence[str]) -> None:
        """Raises ArgumentError if all clients failed, once more, and none has ever answered well."""
        if self._fits or not sent or len(failed) < len(sent):
            return
        self._strikes += 1
        if self._strikes >= _MAX_STRIKES:
            raise ArgumentError(
                f"Every client that was asked so far {failed[0]}, so that nothing could be learned; the "
                "reason is in the clients' own logs."
            )

    def _row(self, point: Tensor, content: RecordDict) -> Tensor:
        """A client's change (d,). Raises MessageError if its reply does not fit."""
        if VIRTUAL in content:
            raise MessageError("they are virtual clients; give the strategy virtual_clients=True")
        if len(content.array_records) != 1:
            count = len(content.array_records)
            raise MessageError(f"a reply has {count} ArrayRecords; a client must return exactly one")
        [record] = content.array_records.values()
        row = self._arrays.change(point, record)
        if self._metrics is not None:
            for metrics in content.metric_records.values():
                self._metrics(metrics)
        return row

    def _add(self, totals: Sequence[Tensor], query: Query, rows: Sequence[Tensor]) -> None:
        """Adds one client's bounded contribution. It is computed alone, so its bits depend on it alone."""
        device, dtype = query.points[0].device, torch.float64
        own = [row.to(device)[None] for row in rows]
        sums = sum_rows(own, query.blocks, self._arrays.layout.layer_sizes, dtype)
        for total, part, block in zip(totals, sums, query.blocks, strict=True):
            total += on_grid(part, block, 0.0) if self._noisy else part

    def close(self) -> None:
        """Nothing to release: the grid is the caller's."""


def _require_own_app(reply: Message) -> None:
    """Raises MessageError for the refusal of an app whose clients add noise, which says nothing of data."""
    if reply.has_error() and reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION:
        raise MessageError(
            "a mod of theirs refuses the message; with private_mod the strategy needs placement='local' or "
            "'distributed'"
        )
