"""Keys: identities that sign, the session that every signature and every derived key is bound to.

X25519 agrees on secrets, HKDF-SHA256 derives a key for each purpose from them, Ed25519 signs, and
ChaCha20-Poly1305 encrypts. All are of the package ``cryptography``.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv._internal import validation
from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.threshold import MAX_PARTIES, MIN_PARTIES, smallest_threshold

KEY = 32  # bytes of every key
DIGEST = 32  # bytes of SHA-256
_PROTOCOL = b"fedpriv secure aggregation 2"


@dataclass(frozen=True)
class Identity:
    """A party's long-lived key, by which its peers know it."""

    secret: Ed25519PrivateKey

    @classmethod
    def fresh(cls) -> Self:
        """A new identity from OS entropy."""
        return cls.from_bytes(os.urandom(KEY))

    @classmethod
    def from_bytes(cls, secret: bytes) -> Self:
        """The identity of a stored secret of 32 bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @cached_property
    def public(self) -> bytes:
        """The public key, 32 bytes, which peers pin."""
        return self.secret.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """A signature of 64 bytes."""
        return self.secret.sign(text)


@dataclass(frozen=True)
class Session:
    """One release's public agreement; all signatures and keys are bound to each of its values.

    Attributes:
        run: the run's id.
        release: the release's number in the run.
        cohort: the parties' public identity keys; party k is the k-th, from 1.
        threshold: t; fewer survivors release nothing.
        length: the number of integers in each message.
        request: SHA-256 of what all parties are asked in this release. Noise that a peer adds to another
            question, or in other steps, would not hide this party's message.
    """

    run: str
    release: int
    cohort: tuple[bytes, ...]
    threshold: int
    length: int
    request: bytes

    def __post_init__(self) -> None:
        parties = len(self.cohort)
        if not MIN_PARTIES <= parties <= MAX_PARTIES:
            raise validation.fail("parties", parties, f"lie in [{MIN_PARTIES}, {MAX_PARTIES}]")
        if len(set(self.cohort)) != parties or any(len(key) != KEY for key in self.cohort):
            raise ProtocolError(
                "the cohort repeats an identity key, or one has not 32 bytes; each party has its own"
            )
        smallest = smallest_threshold(parties, malicious=False)
        if not smallest <= self.threshold <= parties:
            raise validation.fail("threshold", self.threshold, f"lie in [{smallest}, {parties}]")
        if len(self.request) != DIGEST:
            raise ProtocolError(f"the digest of the request has not {DIGEST} bytes")
        validation.integer("release", self.release)
        validation.integer("length", self.length, minimum=1)

    @property
    def parties(self) -> range:
        """The parties' numbers."""
        return range(1, len(self.cohort) + 1)

    @cached_property
    def context(self) -> bytes:
        """A hash of everything that the parties agree on."""
        run = self.run.encode()
        numbers = struct.pack(">IQIIQ", len(run), self.release, len(self.cohort), self.threshold, self.length)
        return hashlib.sha256(b"".join([_PROTOCOL, numbers, run, self.request, *self.cohort])).digest()

    def verify(self, party: int, text: bytes, signature: bytes) -> None:
        """Raises ProtocolError unless ``signature`` is that party's, of ``text``."""
        try:
            Ed25519PublicKey.from_public_bytes(self.cohort[party - 1]).verify(signature, text)
        except (InvalidSignature, ValueError):
            raise ProtocolError(f"party {party} did not sign its message with its identity key") from None


def public_of(secret: bytes) -> bytes:
    """The public X25519 key of a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes, *purpose: bytes) -> bytes:
    """The key of 32 bytes that two parties share for this purpose. Raises ProtocolError for a weak key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:  # a point of small order gives the same secret with every key
        raise ProtocolError("a peer's public key is not a key for agreement") from None
    return HKDF(hashes.SHA256(), KEY, salt=None, info=b"".join(purpose)).derive(shared)


def encrypt(key: bytes, text: bytes) -> bytes:
    """``text`` encrypted under a key that encrypts nothing else, so that the nonce is 0."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def decrypt(key: bytes, text: bytes, sender: int) -> bytes:
    """The text that ``sender`` encrypted. Raises ProtocolError if it was altered or meant for others."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), text, None)
    except InvalidTag:
        raise ProtocolError(f"the shares of party {sender} were altered, or are of other keys") from None
