"""Masks are ChaCha20's published streams, and cancel exactly."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedpriv.secure_aggregation import masks

# RFC 8439, appendix A.1, test vectors 1 (key 0) and 3 (key 0...01, of block 1): nonce 0.
BLOCK_0_OF_KEY_0 = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
BLOCK_1_OF_KEY_0 = bytes.fromhex(
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)
BLOCK_1_OF_KEY_1 = bytes.fromhex(
    "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
)


def test_streams_are_those_of_the_standard() -> None:
    total = np.zeros(16, np.uint64)
    masks.add(total, bytes(32))
    assert total.astype("<u8").tobytes() == BLOCK_0_OF_KEY_0 + BLOCK_1_OF_KEY_0
    total = np.zeros(16, np.uint64)
    masks.add(total, bytes(31) + b"\1")
    assert total.astype("<u8").tobytes()[64:] == BLOCK_1_OF_KEY_1


@pytest.mark.parametrize("length", [1, 7, 8191, 8192, 8193, 50_000])
def test_masks_cancel_at_every_length_and_go_on_across_strips(length: int) -> None:
    key, values = os.urandom(32), np.random.default_rng(0).integers(0, 2**64, length, np.uint64)
    total, longer = values.copy(), np.zeros(60_000, np.uint64)
    masks.add(total, key)
    masks.add(longer, key)
    assert (total - values == longer[:length]).all()
    assert len(np.unique(longer)) == len(longer)
    masks.add(total, key, subtract=True)
    assert (total == values).all()
