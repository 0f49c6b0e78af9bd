"""ChaCha20's key stream (RFC 8439) computed by torch, for random bits on the device that needs them.

On the CPU OpenSSL's is faster. A GPU computes all blocks of all streams at the same time.

>>> stream = key_streams([bytes(32)], 8, torch.device("cpu"))
>>> stream.numpy().astype("<i8").tobytes()[:8].hex()
'76b8e0ada0f13d90'
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_CONSTANTS = b"expand 32-byte k"
_WORDS = 8  # 64-bit words of a block of 16 32-bit words
_DOUBLE_ROUNDS = 10


def key_streams(keys: Sequence[bytes], words: int, device: torch.device) -> Tensor:
    """The first 64-bit words of each key's stream, with nonce and counter 0 at its start.

    Args:
        keys: keys of 32 bytes.
        words: the number of words, at most 2**35 (the counter has 32 bits).
        device: where to compute.

    Returns:
        int64 (keys, words), on ``device``; the bytes of a little-endian machine are those of the stream.
    """
    blocks = -(-words // _WORDS)
    fixed = np.stack([np.frombuffer(_CONSTANTS + key, "<i4") for key in keys], axis=1)
    start = torch.zeros(16, len(keys), blocks, dtype=torch.int32, device=device)
    start[:12] = torch.from_numpy(fixed).to(device).unsqueeze(-1)
    start[12] = torch.arange(blocks, dtype=torch.int64, device=device).to(torch.int32)
    # The state is a square of four rows; a round works on all of its columns, or diagonals, at once.
    a, b, c, d = start.view(4, 4, len(keys), blocks).clone()
    for _ in range(_DOUBLE_ROUNDS):
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    state = torch.cat((a, b, c, d)).add_(start)
    stream = state.permute(1, 2, 0).contiguous().view(len(keys), 16 * blocks)
    return stream.view(torch.int64)[:, :words]


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """A quarter round on each column of these rows, in place."""
    _mix(a, b, d, 16)
    _mix(c, d, b, 12)
    _mix(a, b, d, 8)
    _mix(c, d, b, 7)


def _mix(total: Tensor, part: Tensor, turned: Tensor, bits: int) -> None:
    """total += part; turned = (turned ^ total), rotated to the left."""
    total.add_(part)
    turned.bitwise_xor_(total)
    low = (turned >> (32 - bits)).bitwise_and_((1 << bits) - 1)  # the sign's copies are cut off
    turned.bitwise_left_shift_(bits).bitwise_or_(low)
