"""The parties of secure aggregation that a node hosts: a silo of its own, or several simulated ones.

A node keeps its parties' keys in its own memory between the exchanges of a release, so one process has to
answer them all. A party holds the server to the run's plan: the cohort, the threshold, and one release at a
time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv.federated.engine import SumRequest
from fedpriv.federated.secure_engine import Silos, digest, message
from fedpriv.secure_aggregation.aggregation import Participant
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import KEY, Identity, Session
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Member
from fedpriv.secure_aggregation.threshold import MAX_PARTIES


@dataclass(frozen=True)
class Replies:
    """What a node's parties reply to one exchange.

    Attributes:
        messages: {party: its signed message}.
        refused: {party: why it refuses what the server shows}.
        too_few: {party: why it stops, as fewer parties than the threshold are left}.
        absent: the parties that take no part in the release, since the node joined or was restarted later.
    """

    messages: dict[int, bytes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    too_few: dict[int, str] = field(default_factory=dict)
    absent: list[int] = field(default_factory=list)


class NodeParties:
    """A node's parties in one run.

    Args:
        silos: answers for each silo, and charges the node's ledger first where there is one.
        run: the run's id; a session of another run is refused. Behind a "/" it may have a number of its own,
            by which simulations of one process differ.
        threshold: the least threshold, that of the run's plan.
        identity: the owner's key; None: each party makes one, for a simulation.
        pinned: the identity keys of all parties, which the owner has pinned; None: those that the first
            release names, for a simulation.
    """

    def __init__(
        self,
        silos: Silos,
        run: str,
        threshold: int,
        identity: Identity | None = None,
        pinned: tuple[bytes, ...] | None = None,
    ) -> None:
        self._silos, self._run, self._threshold = silos, run, threshold
        self._identity, self._pinned = identity, pinned
        self._identities = dict[int, Identity]()
        self._participants = dict[tuple[str, int], Participant]()
        self._joined = dict[tuple[str, int], int]()  # the last release that each party was asked to join

    def keys(self, parties: Sequence[int]) -> dict[int, bytes]:
        """The public identity keys of these parties, {party: 32 bytes}."""
        return {party: self._identity_of(party).public for party in parties}

    def answer(
        self, exchange: Exchange, session: Session, shown: Mapping[int, Any], request: SumRequest | None
    ) -> Replies:
        """The parties' replies to what the server shows each of them.

        Args:
            exchange: which exchange it is.
            session: the release.
            shown: {party: what it is shown}; for the exchange of keys the value is not used.
            request: the release's request with these silos' shards, in the exchange of masked messages.
        """
        replies = Replies()
        asked = digest(request) if request is not None else b""
        for party, own in sorted(shown.items()):
            name = (session.run, party)
            if exchange is not Exchange.KEYS and self._joined.get(name) != session.release:
                replies.absent.append(party)
                continue
            try:
                if exchange is Exchange.MASKED and asked != session.request:
                    raise ProtocolError(
                        "the server asks another question than the one that all parties agreed on"
                    )
                replies.messages[party] = self._reply(exchange, session, party, own, request)
            except TooFewError as error:
                replies.too_few[party] = str(error)
            except ProtocolError as error:
                replies.refused[party] = str(error)
        return replies

    def _reply(
        self, exchange: Exchange, session: Session, party: int, own: Any, request: SumRequest | None
    ) -> bytes:
        if exchange is Exchange.MASKED and (request is None or request.release != session.release):
            raise ProtocolError("the server asks for the message of another release than the session's")

        def masked() -> Any:
            assert request is not None
            return message(self._silos, request, party)

        shown = session if exchange is Exchange.KEYS else own
        if exchange is Exchange.KEYS:
            self._joined[session.run, party] = session.release
        return self._participant(session, party).answer(exchange, shown, masked)

    def _participant(self, session: Session, party: int) -> Participant:
        """Raises ProtocolError for a session of another run, or one in which the party is another."""
        if session.run.partition("/")[0] != self._run or (self._pinned and session.run != self._run):
            raise ProtocolError("the release is of another run than this node's")
        identity = self._identity_of(party)
        if party > len(session.cohort) or session.cohort[party - 1] != identity.public:
            raise ProtocolError("the release's cohort has another identity key in this party's place")
        name = (session.run, party)
        if name not in self._participants:
            cohort = self._pinned or session.cohort
            self._participants[name] = Participant(Member(identity, cohort, self._threshold))
        return self._participants[name]

    def _identity_of(self, party: int) -> Identity:
        if self._identity is not None:
            return self._identity
        return self._identities.setdefault(party, Identity.fresh())


def pinned(node: Mapping[str, Any], threshold: int, nodes: int) -> tuple[int, Identity, tuple[bytes, ...]]:
    """(the least threshold, the node's identity, the pinned keys of all nodes) by the owner's settings.

    Args:
        node: the node's configuration: ``identity-key``, ``peer-keys``, ``partition-id`` and ``min-parties``.
        threshold: that of the run's plan.
        nodes: the number of nodes in the run.

    Raises ArgumentError if a file is missing or wrong, or does not fit the node's place.
    """
    for key in ("identity-key", "peer-keys"):
        if not node.get(key):
            raise validation.ArgumentError(
                f"the run aggregates securely, and this node has no {key}; `fedpriv node identity` makes one"
            )
    identity = read_identity(Path(str(node["identity-key"])))
    peers = read_peers(Path(str(node["peer-keys"])))
    if len(peers) != nodes:
        raise validation.fail(
            "peer-keys", str(node["peer-keys"]), f"have a line for each of the {nodes} nodes"
        )
    place = int(node["partition-id"])
    if not 0 <= place < nodes or peers[place] != identity.public:
        raise validation.fail(
            "peer-keys", str(node["peer-keys"]), f"have this node's own key in line {place + 1}"
        )
    least = validation.integer("min-parties", node.get("min-parties", 0))
    if threshold < least:
        raise validation.fail("min-replies of the run", threshold, f"be at least min-parties, {least}")
    return max(threshold, least), identity, peers


def make_identity(path: Path) -> str:
    """Writes a new identity key to a new file, with mode 0600; its public key in hexadecimal digits.

    Raises ArgumentError if the file exists or cannot be written.
    """
    identity = Identity.fresh()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        hint = str(error.strerror)
        raise validation.fail("FILE", str(path), "be a new file in a folder to write to", hint) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(identity.secret.private_bytes_raw().hex() + "\n")
    return identity.public.hex()


def read_identity(path: Path) -> Identity:
    """The identity in a file of 64 hexadecimal digits. Raises ArgumentError for another file."""
    return Identity.from_bytes(_keys("identity-key", path, most=1)[0])


def read_peers(path: Path) -> tuple[bytes, ...]:
    """The public keys in a file with 64 hexadecimal digits a line. Raises ArgumentError for another file."""
    return tuple(_keys("peer-keys", path))


def _keys(name: str, path: Path, most: int = MAX_PARTIES) -> list[bytes]:
    lines = "one line" if most == 1 else f"1 to {most} lines"
    allowed = f"be a readable file with {lines} of {2 * KEY} hexadecimal digits"
    try:
        with path.open("rb") as file:
            words = file.read((2 * KEY + 2) * most + 1).decode("ascii").split()
        keys = [bytes.fromhex(word) for word in words]
    except (OSError, ValueError):  # the text of an error could quote a key
        keys = []
    if not 1 <= len(keys) <= most or any(len(key) != KEY for key in keys):
        raise validation.fail(name, str(path), allowed)
    return keys
