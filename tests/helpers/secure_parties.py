"""Parties and a server of secure aggregation in one process, with parties that leave before any exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fedpriv.secure_aggregation.keys import Identity, Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.party import Member, Party
from fedpriv.secure_aggregation.server import Server
from fedpriv.secure_aggregation.threshold import smallest_threshold

EXCHANGES = ("keys", "shares", "masked", "survivors", "reveal")


def identity(party: int) -> Identity:
    return Identity.from_bytes(hashlib.sha256(b"identity %d" % party).digest())


def stream(party: int) -> Callable[[int], bytes]:
    """Fixed randomness of a party."""
    drawn = 0

    def draw(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(b"%d %d" % (party, drawn)).digest(size)

    return draw


def messages_of(parties: int, length: int, seed: int = 0) -> dict[int, Vector]:
    """Random integers of any size, so that sums pass the modulus."""
    draws = np.random.default_rng(seed)
    return {p: draws.integers(0, 2**64, length, np.uint64) for p in range(1, parties + 1)}


def plain_sum(values: Mapping[int, Vector]) -> Vector:
    total: Vector = np.sum(list(values.values()), axis=0, dtype=np.uint64)
    return total


@dataclass
class Cohort:
    """n parties and their server; ``leave`` says who is silent from which exchange on."""

    size: int
    length: int = 5
    threshold: int = 0
    run: str = "run"
    release: int = 0
    request: bytes = bytes(32)
    leave: Mapping[str, set[int]] = field(default_factory=dict)
    alter: Mapping[str, Callable[[dict[int, bytes]], dict[int, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cohort = tuple(identity(p).public for p in range(1, self.size + 1))
        t = self.threshold or smallest_threshold(self.size)
        self.session = Session(self.run, self.release, cohort, t, self.length, self.request)
        self.members = {p: Member(identity(p), cohort) for p in self.session.parties}
        self.parties: dict[int, Party] = {
            p: member.join(self.session, stream(p)) for p, member in self.members.items()
        }
        self.server = Server(self.session)
        self.values = messages_of(self.size, self.length)
        self.sent: dict[str, dict[int, bytes]] = {}

    def asked(self, exchange: str, parties: Mapping[int, Callable[[], bytes]]) -> dict[int, bytes]:
        """The replies of those parties that have not left, as the network delivers them."""
        gone = set().union(
            *(self.leave.get(name, set()) for name in EXCHANGES[: EXCHANGES.index(exchange) + 1])
        )
        replies = {p: ask() for p, ask in parties.items() if p not in gone}
        self.sent[exchange] = replies
        return self.alter.get(exchange, dict)(replies)

    def until_masked(self) -> list[int]:
        """Exchanges 0 to 2; returns the survivors."""
        parties, values = self.parties, self.values
        announced = self.server.announced(self.asked("keys", {p: party.keys for p, party in parties.items()}))
        shares = self.asked("shares", {p: partial(parties[p].shares, announced) for p in senders(announced)})
        routed = self.server.routed(shares)
        asked = {p: partial(parties[p].masked, routed[p], values[p]) for p in routed}
        return self.server.survivors(self.asked("masked", asked))

    def total(self) -> Vector:
        """All exchanges."""
        alive = self.until_masked()
        asked = {p: partial(self.parties[p].survivors, alive) for p in alive}
        signed = self.server.signed(self.asked("survivors", asked))
        asked = {p: partial(self.parties[p].reveal, signed) for p in senders(signed)}
        return self.server.total(self.asked("reveal", asked))


def senders(sent: list[bytes]) -> list[int]:
    """The parties of messages."""
    return [int.from_bytes(message[1:3], "big") for message in sent]
