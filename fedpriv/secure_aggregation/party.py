"""A party's side of the protocol: what it sends, and what it refuses."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpriv._internal import validation
from fedpriv.secure_aggregation import masks, messages, shamir
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import KEY, Identity, Session, agree, decrypt, encrypt, public_of
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.threshold import smallest_threshold

SEED_COMMITMENT, CHANNEL, MASK, SELF = b"commitment", b"shares", b"pair mask", b"self mask"


@dataclass
class Member:
    """A party for as long as it takes part in runs: its identity, its peers, its owner's limits.

    Attributes:
        identity: its own key.
        cohort: the pinned public identity keys of all parties, its own among them, in their public order.
        minimum: the owner's smallest threshold; 0: only that of the protocol.
        malicious: whether the server may be malicious; otherwise it is assumed to follow the protocol.
        joined: {run: the last release that it joined}. Where a party restarts, its node's ledger refuses
            releases that were answered.
    """

    identity: Identity
    cohort: tuple[bytes, ...]
    minimum: int = 0
    malicious: bool = True
    joined: dict[str, int] = field(default_factory=dict)

    def join(self, session: Session, entropy: shamir.Entropy = os.urandom) -> Party:
        """This member's part in one release.

        Raises ProtocolError if the cohort is not the pinned one, if the threshold is below the owner's or the
        protocol's, or if the release is not later than the last one that it joined.
        """
        if session.cohort != self.cohort:
            raise ProtocolError(
                "the release's cohort is not the one whose identity keys this party's owner pinned"
            )
        if self.identity.public not in self.cohort:
            raise ProtocolError("this party's own identity key is not in its cohort; pin it among the others")
        smallest = max(smallest_threshold(len(self.cohort), self.malicious), self.minimum)
        if session.threshold < smallest:
            hint = "the owner's minimum, or the protocol's against this server"
            raise ProtocolError(
                str(validation.fail("threshold", session.threshold, f"be at least {smallest}", hint))
            )
        last = self.joined.get(session.run, -1)
        if session.release <= last:
            raise ProtocolError(
                f"release {session.release} is not new: this party joined release {last} already"
            )
        self.joined[session.run] = session.release
        return Party(session, self.identity, entropy)


class Party:
    """One party in one release. Its methods are called once each and in their order.

    A method that refuses ends the release for this party: every later call is refused, too.
    """

    def __init__(self, session: Session, identity: Identity, entropy: shamir.Entropy = os.urandom) -> None:
        self._session, self._identity, self._entropy = session, identity, entropy
        self.number = session.cohort.index(identity.public) + 1
        self._next: Exchange | None = Exchange.KEYS
        self._mask_key = self._channel_key = self._seed = b""
        self._keys = dict[int, tuple[bytes, bytes]]()
        self._binding = b""
        self._held = dict[int, tuple[bytes, bytes]]()  # {party: its shares of (mask key, self-mask seed)}
        self._survivors = frozenset[int]()

    def keys(self) -> bytes:
        """Exchange 0: fresh public keys for masks and for the channels to peers."""
        self._begin(Exchange.KEYS)
        self._mask_key, self._channel_key = (_bytes(shamir.element(self._entropy)) for _ in range(2))
        body = public_of(self._mask_key) + public_of(self._channel_key)
        self._keys[self.number] = messages.read_keys(self.number, body)
        return self._sealed(Exchange.KEYS, body)

    def shares(self, announced: Sequence[bytes]) -> bytes:
        """Exchange 1: shares of the own mask key and self-mask seed, encrypted to each peer.

        Args:
            announced: the parties' messages of exchange 0, this party's among them.
        """
        self._begin(Exchange.SHARES)
        bodies = messages.opened_all(self._session, Exchange.KEYS, announced)
        self._require(bodies, "announced keys")
        keys = {party: messages.read_keys(party, body) for party, body in bodies.items()}
        if keys[self.number] != self._keys[self.number]:
            raise ProtocolError("the keys that the server shows for this party are not those that it sent")
        if len({key for pair in keys.values() for key in pair}) != 2 * len(keys):
            raise ProtocolError("two parties announced the same key, or one announced a key twice")
        self._keys = keys
        said = messages.digest_of(bodies)
        self._binding = self._session.context + said
        secret = shamir.element(self._entropy)
        self._seed = _bytes(secret)
        split = (
            shamir.split(value, self._session.threshold, len(self._session.cohort), self._entropy)
            for value in (int.from_bytes(self._mask_key, "big"), secret)
        )
        pairs = dict(
            zip(self._session.parties, zip(*(map(_bytes, one) for one in split), strict=True), strict=True)
        )
        self._held[self.number] = pairs[self.number]
        texts = {
            peer: encrypt(self._channel(peer, self.number, peer), b"".join(pairs[peer]))
            for peer in keys
            if peer != self.number
        }
        commitment = commitment_of(self._binding, self.number, self._seed)
        return self._sealed(Exchange.SHARES, messages.pack_shares(said, commitment, texts))

    def masked(self, received: Mapping[int, bytes], values: Vector) -> bytes:
        """Exchange 2: the message plus the self mask and a mask with each peer.

        Args:
            received: {peer: its ciphertext for this party}, of the peers that sent shares.
            values: the message, integers modulo 2^64, of the session's length.
        """
        self._begin(Exchange.MASKED)
        sharers = {self.number, *received}
        if not sharers <= self._keys.keys() or self.number in received:
            raise ProtocolError("the server passed on shares of parties that announced no keys")
        self._require(sharers, "shared their keys")
        if values.dtype != np.uint64 or values.shape != (self._session.length,):
            raise validation.fail(
                "values", f"{values.dtype} {values.shape}", f"be {self._session.length} uint64"
            )
        for peer, text in received.items():
            plain = decrypt(self._channel(peer, peer, self.number), text, peer)
            self._held[peer] = plain[:KEY], plain[KEY:]
        total = values.copy()
        masks.add(total, self_mask(self._binding, self.number, self._seed))
        for peer in sorted(received):
            key = pair_mask(self._binding, self._mask_key, self._keys[peer][0], self.number, peer)
            masks.add(total, key, subtract=peer < self.number)
        said = messages.digest_of(dict.fromkeys(sharers, b""))
        return self._sealed(Exchange.MASKED, messages.pack_masked(said, total))

    def survivors(self, numbers: Sequence[int]) -> bytes:
        """Exchange 3: this party's signature of the set of parties whose masked messages arrived."""
        self._begin(Exchange.SURVIVORS)
        if len(set(numbers)) != len(numbers) or not self._held.keys() >= set(numbers):
            raise ProtocolError("the survivors that the server names did not all share their keys")
        self._survivors = frozenset(numbers)
        self._require(self._survivors, "sent a masked message")
        return self._sealed(Exchange.SURVIVORS, messages.pack_numbers(numbers))

    def reveal(self, signed: Sequence[bytes]) -> bytes:
        """The end of exchange 3: for each peer either the share of its seed or that of its mask key.

        Args:
            signed: the survivors' signatures of the set of survivors.
        """
        self._begin(Exchange.REVEAL)
        bodies = messages.opened_all(self._session, Exchange.SURVIVORS, signed)
        agreed = messages.pack_numbers(self._survivors)
        if any(body != agreed for body in bodies.values()):
            raise ProtocolError("the server showed another set of survivors to another party")
        if not bodies.keys() <= self._survivors:
            raise ProtocolError("a party that is not a survivor signed the set of survivors")
        self._require(bodies, "signed the set of survivors")
        seeds = {peer: held[1] for peer, held in self._held.items() if peer in self._survivors}
        keys = {peer: held[0] for peer, held in self._held.items() if peer not in self._survivors}
        self._next = None
        self._held.clear()
        return self._sealed(Exchange.REVEAL, messages.pack_reveal(seeds, keys))

    def _begin(self, exchange: Exchange) -> None:
        """Raises ProtocolError unless this exchange is the next one. A refusal ends the release here."""
        expected, self._next = self._next, None
        if exchange is not expected:
            raise ProtocolError(
                f"{exchange.name.lower()} is out of order: a party answers each exchange once"
            )
        self._following = Exchange(exchange + 1) if exchange < Exchange.REVEAL else None

    def _sealed(self, exchange: Exchange, body: bytes) -> bytes:
        self._next = self._following
        return messages.sealed(self._session, self._identity, exchange, self.number, body)

    def _require(self, parties: Mapping[int, bytes] | set[int] | frozenset[int], what: str) -> None:
        if len(parties) < self._session.threshold:
            raise TooFewError(f"{len(parties)} parties {what}; the threshold is {self._session.threshold}")
        if self.number not in parties:
            raise ProtocolError(f"the server leaves this party out of those that {what}")

    def _channel(self, peer: int, sender: int, receiver: int) -> bytes:
        purpose = (self._binding, CHANNEL, messages.number(sender), messages.number(receiver))
        return agree(self._channel_key, self._keys[peer][1], *purpose)


def _bytes(secret: int) -> bytes:
    return secret.to_bytes(KEY, "big")


def commitment_of(binding: bytes, party: int, seed: bytes) -> bytes:
    """The commitment to a self-mask seed, by which the server checks the seed that it reconstructs."""
    return hashlib.sha256(b"".join([binding, SEED_COMMITMENT, messages.number(party), seed])).digest()


def self_mask(binding: bytes, party: int, seed: bytes) -> bytes:
    """The key of a party's self mask."""
    return hashlib.sha256(b"".join([binding, SELF, messages.number(party), seed])).digest()


def pair_mask(binding: bytes, secret: bytes, public: bytes, one: int, other: int) -> bytes:
    """The key of the mask of two parties, which the smaller number adds and the larger one subtracts."""
    return agree(secret, public, binding, MASK, messages.pack_numbers((one, other)))
