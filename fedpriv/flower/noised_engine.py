"""The engine over the clients of a Flower app with private_mod, who clip and noise what they return.

Each client is sent the model and the query in one message, and answers with one bounded, noisy sum for each
block (:mod:`fedpriv.flower.noise_mod`). The server adds these sums up as they arrive, and afterwards the
shares of the noise that are missing, as in fedpriv's own apps (:mod:`fedpriv.mechanism.release`).

A client that is offline, fails, refuses, or is late contributes nothing, and so does a reply whose sums do
not fit; nothing is said of it, unless no reply so far could be used. A reply that does not say that it has
the client's noise ends the run at once: the client's owner relies on that noise, and its app lacks the mod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import zeros
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.flower.exchange import UnansweredError, read, replies_to
from fedpriv.flower.intervals import APP_REPLIES, Rhythm
from fedpriv.flower.noise_messages import NotNoisedError, for_client, noise_records, read_noisy_reply
from fedpriv.flower.serialization import MessageError

# (round from 1, arrays, a node) -> what the strategy sends to every client
Content = Callable[[int, ArrayRecord, int], RecordDict]


class NoisedEngine:
    """An :class:`~fedpriv.federated.engine.Engine` over a Flower Grid whose nodes' apps have private_mod.

    Args:
        grid: the run's grid.
        arrays: the app's arrays.
        content: makes the content of a round's messages.
        nodes: the node that is each unit, by the unit's number; asked for anew at each release.
        timeout: the seconds to wait for the replies of a release.
        config: the run's public settings, which the clients are sent.
        frozen: the names and patterns of arrays that are not trained.
    """

    def __init__(
        self,
        grid: Grid,
        arrays: AppArrays,
        content: Content,
        nodes: Callable[[], Sequence[int]],
        timeout: float,
        config: Config,
        frozen: Sequence[str],
    ) -> None:
        self._grid, self._arrays, self._content, self._nodes = grid, arrays, content, nodes
        self._timeout, self._config, self._frozen = timeout, config, frozen
        self._fits = False  # whether any reply could be used

    def gather(self, request: SumRequest) -> PartialSum:
        """The noisy sums over the clients that answered in time, and their number.

        Raises ArgumentError if a reply has no noise of its client's, or if no reply so far could be used
        because of its form.
        """
        totals = tuple(total.double() for total in zeros(request.query.blocks, request.query.points[0]))
        parties, trouble = 0, None
        asked = self._asked(request)
        shards = {message.metadata.dst_node_id: shard for message, shard in asked}
        sent = [message for message, _ in asked]
        for message, reply in replies_to(self._grid, sent, self._timeout, Rhythm(*APP_REPLIES)):
            own = replace(request, shards=(shards[message.metadata.dst_node_id],))
            try:
                sums = read(reply, partial(read_noisy_reply, request=own)).to(request.query).sums
            except UnansweredError:
                continue
            except NotNoisedError as error:
                raise ArgumentError(f"The app's clients do not fit this strategy: {error}.") from None
            except MessageError as error:
                trouble = error
                continue
            self._fits, parties = True, parties + 1
            for total, part in zip(totals, sums, strict=True):
                total += part
        if trouble is not None and not self._fits:
            raise ArgumentError(f"The app's clients do not fit this strategy: {trouble}.")
        return PartialSum(totals, parties)

    def _asked(self, request: SumRequest) -> list[tuple[Message, Shard]]:
        """The messages to the clients of the cohort that are connected, each with its client's shard."""
        nodes = self._nodes()
        asked = [(nodes[s.home], s) for s in request.shards if s.home is not None and s.home < len(nodes)]
        if not asked:
            return []
        models = [self._arrays.record(point) for point in request.query.points]
        content = self._content(request.release + 1, models[0], asked[0][0])
        records = noise_records(request, self._config, self._frozen, models)
        content = RecordDict({**content, **records})
        seeded = self._config.asked_seed is not None
        return [
            (Message(for_client(content, shard, seeded), node, MessageType.TRAIN, ttl=self._timeout), shard)
            for node, shard in asked
        ]

    def close(self) -> None:
        """Nothing to release: the grid is the caller's."""
