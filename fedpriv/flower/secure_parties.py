"""Silos on the nodes of a Flower Grid that aggregate securely: one message per node and exchange.

The server passes the parties' messages on and learns their sum alone. A node that fails, or does not reply
in time, takes no part in the exchange: its parties are missing. A party that refuses what it is shown ends
the run, because somebody tampers.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedpriv.config.schema import Config
from fedpriv.federated.engine import SumRequest
from fedpriv.federated.secure_engine import SecureEngine
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.secure_serialization import (
    EXCHANGE,
    IDENTITIES,
    identities_content,
    read_identity_keys,
    read_replies,
    shown_content,
)
from fedpriv.flower.serialization import request_content, shared_records
from fedpriv.flower.topology import EngineError, Node, host
from fedpriv.secure_aggregation.aggregation import Ask, refusal
from fedpriv.secure_aggregation.errors import TooFewError
from fedpriv.secure_aggregation.keys import Session
from fedpriv.secure_aggregation.messages import Exchange, longest
from fedpriv.secure_aggregation.threshold import smallest_threshold


def secured_over(config: Config, engine: GridEngine) -> SecureEngine:
    """The engine of a run whose silos on the nodes of ``engine`` aggregate securely."""
    threshold = config.min_replies or smallest_threshold(config.clients)
    return SecureEngine(GridParties(engine, config.clients), threshold)


class GridParties:
    """The :class:`~fedpriv.federated.secure_engine.Parties` on the nodes of a grid.

    Args:
        engine: the engine over the grid.
        parties: the number of silos.

    Attributes:
        run: the run's id, and in a simulation a number of its own behind it.
    """

    def __init__(self, engine: GridEngine, parties: int) -> None:
        self._engine, self._parties = engine, parties
        self._keys: tuple[bytes, ...] = ()
        self.run = f"{engine.run_id}/{secrets.token_hex(8)}" if engine.hosted else str(engine.run_id)

    def cohort(self) -> tuple[bytes, ...]:
        """The identity keys of all parties. Raises EngineError if a node does not give its parties' keys."""
        if not self._keys:
            hosts = self._hosts(range(1, self._parties + 1))
            contents = {node: identities_content(parties) for node, parties in hosts.items()}
            readers = {node: partial(read_identity_keys, parties=hosts[node]) for node in hosts}
            found, failed = self._engine.ask(contents, IDENTITIES, "identities", readers)
            if failed:
                reasons = self._engine.reasons(failed)
                texts = "; ".join(f"partition {place}: {why}" for place, why in reasons.items())
                raise EngineError(
                    f"secure aggregation needs the identity key of every party: {texts}; each node's own log "
                    "says why, and nothing was charged"
                )
            keys = {party: key for table in found.values() for party, key in table.items()}
            self._keys = tuple(keys[party] for party in sorted(keys))
        return self._keys

    def ask(self, request: SumRequest, session: Session) -> Ask:
        """How the parties are shown their part of an exchange of this release.

        Raises EngineError if nobody answers the first exchange.
        """
        shared = shared_records(request)
        shards = {shard.home: shard for shard in request.shards}

        def ask(exchange: Exchange, shown: Mapping[int, Any]) -> Mapping[int, bytes]:
            hosts = self._hosts(shown)
            contents, readers = {}, {}
            size = longest(exchange, session)
            for node, parties in hosts.items():
                records = None
                if exchange is Exchange.MASKED:
                    records = request_content(shared, [shards[party - 1] for party in parties])
                own = {party: shown[party] for party in parties}
                contents[node] = shown_content(exchange, session, own, records)
                readers[node] = partial(read_replies, parties=parties, longest=size)
            group = f"{session.release}/{exchange.name.lower()}"
            found, _ = self._engine.ask(contents, EXCHANGE, group, readers)
            if exchange is Exchange.KEYS and not found:
                raise EngineError(f"no node answered release {session.release + 1}")
            for replies in found.values():
                for party, why in replies.refused.items():
                    raise refusal(party, exchange, why)
            for replies in found.values():
                for why in replies.too_few.values():
                    raise TooFewError(why)
            return {party: text for replies in found.values() for party, text in replies.messages.items()}

        return ask

    def _hosts(self, parties: Any) -> dict[Node, list[int]]:
        """{node: the parties that it hosts}, of these parties."""
        nodes, hosts = self._engine.assemble(), dict[Node, list[int]]()
        for party in sorted(parties):
            hosts.setdefault(host(party - 1, nodes), []).append(party)
        return hosts

    def close(self) -> None:
        """Ends the nodes of a hosted grid."""
        self._engine.close()
