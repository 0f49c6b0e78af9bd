"""Secure aggregation written out in one go, without any code of the package.

It follows docs/explanation/secure-aggregation.md: every party's messages and the sum, from given randomness.
Sums are Python integers, the sharing is evaluated by powers, and nothing is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FIELD = 2**256 - 189


@dataclass
class Transcript:
    """{exchange name: {party: message}} and the sum."""

    messages: dict[str, dict[int, bytes]]
    total: list[int]


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def two(number: int) -> bytes:
    return number.to_bytes(2, "big")


def agreed(secret: bytes, public: bytes, info: bytes) -> bytes:
    shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), 32, None, info).derive(shared)


def public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def stream(key: bytes, length: int) -> list[int]:
    raw = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * length))
    return [int.from_bytes(raw[8 * k : 8 * k + 8], "little") for k in range(length)]


def aggregate(
    run: str,
    release: int,
    request: bytes,
    identities: Sequence[bytes],
    threshold: int,
    values: Sequence[Sequence[int]],
    entropies: Sequence[Callable[[int], bytes]],
    stages: Sequence[set[int]],
) -> Transcript:
    """The whole release.

    Args:
        run, release, request, threshold: as in the session.
        identities: the secret Ed25519 keys of parties 1, 2, ...
        values: each party's integers.
        entropies: each party's randomness.
        stages: the parties that answer in each of the five exchanges.
    """
    signers = [Ed25519PrivateKey.from_private_bytes(secret) for secret in identities]
    cohort = [signer.public_key().public_bytes_raw() for signer in signers]
    n, length = len(cohort), len(values[0])
    context = sha(
        b"fedpriv secure aggregation 2",
        len(run.encode()).to_bytes(4, "big"), release.to_bytes(8, "big"), n.to_bytes(4, "big"),
        threshold.to_bytes(4, "big"), length.to_bytes(8, "big"), run.encode(), request, *cohort,
    )  # fmt: skip

    def message(exchange: int, party: int, body: bytes) -> bytes:
        text = bytes([exchange]) + two(party) + body
        return text + signers[party - 1].sign(context + sha(text))

    u0, u1, u2, u3, u4 = (sorted(stage) for stage in stages)
    a = {i: entropies[i - 1](32) for i in u0}  # mask secrets; 32 random bytes are below the field's prime
    c = {i: entropies[i - 1](32) for i in u0}  # channel secrets
    body0 = {i: public(a[i]) + public(c[i]) for i in u0}
    said = sha(*(two(i) + body0[i] for i in u0))
    bind = context + said

    b, body1 = dict[int, bytes](), dict[int, bytes]()
    share_a, share_b = dict[tuple[int, int], bytes](), dict[tuple[int, int], bytes]()
    for i in u1:
        b[i] = entropies[i - 1](32)
        for secret, table in ((a[i], share_a), (b[i], share_b)):
            coefficients = [int.from_bytes(secret, "big")]
            coefficients += [int.from_bytes(entropies[i - 1](32), "big") for _ in range(threshold - 1)]
            for j in range(1, n + 1):
                value = sum(coefficient * j**power for power, coefficient in enumerate(coefficients)) % FIELD
                table[i, j] = value.to_bytes(32, "big")
        body1[i] = said + sha(bind, b"commitment", two(i), b[i])
        for j in u0:
            if j != i:
                key = agreed(c[i], public(c[j]), bind + b"shares" + two(i) + two(j))
                text = share_a[i, j] + share_b[i, j]
                body1[i] += two(j) + ChaCha20Poly1305(key).encrypt(bytes(12), text, None)

    def pair(i: int, j: int) -> list[int]:
        key = agreed(a[i], public(a[j]), bind + b"pair mask" + two(min(i, j)) + two(max(i, j)))
        return stream(key, length)

    body2 = {}
    for i in u2:
        masked = [
            v + m
            for v, m in zip(values[i - 1], stream(sha(bind, b"self mask", two(i), b[i]), length), strict=True)
        ]
        for j in u1:
            if j != i:
                sign = 1 if i < j else -1
                masked = [v + sign * m for v, m in zip(masked, pair(i, j), strict=True)]
        body2[i] = sha(*map(two, u1)) + b"".join((v % 2**64).to_bytes(8, "little") for v in masked)
    body3 = dict.fromkeys(u3, b"".join(map(two, u2)))
    body4 = {
        i: b"".join(two(j) + (b"\0" + share_b[j, i] if j in u2 else b"\1" + share_a[j, i]) for j in u1)
        for i in u4
    }
    bodies = {"keys": body0, "shares": body1, "masked": body2, "survivors": body3, "reveal": body4}
    sent = {
        name: {i: message(exchange, i, body) for i, body in table.items()}
        for exchange, (name, table) in enumerate(bodies.items())
    }
    total = [sum(values[i - 1][k] for i in u2) % 2**64 for k in range(length)]
    return Transcript(sent, total)
