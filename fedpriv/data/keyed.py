"""Keyed hashes for implicit populations: the draws of client c depend only on (seed, c).

A generator object per sampled client would cost more than the draws themselves. A hash draws for all clients
in a few array operations. It assigns PUBLIC indices to clients and is fixed by the partition seed. It is not
a source of randomness for privacy.

>>> client = np.array([3, 3, 10**12])
>>> a, b, c = uniform(7, client).tolist()
>>> a == b != c
True
>>> ten = np.arange(10)
>>> sorted(permuted(7, ten, np.full(10, 10), np.full(10, 3)).tolist()) == ten.tolist()
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.source import Indices

if TYPE_CHECKING:
    import numpy.typing as npt

_Words: TypeAlias = "npt.NDArray[np.uint64]"
_STEP = 0x9E3779B97F4A7C15
# With fewer rounds the permutation is visibly uneven on small ranges, such as the labels of a small data set.
_ROUNDS = 12


def _mix(z: _Words) -> _Words:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection of 64-bit words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hashed(seed: int, *columns: Indices) -> _Words:
    """A 64-bit word for each row of the ``columns``, each of shape (n,)."""
    word, step = np.full(len(columns[0]), seed % 2**64, np.uint64), np.uint64(_STEP)
    for column in columns:
        word = _mix((word + step) ^ column.astype(np.uint64)) + step
    return _mix(word)


def uniform(seed: int, *columns: Indices) -> npt.NDArray[np.float64]:
    """A number in the open interval (0, 1) for each row of the ``columns``, with 52 random bits."""
    bits = (hashed(seed, *columns) >> np.uint64(12)).astype(np.float64)
    return (bits + 0.5) * 2.0**-52


def permuted(seed: int, position: Indices, size: Indices, *columns: Indices) -> Indices:
    """The image of ``position`` under a keyed permutation of 0..size-1; each row of ``columns`` has its own.

    It is a balanced Feistel network that is repeated until the value is inside the range (cycle walking,
    Black & Rogaway 2002). Distinct positions have distinct images, and no table is needed.

    Args:
        seed: the key, together with the ``columns``.
        position: (n,), each within 0..size-1.
        size: (n,), at least 1 and at most 2^60.
        columns: (n,) each; rows with equal columns and sizes share a permutation.
    """
    key = hashed(seed, *columns)
    span = np.maximum(size - 1, 1)
    bits = np.frexp(span.astype(np.float64))[1]
    half = np.maximum((bits + 1) // 2, 1).astype(np.uint64)
    value, outside = position.astype(np.uint64), np.arange(len(position))
    while outside.size:
        value[outside] = _feistel(value[outside], half[outside], key[outside])
        outside = outside[value[outside] >= size[outside].astype(np.uint64)]
    return value.astype(np.int64)


def _feistel(value: _Words, half: _Words, key: _Words) -> _Words:
    """A keyed permutation of 0..2^(2 half) - 1."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for _ in range(_ROUNDS):
        key = key + np.uint64(_STEP)
        left, right = right, left ^ (_mix(key + right) & mask)
    return (left << half) | right
