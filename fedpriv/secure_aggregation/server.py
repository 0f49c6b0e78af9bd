"""The server's side of the protocol: it passes messages on, and unmasks the sum.

A message that a party did not sign, or that has a wrong form, is dropped, as if the party had not replied.
With fewer parties than the threshold, every method raises TooFewError: nothing is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from fedpriv.secure_aggregation import masks, messages, shamir
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import KEY, Session, public_of
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import commitment_of, pair_mask, self_mask

Read = TypeVar("Read")


class Server:
    """One release. The methods are called in the order of the exchanges, once all replies are there.

    Attributes:
        refused: {party: why its message was dropped}.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.refused = dict[int, str]()
        self._keys = dict[int, tuple[bytes, bytes]]()
        self._binding = b""
        self._commitments = dict[int, bytes]()
        self._survivors = frozenset[int]()
        self._total: Vector = np.zeros(session.length, np.uint64)

    def announced(self, replies: Mapping[int, bytes]) -> list[bytes]:
        """After exchange 0: the messages that every party is shown."""
        bodies = self._bodies(Exchange.KEYS, replies, self._session.parties)
        self._keys = self._read(bodies, messages.read_keys, "announced keys")
        self._binding = self._session.context + messages.digest_of({p: bodies[p] for p in self._keys})
        return [replies[party] for party in self._keys]

    def routed(self, replies: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """After exchange 1: {party: {peer: the peer's ciphertext for the party}}."""
        said = self._binding[len(self._session.context) :]

        def read(party: int, body: bytes) -> dict[int, bytes]:
            seen, self._commitments[party], texts = messages.read_shares(party, body)
            if seen != said or texts.keys() != self._keys.keys() - {party}:
                raise ProtocolError(
                    f"party {party} shared its keys with other parties than the announced ones"
                )
            return texts

        shared = self._read(self._bodies(Exchange.SHARES, replies, self._keys), read, "shared their keys")
        self._commitments = {party: self._commitments[party] for party in shared}
        return {to: {peer: texts[to] for peer, texts in shared.items() if peer != to} for to in shared}

    def survivors(self, replies: Mapping[int, bytes]) -> list[int]:
        """After exchange 2: the numbers of the parties whose masked messages arrived."""
        said = messages.digest_of(dict.fromkeys(self._commitments, b""))

        def read(party: int, body: bytes) -> Vector:
            seen, vector = messages.read_masked(party, body, self._session.length)
            if seen != said:
                raise ProtocolError(f"party {party} masked its message with other parties")
            return vector

        arrived = self._read(
            self._bodies(Exchange.MASKED, replies, self._commitments), read, "sent a masked message"
        )
        self._survivors = frozenset(arrived)
        for vector in arrived.values():
            self._total += vector
        return sorted(arrived)

    def signed(self, replies: Mapping[int, bytes]) -> list[bytes]:
        """After exchange 3: the signatures of the set of survivors, for the survivors."""
        agreed = messages.pack_numbers(self._survivors)

        def read(party: int, body: bytes) -> bytes:
            if body != agreed:
                raise ProtocolError(f"party {party} signed another set of survivors")
            return replies[party]

        bodies = self._bodies(Exchange.SURVIVORS, replies, self._survivors)
        return list(self._read(bodies, read, "signed the set of survivors").values())

    def total(self, replies: Mapping[int, bytes]) -> Vector:
        """The sum of the survivors' messages modulo 2^64, from the shares that they revealed.

        Raises ProtocolError if a share is false: the masks of a false secret would not cancel.
        """
        lost = self._commitments.keys() - self._survivors

        def read(party: int, body: bytes) -> tuple[dict[int, int], dict[int, int]]:
            seeds, keys = messages.read_reveal(party, body)
            if seeds.keys() != self._survivors or keys.keys() != lost:
                raise ProtocolError(f"party {party} did not reveal one share for each party")
            return seeds, keys

        bodies = self._bodies(Exchange.REVEAL, replies, self._survivors)
        shares = self._read(bodies, read, "revealed their shares")
        total = self._total.copy()
        for party in sorted(self._survivors):
            seed = self._secret({sender: given[0][party] for sender, given in shares.items()})
            if commitment_of(self._binding, party, seed) != self._commitments[party]:
                raise ProtocolError(f"the shares of party {party}'s self mask are false")
            masks.add(total, self_mask(self._binding, party, seed), subtract=True)
        for party in sorted(lost):
            secret = self._secret({sender: given[1][party] for sender, given in shares.items()})
            if public_of(secret) != self._keys[party][0]:
                raise ProtocolError(f"the shares of party {party}'s mask key are false")
            for peer in sorted(self._survivors):
                key = pair_mask(self._binding, secret, self._keys[peer][0], party, peer)
                masks.add(total, key, subtract=peer < party)
        return total

    def _secret(self, shares: Mapping[int, int]) -> bytes:
        return shamir.reconstruct(shares, self._session.threshold).to_bytes(KEY, "big")

    def _bodies(
        self, exchange: Exchange, replies: Mapping[int, bytes], expected: Iterable[int]
    ) -> dict[int, bytes]:
        """{party: body} of the replies that their parties signed."""
        bodies = dict[int, bytes]()
        for party in sorted(set(replies) & set(expected)):
            try:
                signer, body = messages.opened(self._session, exchange, replies[party])
                if signer != party:
                    raise ProtocolError(f"party {party} sent a message of party {signer}")
                bodies[party] = body
            except ProtocolError as error:
                self.refused[party] = str(error)
        return bodies

    def _read(
        self, bodies: Mapping[int, bytes], read: Callable[[int, bytes], Read], what: str
    ) -> dict[int, Read]:
        """What ``read`` makes of each body. Raises TooFewError if fewer than the threshold can be read."""
        found = dict[int, Read]()
        for party, body in bodies.items():
            try:
                found[party] = read(party, body)
            except ProtocolError as error:
                self.refused[party] = str(error)
        if len(found) < self._session.threshold:
            raise TooFewError(f"{len(found)} parties {what}; the threshold is {self._session.threshold}")
        return found
