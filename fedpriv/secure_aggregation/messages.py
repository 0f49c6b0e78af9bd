"""The signed messages of the exchanges, as bytes.

A message is: exchange (1 byte), party (2 bytes), body, signature (64 bytes). The signature covers the
session's context too, so that a message of another run, release, cohort or threshold is refused.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import numpy as np

from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.keys import KEY, Identity, Session
from fedpriv.secure_aggregation.masks import Vector

_HEAD, _SIGNATURE, _NUMBER = 3, 64, 2
CIPHERTEXT = 2 * KEY + 16  # two shares and the tag


class Exchange(IntEnum):
    """The exchanges, in their order."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    SURVIVORS = 3
    REVEAL = 4


def sealed(session: Session, identity: Identity, exchange: Exchange, party: int, body: bytes) -> bytes:
    """The signed message."""
    text = struct.pack(">BH", exchange, party) + body
    return text + identity.sign(_digest(session, text))


def opened(session: Session, exchange: Exchange, message: bytes) -> tuple[int, bytes]:
    """(party, body) of a message. Raises ProtocolError unless the party signed it for this exchange."""
    if len(message) < _HEAD + _SIGNATURE:
        raise ProtocolError(f"a message of {exchange.name.lower()} is too short")
    text, signature = message[:-_SIGNATURE], message[-_SIGNATURE:]
    kind, party = struct.unpack(">BH", text[:_HEAD])
    if kind != exchange or party not in session.parties:
        raise ProtocolError(f"a message is not of a party's {exchange.name.lower()}")
    session.verify(party, _digest(session, text), signature)
    return party, text[_HEAD:]


def opened_all(session: Session, exchange: Exchange, messages: Sequence[bytes]) -> dict[int, bytes]:
    """{party: body}. Raises ProtocolError if a message is not signed, or a party has two."""
    bodies = dict(opened(session, exchange, message) for message in messages)
    if len(bodies) != len(messages):
        raise ProtocolError(f"a party has two messages of {exchange.name.lower()}")
    return dict(sorted(bodies.items()))


def _digest(session: Session, text: bytes) -> bytes:
    return session.context + hashlib.sha256(text).digest()


def digest_of(bodies: Mapping[int, bytes]) -> bytes:
    """A hash of what several parties said, the same for everyone who was shown the same."""
    return hashlib.sha256(b"".join(number(party) + body for party, body in sorted(bodies.items()))).digest()


def number(party: int) -> bytes:
    """A party's number as bytes."""
    return struct.pack(">H", party)


def pack_numbers(parties: Iterable[int]) -> bytes:
    """Parties' numbers, ascending."""
    return b"".join(map(number, sorted(parties)))


def read_keys(party: int, body: bytes) -> tuple[bytes, bytes]:
    """(mask key, channel key) of a party."""
    if len(body) != 2 * KEY:
        raise ProtocolError(f"party {party} did not send two public keys")
    return body[:KEY], body[KEY:]


def pack_shares(keys: bytes, commitment: bytes, ciphertexts: Mapping[int, bytes]) -> bytes:
    """The digest of the keys that the party saw, its commitment to its self mask, its peers' shares."""
    return b"".join([keys, commitment, *(number(peer) + text for peer, text in sorted(ciphertexts.items()))])


def read_shares(party: int, body: bytes) -> tuple[bytes, bytes, dict[int, bytes]]:
    """(digest of the keys, commitment, {peer: ciphertext})."""
    rows = _rows(party, body[2 * KEY :], CIPHERTEXT)
    if len(body) < 2 * KEY:
        raise ProtocolError(f"party {party} sent shares of a wrong length")
    return body[:KEY], body[KEY : 2 * KEY], rows


def pack_masked(sharers: bytes, masked: Vector) -> bytes:
    """The digest of the set whose masks are in the message, and the message."""
    return sharers + masked.astype("<u8").tobytes()


def read_masked(party: int, body: bytes, length: int) -> tuple[bytes, Vector]:
    """(digest of the set, message)."""
    if len(body) != KEY + 8 * length:
        raise ProtocolError(f"party {party} sent a masked message of a wrong length")
    return body[:KEY], np.frombuffer(body, "<u8", offset=KEY)


def pack_reveal(seeds: Mapping[int, bytes], keys: Mapping[int, bytes]) -> bytes:
    """Shares of survivors' self-mask seeds and of the other parties' mask keys."""
    rows = {peer: b"\0" + share for peer, share in seeds.items()}
    rows |= {peer: b"\1" + share for peer, share in keys.items()}
    return b"".join(number(peer) + row for peer, row in sorted(rows.items()))


def read_reveal(party: int, body: bytes) -> tuple[dict[int, int], dict[int, int]]:
    """({survivor: share of its seed}, {other party: share of its mask key})."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for peer, row in _rows(party, body, 1 + KEY).items():
        if row[0] > 1:
            raise ProtocolError(f"party {party} revealed a share of an unknown kind")
        found[row[0]][peer] = int.from_bytes(row[1:], "big")
    return found


def longest(exchange: Exchange, session: Session) -> int:
    """The most bytes that a party's message of this exchange has."""
    parties = len(session.cohort)
    body = {
        Exchange.KEYS: 2 * KEY,
        Exchange.SHARES: 2 * KEY + parties * (_NUMBER + CIPHERTEXT),
        Exchange.MASKED: KEY + 8 * session.length,
        Exchange.SURVIVORS: parties * _NUMBER,
        Exchange.REVEAL: parties * (_NUMBER + 1 + KEY),
    }
    return _HEAD + body[exchange] + _SIGNATURE


def _rows(party: int, body: bytes, size: int) -> dict[int, bytes]:
    """{peer: row} of rows of ``size`` bytes."""
    step = _NUMBER + size
    starts = range(0, len(body), step)
    rows = (
        {struct.unpack_from(">H", body, start)[0]: body[start + _NUMBER : start + step] for start in starts}
        if len(body) % step == 0
        else {}
    )
    if len(rows) != len(starts):
        raise ProtocolError(f"party {party} sent rows of a wrong length, or two for one party")
    return rows
