"""Silos on the nodes of a Flower Grid that aggregate securely: one message per node and exchange.

The server passes the parties' messages on and learns their sum alone. A node that fails, or does not reply
in time, takes no part in the exchange: its parties are missing. A party that refuses what it is shown ends
the run, because somebody tampers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import RecordDict

from fedpriv.config.schema import Config
from fedpriv.federated.engine import SumRequest
from fedpriv.federated.secure_engine import SecureEngine
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.secure_serialization import (
    EXCHANGE,
    IDENTITIES,
    identities_content,
    read_identity_keys,
    read_process,
    read_replies,
    shown_content,
)
from fedpriv.flower.serialization import request_content, shared_records
from fedpriv.flower.topology import EngineError, Node, host
from fedpriv.node.secure_parties import Replies
from fedpriv.secure_aggregation.aggregation import Ask, refusal
from fedpriv.secure_aggregation.errors import TooFewError
from fedpriv.secure_aggregation.keys import Session
from fedpriv.secure_aggregation.messages import Exchange, longest
from fedpriv.secure_aggregation.threshold import smallest_threshold

_PROCESSES = (
    "secure aggregation needs nodes that answer all messages in one process, which keeps their keys; "
    "Flower's SuperNode starts a process for each message: start `fedpriv node run` in its place"
)


def secured_over(config: Config, engine: GridEngine) -> SecureEngine:
    """The engine of a run whose silos on the nodes of ``engine`` aggregate securely.

    Raises EngineError if a node cannot take part.
    """
    parties = GridParties(engine, config.clients, config.nodes_own_data)
    parties.cohort()  # before anything is charged
    return SecureEngine(parties, config.min_replies or smallest_threshold(config.clients))


class GridParties:
    """The :class:`~fedpriv.federated.secure_engine.Parties` on the nodes of a grid.

    Args:
        engine: the engine over the grid.
        parties: the number of silos.
        owned: whether each silo is a node that owns its data, in a deployment.

    Attributes:
        run: the run's id, and in a simulation a number of its own behind it.
    """

    def __init__(self, engine: GridEngine, parties: int, owned: bool = False) -> None:
        self._engine, self._parties = engine, parties
        self._keys: tuple[bytes, ...] = ()
        self.run = str(engine.run_id) if owned else f"{engine.run_id}/{secrets.token_hex(8)}"

    def cohort(self) -> tuple[bytes, ...]:
        """The identity keys of all parties.

        Raises EngineError if a node does not give its parties' keys, or starts a process for each message.
        """
        if not self._keys:
            hosts = self._hosts(range(1, self._parties + 1))
            found, processes = self._identities(hosts)
            if self._identities(hosts)[1] != processes:
                raise EngineError(_PROCESSES)
            keys = {party: key for table in found.values() for party, key in table.items()}
            self._keys = tuple(keys[party] for party in sorted(keys))
        return self._keys

    def _identities(self, hosts: Mapping[Node, list[int]]) -> tuple[dict[Node, dict[int, bytes]], list[str]]:
        """(the identity keys by node, the names of the nodes' processes)."""
        contents = {node: identities_content(parties) for node, parties in hosts.items()}
        readers = {node: partial(_named_keys, parties=parties) for node, parties in hosts.items()}
        found, failed = self._engine.ask(contents, IDENTITIES, "identities", readers)
        if failed:
            reasons = self._engine.reasons(failed)
            texts = "; ".join(f"partition {place}: {why}" for place, why in reasons.items())
            raise EngineError(
                f"secure aggregation needs the identity key of every party: {texts}; each node's own log "
                "says why, and nothing was charged"
            )
        return {node: keys for node, (keys, _) in found.items()}, [name for _, name in found.values()]

    def ask(self, request: SumRequest, session: Session) -> Ask:
        """How the parties are shown their part of an exchange of this release.

        Raises EngineError if nobody answers the first exchange.
        """
        release = _Release(self._engine, request, session, self._hosts(session.parties))
        return release.ask

    def _hosts(self, parties: Iterable[int]) -> dict[Node, list[int]]:
        """{node: the parties that it hosts}, of these parties."""
        nodes, hosts = self._engine.assemble(), dict[Node, list[int]]()
        for party in sorted(parties):
            hosts.setdefault(host(party - 1, nodes), []).append(party)
        return hosts

    def close(self) -> None:
        """Ends the nodes of a hosted grid."""
        self._engine.close()


class _Release:
    """The exchanges of one release, with the nodes that hosted its parties when it began."""

    def __init__(
        self, engine: GridEngine, request: SumRequest, session: Session, hosts: Mapping[Node, list[int]]
    ) -> None:
        self._engine, self._session, self._hosts = engine, session, hosts
        self._records = shared_records(request)
        self._shards = {shard.home: shard for shard in request.shards}

    def ask(self, exchange: Exchange, shown: Mapping[int, Any]) -> Mapping[int, bytes]:
        """The replies of the parties that are shown something; see :data:`Ask`."""
        contents, readers = dict[Node, RecordDict](), dict[Node, Any]()
        for node, hosted in self._hosts.items():
            parties = [party for party in hosted if party in shown]
            if parties:
                contents[node] = self._content(exchange, {party: shown[party] for party in parties})
                size = longest(exchange, self._session)
                readers[node] = partial(read_replies, parties=parties, longest=size)
        group = f"{self._session.release}/{exchange.name.lower()}"
        found, _ = self._engine.ask(contents, EXCHANGE, group, readers)
        if exchange is Exchange.KEYS and not found:
            raise EngineError(f"no node answered release {self._session.release + 1}")
        return _messages(exchange, list(found.values()))

    def _content(self, exchange: Exchange, shown: Mapping[int, Any]) -> RecordDict:
        records = None
        if exchange is Exchange.MASKED:
            records = request_content(self._records, [self._shards[party - 1] for party in shown])
        return shown_content(exchange, self._session, shown, records)


def _messages(exchange: Exchange, replies: Sequence[Replies]) -> dict[int, bytes]:
    """{party: its message}. Raises RefusalError if a party refuses, and TooFewError if one stops."""
    for one in replies:
        for party, why in one.refused.items():
            raise refusal(party, exchange, why)
    for one in replies:
        for why in one.too_few.values():
            raise TooFewError(why)
    return {party: text for one in replies for party, text in one.messages.items()}


def _named_keys(content: RecordDict, parties: Sequence[int]) -> tuple[dict[int, bytes], str]:
    return read_identity_keys(content, parties), read_process(content)
