"""The key stream that torch computes is ChaCha20's: OpenSSL's, and the vectors of RFC 8439."""

from __future__ import annotations

import os

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedpriv.mechanism.chacha20 import key_streams

CPU = torch.device("cpu")


@pytest.mark.parametrize("words", [1, 8, 9, 1001])
def test_streams_are_those_of_openssl(words: int) -> None:
    """For three keys at the same time, one of which repeats."""
    keys = [os.urandom(32), bytes(range(32)), os.urandom(32)]
    keys.append(keys[0])
    streams = key_streams(keys, words, CPU)
    assert streams.shape == (4, words)
    for key, stream in zip(keys, streams, strict=True):
        openssl = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * words))
        assert stream.numpy().astype("<i8").tobytes() == openssl


def test_blocks_are_those_of_the_standard() -> None:
    """RFC 8439, appendix A.1, test vectors 1 and 2: blocks 0 and 1 of key and nonce zero."""
    [stream] = key_streams([bytes(32)], 16, CPU).numpy().astype("<i8")
    assert stream.tobytes()[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert stream.tobytes()[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"
