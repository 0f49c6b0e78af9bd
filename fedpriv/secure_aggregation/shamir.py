"""Shamir's secret sharing (1979) over the integers modulo the largest prime below 2^256.

>>> shares = split(42, threshold=2, parties=3, entropy=lambda size: bytes(range(size)))
>>> reconstruct({1: shares[0], 3: shares[2]}, threshold=2)
42
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from fedpriv._internal import validation
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError

PRIME = 2**256 - 189
SIZE = 32  # bytes of a secret and of a share

Entropy = Callable[[int], bytes]  # so many random bytes; os.urandom unless a test gives its own


def element(entropy: Entropy) -> int:
    """A uniform integer below PRIME."""
    while True:
        number = int.from_bytes(entropy(SIZE), "big")
        if number < PRIME:
            return number


def split(secret: int, threshold: int, parties: int, entropy: Entropy) -> list[int]:
    """The shares of parties 1 to ``parties``: a random polynomial of degree threshold - 1 at their numbers.

    Any ``threshold`` shares give the secret; fewer are independent of it.
    """
    if not 0 <= secret < PRIME:
        raise validation.fail("secret", "...", "lie below the prime of the field")
    if not 1 <= threshold <= parties:
        raise validation.fail("threshold", threshold, f"lie in [1, {parties}]")
    coefficients = [secret, *(element(entropy) for _ in range(threshold - 1))]
    return [_at(coefficients, party) for party in range(1, parties + 1)]


def _at(coefficients: Sequence[int], x: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % PRIME
    return total


def reconstruct(shares: Mapping[int, int], threshold: int) -> int:
    """The secret of at least ``threshold`` shares {party: share}, which must all lie on one polynomial.

    Raises:
        TooFewError: there are fewer shares than the threshold.
        ProtocolError: a share beyond the threshold does not lie on the polynomial of the others.
    """
    points = sorted(shares.items())
    if len(points) < threshold:
        raise TooFewError(f"{len(points)} shares of a secret arrived; {threshold} are needed")
    base = points[:threshold]
    numbers = tuple(x for x, _ in base)
    for x, share in points[threshold:]:
        if _combined(base, _weights(numbers, x)) != share:
            raise ProtocolError(f"the shares of a secret do not agree: one of those up to party {x} is false")
    return _combined(base, _weights(numbers, 0))


def _combined(points: Sequence[tuple[int, int]], weights: Sequence[int]) -> int:
    return sum(weight * share for weight, (_, share) in zip(weights, points, strict=True)) % PRIME


@functools.lru_cache(maxsize=2 * 64)
def _weights(numbers: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange's weights of the points ``numbers`` for the value at ``at``, the same for all secrets."""
    weights = []
    for own in numbers:
        over = under = 1
        for other in numbers:
            if other != own:
                over = over * (at - other) % PRIME
                under = under * (own - other) % PRIME
        weights.append(over * pow(under, -1, PRIME) % PRIME)
    return tuple(weights)
