"""Masks: ChaCha20's key stream as integers modulo 2^64, added to a vector or subtracted from it.

Adding modulo 2^64 is exact, so masks that cancel leave the sum of the messages, bit for bit.

>>> total = np.zeros(3, np.uint64)
>>> add(total, bytes(32)), add(total, bytes(32), subtract=True), total.tolist()
(None, None, [0, 0, 0])
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

Vector = NDArray[np.uint64]

_STRIP = 2**13  # numbers at a time: they stay in the processor's cache
_ZEROS = bytes(8 * _STRIP)


def add(total: Vector, key: bytes, subtract: bool = False) -> None:
    """Add the stream of ``key`` to ``total`` in place, modulo 2^64.

    Args:
        total: shape (k,); the stream's first 8 k bytes are its little-endian numbers.
        key: 32 bytes that are used for one stream only, so that the nonce is 0.
        subtract: whether the stream is subtracted.
    """
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    buffer = bytearray(8 * _STRIP + 15)  # OpenSSL wants room for one more block
    for start in range(0, len(total), _STRIP):
        strip = total[start : start + _STRIP]
        stream.update_into(_ZEROS, buffer)
        words = np.frombuffer(buffer, "<u8", count=len(strip))
        if subtract:
            strip -= words
        else:
            strip += words
